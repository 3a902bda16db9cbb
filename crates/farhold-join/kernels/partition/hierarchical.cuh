// Hierarchical software write-combining (paper, section 4.3). Full first-level buffers move to larger second-level
// buffers in device memory, and only those go out. So a high fan-out still writes long runs and rarely misses the TLB.
//
//   shared memory          device memory                        partitions, in CPU or device memory
//   [buffer p] ── evict ──▶ [second-level buffer p] ── full ──▶ swapped with the warp's spare, unlocked, then written
//
// The swap keeps the slow write outside of the lock: each warp always has one spare buffer.
// A relation that comes in several launches keeps its second-level buffers between them (`keep`, `resume`). The paper's
// kernel reads all of its input in one launch. Here the copy engine feeds the kernel piece by piece; without `keep`
// every block, partition and launch would write a remainder. The grid must be the same in all launches of one relation.
#pragma once
#include "buffers.cuh"

// The second-level buffer of a partition, and the number of tuples in it.
struct SecondLevel {
    u32 word;
    __device__ __forceinline__ static SecondLevel of(u32 index, u32 fill) { return {index << 16 | fill}; }
    __device__ __forceinline__ u32 index() const { return word >> 16; }
    __device__ __forceinline__ u32 fill() const { return word & 0xffff; }
};

template <int WORDS> static __device__ __forceinline__ void copy_by_warp(Tuple<WORDS> *to, const Tuple<WORDS> *from, u32 count) {
    constexpr u32 VECTORS = Tuple<WORDS>::VECTORS;
    for (u32 v = lane_of_thread(); v < count * VECTORS; v += WARP_THREADS)
        to[v / VECTORS].vector[v % VECTORS] = from[v / VECTORS].vector[v % VECTORS];
}

// Shared memory: partitions * (buffer_tuples * sizeof(Tuple) + 12) bytes.
// Device memory: blocks * (partitions + warps) second-level buffers, and as many words of state.
template <int WORDS, class From> static __device__ __forceinline__ void partition_hierarchical(const PartitionArguments &arguments) {
    const Buffers<WORDS> buffers(shared_memory(), 1u << arguments.radix.bits, arguments.buffer_tuples);
    const u32 partitions = buffers.partitions, size = arguments.second_level_tuples, lane = lane_of_thread();
    const u32 buffers_of_block = partitions + warps_of_block();
    SecondLevel *second = reinterpret_cast<SecondLevel *>(buffers.end());
    Tuple<WORDS> *second_tuples = at_address<Tuple<WORDS>>(arguments.second_level) + static_cast<u64>(FARHOLD_BLOCK) * buffers_of_block * size;
    u32 *state = at_address<u32>(arguments.second_level_state) + static_cast<u64>(FARHOLD_BLOCK) * buffers_of_block;
    u64 *fronts = at_address<u64>(arguments.fronts);

    buffers.clear();
    for (u32 p = FARHOLD_THREAD; p < partitions; p += FARHOLD_THREADS)
        second[p] = arguments.resume ? SecondLevel{state[p]} : SecondLevel::of(p, 0);
    u32 spare = arguments.resume ? state[partitions + warp_of_thread()] : partitions + warp_of_thread();
    if (!is_planted(Planted::NoBarrierHierarchical)) __syncthreads();

    // Appends to p's second-level buffer. Call with a whole warp that owns p; `unlock` is called as soon as p may be
    // used again.
    auto evict = [&](u32 p, u32 count, auto &&unlock) {
        const SecondLevel before = second[p];
        const u32 room = size - before.fill(), first = count < room ? count : room;
        const bool is_full = first == room;
        SecondLevel after = SecondLevel::of(before.index(), before.fill() + first);
        if (is_full) after = SecondLevel::of(spare, count - first);
        copy_by_warp<WORDS>(second_tuples + before.index() * size + before.fill(), buffers.of(p), first);
        if (is_full) copy_by_warp<WORDS>(second_tuples + spare * size, buffers.of(p) + first, count - first);
        __syncwarp();
        if (lane == 0) second[p] = after;
        unlock();
        if (!is_full) return;
        u64 position = 0;
        if (lane == 0) position = relaxed_add(&fronts[p], static_cast<u64>(size));
        position = __shfl_sync(FULL_WARP, position, 0);
        flush_by_warp<WORDS>(second_tuples + before.index() * size, size, arguments.out, position);
        spare = before.index();
    };

    fill_buffers<WORDS, From>(arguments, buffers, [&](u32 p) {
        if (is_planted(Planted::EarlyUnlockHierarchical) && lane == 0) buffers.unlock(p);
        evict(p, buffers.size, [&] {
            if (!is_planted(Planted::EarlyUnlockHierarchical) && lane == 0) buffers.unlock(p);
        });
        __syncwarp();
    });

    __syncthreads();
    const u32 unit = flush_unit<WORDS>(size);
    for (u32 p = warp_of_thread(); p < partitions; p += warps_of_block()) {
        evict(p, buffers.committed[p], [] {});
        __syncwarp();
        const SecondLevel left = second[p];
        if (arguments.keep) {
            if (lane == 0) state[p] = left.word;
        } else {
            flush_remainder<WORDS>(arguments, p, second_tuples + left.index() * size, left.fill(), unit);
        }
    }
    if (arguments.keep && lane == 0) state[partitions + warp_of_thread()] = spare;
}
