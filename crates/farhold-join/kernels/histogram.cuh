// The number of tuples of each partition, and where partitions begin.
#pragma once
#include "tuple.cuh"

// Counts in shared memory, in several copies so that warps of one block collide less, and adds each block's sums to
// `counts`. Shared memory: replicas * partitions * 4 bytes.
template <int WORDS, class From> static __device__ __forceinline__ void histogram(const HistogramArguments &arguments) {
    u32 *counters = reinterpret_cast<u32 *>(shared_memory());
    const u32 partitions = 1u << arguments.radix.bits;
    for (u32 i = FARHOLD_THREAD; i < partitions * arguments.replicas; i += FARHOLD_THREADS) counters[i] = 0;
    if (!is_planted(Planted::NoBarrierHistogram)) __syncthreads();
    u32 *mine = counters + warp_of_thread() % arguments.replicas * partitions;
    const Piece piece = piece_of_block(arguments.source.count);
    for (u64 i = piece.begin + FARHOLD_THREAD; i < piece.end; i += FARHOLD_THREADS) {
        const u64 key = load_key<Tuple<WORDS>>(From(), arguments.source, i);
        relaxed_add(&mine[partition_of(arguments.radix, key)], 1u);
    }
    __syncthreads();
    u64 *counts = at_address<u64>(arguments.counts);
    for (u32 p = FARHOLD_THREAD; p < partitions; p += FARHOLD_THREADS) {
        u64 sum = 0;
        for (u32 r = 0; r < arguments.replicas; r++) sum += counters[r * partitions + p];
        if (sum != 0) relaxed_add(&counts[p], sum);
    }
}

// The exclusive prefix sum of the counts, each rounded up to `align_tuples`. One block.
// Shared memory: 8 bytes a thread.
static __device__ __forceinline__ void place_partitions(const PrefixSumArguments &arguments) {
    u64 *sums = reinterpret_cast<u64 *>(shared_memory());
    const u64 *counts = at_address<const u64>(arguments.counts);
    const u64 mask = arguments.align_tuples - 1;
    const u32 each = (arguments.partitions + FARHOLD_THREADS - 1) / FARHOLD_THREADS;
    const u32 begin = each * FARHOLD_THREAD;
    u64 mine = 0;
    for (u32 p = begin; p < begin + each && p < arguments.partitions; p++) mine += (counts[p] + mask) & ~mask;
    sums[FARHOLD_THREAD] = mine;
    __syncthreads();
    for (u32 distance = 1; distance < FARHOLD_THREADS; distance *= 2) {
        const u64 before = FARHOLD_THREAD >= distance ? sums[FARHOLD_THREAD - distance] : 0;
        __syncthreads();
        sums[FARHOLD_THREAD] += before;
        __syncthreads();
    }
    u64 at = sums[FARHOLD_THREAD] - mine;
    u64 *begins = at_address<u64>(arguments.begins), *fronts = at_address<u64>(arguments.fronts), *backs = at_address<u64>(arguments.backs);
    for (u32 p = begin; p < begin + each && p < arguments.partitions; p++) {
        begins[p] = at;
        fronts[p] = at;
        backs[p] = at + counts[p];
        at += (counts[p] + mask) & ~mask;
    }
    if (FARHOLD_THREAD == FARHOLD_THREADS - 1) begins[arguments.partitions] = sums[FARHOLD_THREAD];
}
