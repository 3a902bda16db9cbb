// Standard radix partitioning: each thread writes its tuple to its place at once. Nothing is buffered, so almost every
// write is a transaction of its own. Lanes of a warp with the same partition share one atomic operation.
#pragma once
#include "../tuple.cuh"

template <int WORDS, class From> static __device__ __forceinline__ void partition_standard(const PartitionArguments &arguments) {
    u64 *fronts = at_address<u64>(arguments.fronts);
    const Piece piece = piece_of_block(arguments.source.count);
    for (u64 base = piece.begin + warp_of_thread() * WARP_THREADS; base < piece.end; base += FARHOLD_THREADS) {
        const u64 i = base + lane_of_thread();
        const u32 active = __ballot_sync(FULL_WARP, i < piece.end);
        if (i >= piece.end) continue;
        const Tuple<WORDS> tuple = load_tuple<WORDS>(From(), arguments.source, i);
        const u32 p = partition_of(arguments.radix, tuple.key());
        const u32 peers = __match_any_sync(active, p);
        const u32 leader = __ffs(peers) - 1;
        u64 position = 0;
        if (lane_of_thread() == leader) position = relaxed_add(&fronts[p], static_cast<u64>(__popc(peers)));
        position = __shfl_sync(peers, position, leader) + __popc(peers & ((1u << lane_of_thread()) - 1));
        Tuple<WORDS> *to = tuple_at<Tuple<WORDS>>(arguments.out, position);
        FARHOLD_UNROLL for (u32 v = 0; v < Tuple<WORDS>::VECTORS; v++) store_once(&to->vector[v], tuple.vector[v]);
    }
}
