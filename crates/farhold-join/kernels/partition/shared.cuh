// Shared software write-combining (paper, section 4.2). A full buffer goes straight to its partition, in whole
// transactions. With a high fan-out the buffers are smaller than a transaction, and every flush may miss the TLB.
#pragma once
#include "buffers.cuh"

template <int WORDS, class From> static __device__ __forceinline__ void partition_shared(const PartitionArguments &arguments) {
    const Buffers<WORDS> buffers(shared_memory(), 1u << arguments.radix.bits, arguments.buffer_tuples);
    u64 *fronts = at_address<u64>(arguments.fronts);
    const u32 lane = lane_of_thread();
    buffers.clear();
    if (!is_planted(Planted::NoBarrierShared)) __syncthreads();

    fill_buffers<WORDS, From>(arguments, buffers, [&](u32 p) {
        u64 position = 0;
        if (lane == 0) position = relaxed_add(&fronts[p], static_cast<u64>(buffers.size));
        position = __shfl_sync(FULL_WARP, position, 0);
        if (is_planted(Planted::EarlyUnlockShared) && lane == 0) buffers.unlock(p);
        flush_by_warp<WORDS>(buffers.of(p), buffers.size, arguments.out, position);
        __syncwarp();
        if (!is_planted(Planted::EarlyUnlockShared) && lane == 0) buffers.unlock(p);
    });

    __syncthreads();
    const u32 unit = flush_unit<WORDS>(buffers.size);
    for (u32 p = warp_of_thread(); p < buffers.partitions; p += warps_of_block())
        flush_remainder<WORDS>(arguments, p, buffers.of(p), buffers.committed[p], unit);
}
