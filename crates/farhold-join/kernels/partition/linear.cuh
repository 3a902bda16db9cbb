// Linear: a block groups a batch of tuples by partition in shared memory, with a linear allocator in place of a prefix sum,
// and writes the whole batch (Stehle and Jacobsen; Rui et al.; paper, section 2.2). A group is rarely a whole aligned
// transaction, so writes coalesce only in part.
//
//   load ── rank in its partition ── region of each partition ── place in the batch ── write region by region
#pragma once
#include "../tuple.cuh"

// Tuples a thread holds in registers between the steps.
template <int WORDS> constexpr u32 LINEAR_TUPLES_PER_THREAD = WORDS == 1 ? 4 : 1;

// Shared memory: batch tuples, then for each partition its place in memory (u64), count and begin in the batch (u32 each), then
// the allocator (16 bytes).
template <int WORDS, class From> static __device__ __forceinline__ void partition_linear(const PartitionArguments &arguments) {
    constexpr u32 EACH = LINEAR_TUPLES_PER_THREAD<WORDS>;
    constexpr u32 VECTORS = Tuple<WORDS>::VECTORS;
    const u32 partitions = 1u << arguments.radix.bits, batch = EACH * FARHOLD_THREADS;
    Tuple<WORDS> *grouped = reinterpret_cast<Tuple<WORDS> *>(shared_memory());
    u64 *places = reinterpret_cast<u64 *>(grouped + batch);
    u32 *counts = reinterpret_cast<u32 *>(places + partitions);
    u32 *begins = counts + partitions;
    u32 *allocator = begins + partitions;
    u64 *fronts = at_address<u64>(arguments.fronts);
    const Piece piece = piece_of_block(arguments.source.count);

    for (u64 base = piece.begin; base < piece.end; base += batch) {
        const u32 size = piece.end - base < batch ? static_cast<u32>(piece.end - base) : batch;
        for (u32 p = FARHOLD_THREAD; p < partitions; p += FARHOLD_THREADS) counts[p] = 0;
        if (FARHOLD_THREAD == 0) *allocator = 0;
        __syncthreads();

        Tuple<WORDS> tuples[EACH];
        u32 ranks[EACH] = {};
        FARHOLD_UNROLL for (u32 k = 0; k < EACH; k++) {
            const u32 i = k * FARHOLD_THREADS + FARHOLD_THREAD;
            if (i >= size) continue;
            tuples[k] = load_tuple<WORDS>(From(), arguments.source, base + i);
            ranks[k] = relaxed_add(&counts[partition_of(arguments.radix, tuples[k].key())], 1u);
        }
        __syncthreads();

        for (u32 p = FARHOLD_THREAD; p < partitions; p += FARHOLD_THREADS) {
            const u32 count = counts[p];
            if (count == 0) continue;
            begins[p] = relaxed_add(allocator, count);
            places[p] = relaxed_add(&fronts[p], static_cast<u64>(count));
        }
        if (!is_planted(Planted::NoBarrierLinear)) __syncthreads();

        FARHOLD_UNROLL for (u32 k = 0; k < EACH; k++) {
            if (k * FARHOLD_THREADS + FARHOLD_THREAD >= size) continue;
            grouped[begins[partition_of(arguments.radix, tuples[k].key())] + ranks[k]] = tuples[k];
        }
        __syncthreads();

        for (u32 v = FARHOLD_THREAD; v < size * VECTORS; v += FARHOLD_THREADS) {
            const u32 slot = v / VECTORS;
            const u32 p = partition_of(arguments.radix, grouped[slot].key());
            Tuple<WORDS> *to = tuple_at<Tuple<WORDS>>(arguments.out, places[p] + (slot - begins[p]));
            store_once(&to->vector[v % VECTORS], grouped[slot].vector[v % VECTORS]);
        }
        __syncthreads();
    }
}
