// First-level buffers in shared memory, shared by all warps of a block (paper, section 4.2): the common part of Shared
// and Hierarchical.
//
//   claimed[p]:  0 .. size-1  that slot is the claimer's     size  the claimer holds the lock     above  try again
//   committed[p]: how many claimed slots are written
//
// A warp fills buffers without locks; only the emptying of a full buffer has an owner. The owner is a warp, which never
// waits for the lock of another: it gives back every lock but its leader's, empties the leader's buffer and tries
// again.
// Invariants: a claimed slot is committed by the same thread before that thread depends on another warp's work, so
// waiting for commits ends. `claimed` returns to 0 only after the buffer has been read.
#pragma once
#include "../tuple.cuh"

template <int WORDS> struct Buffers {
    Tuple<WORDS> *tuples; // size a partition
    u32 *claimed;
    u32 *committed;
    u32 size;
    u32 partitions;

    // Shared memory: partitions * (size * sizeof(Tuple) + 8) bytes.
    __device__ __forceinline__ Buffers(unsigned char *memory, u32 partitions_, u32 size_) : size(size_), partitions(partitions_) {
        tuples = reinterpret_cast<Tuple<WORDS> *>(memory);
        claimed = reinterpret_cast<u32 *>(tuples + partitions * size);
        committed = claimed + partitions;
    }
    __device__ __forceinline__ u32 *end() const { return committed + partitions; }
    __device__ __forceinline__ Tuple<WORDS> *of(u32 p) const { return tuples + p * size; }
    __device__ __forceinline__ void clear() const {
        for (u32 p = FARHOLD_THREAD; p < partitions; p += FARHOLD_THREADS) claimed[p] = committed[p] = 0;
    }
    // Call with one lane, after every lane has read the buffer.
    __device__ __forceinline__ void unlock(u32 p) const {
        committed[p] = 0;
        release_store(&claimed[p], 0);
    }
};

// Puts all tuples of the block's piece into the buffers. A whole warp that owns the full buffer p calls `empty(p)`,
// which unlocks the buffer.
template <int WORDS, class From, class Empty>
static __device__ __forceinline__ void fill_buffers(const PartitionArguments &arguments, const Buffers<WORDS> &buffers, Empty &&empty) {
    const Piece piece = piece_of_block(arguments.source.count);
    const u32 lane = lane_of_thread();
    for (u64 base = piece.begin + warp_of_thread() * WARP_THREADS; base < piece.end; base += FARHOLD_THREADS) {
        const u64 i = base + lane;
        bool done = i >= piece.end;
        Tuple<WORDS> tuple = {};
        u32 p = 0;
        if (!done) {
            tuple = load_tuple<WORDS>(From(), arguments.source, i);
            p = partition_of(arguments.radix, tuple.key());
        }
        for (;;) {
            bool has_lock = false;
            if (!done) {
                const u32 slot = claim_add(&buffers.claimed[p], 1);
                has_lock = slot == buffers.size;
                if (slot < buffers.size) {
                    buffers.of(p)[slot] = tuple;
                    publish_add(&buffers.committed[p], 1);
                    done = true;
                }
            }
            if (is_planted(Planted::DivergentBallot) && done && lane >= 16) break;
            if (__ballot_sync(FULL_WARP, !done) == 0) break;
            const u32 holders = __ballot_sync(FULL_WARP, has_lock);
            if (holders == 0) {
                spin_pause();
                continue;
            }
            const u32 leader = __ffs(holders) - 1;
            if (has_lock && lane != leader) release_store(&buffers.claimed[p], buffers.size);
            const u32 full = __shfl_sync(FULL_WARP, p, leader);
            if (lane == leader && !is_planted(Planted::NoCommitWait))
                while (acquire_load(&buffers.committed[full]) != buffers.size) spin_pause();
            __syncwarp();
            empty(full);
        }
    }
}

// The rest of a partition at the end goes out in whole transactions from the front, and the remainder from the back, so
// that other blocks' full buffers stay aligned. Call with a whole warp.
template <int WORDS>
static __device__ __forceinline__ void flush_remainder(const PartitionArguments &arguments, u32 p, const Tuple<WORDS> *from, u32 count, u32 unit) {
    const u32 whole = count / unit * unit, rest = count - whole;
    u64 front = 0, back = 0;
    if (lane_of_thread() == 0) {
        if (whole > 0) front = relaxed_add(&at_address<u64>(arguments.fronts)[p], static_cast<u64>(whole));
        if (rest > 0) back = relaxed_add(&at_address<u64>(arguments.backs)[p], static_cast<u64>(0) - rest) - rest;
    }
    flush_by_warp<WORDS>(from, whole, arguments.out, __shfl_sync(FULL_WARP, front, 0));
    flush_by_warp<WORDS>(from + whole, rest, arguments.out, __shfl_sync(FULL_WARP, back, 0));
}

template <int WORDS> static __device__ __forceinline__ u32 flush_unit(u32 buffer_tuples) {
    return buffer_tuples < TRANSACTION_TUPLES<WORDS> ? buffer_tuples : TRANSACTION_TUPLES<WORDS>;
}
