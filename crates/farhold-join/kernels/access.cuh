// The bandwidth of the link by granularity (paper, figure 6): groups of neighbouring threads read or write
// `granularity_bytes` at random (a linear congruential generator) or sequential places of a range.
#pragma once
#include "tuple.cuh"

// All of a word, so that the compiler cannot use a narrower load.
static __device__ __forceinline__ u64 all_of(u64 value) { return value; }
static __device__ __forceinline__ u64 all_of(Vector value) { return value.x + value.y; }

// `Word` is u32, u64 or Vector: 4, 8 or 16 bytes a thread; wider granularities take several threads.
template <class Word, bool WRITE> static __device__ __forceinline__ void access_memory(const AccessArguments &arguments) {
    const u32 threads_of_group = arguments.granularity_bytes / sizeof(Word);
    const u64 thread = static_cast<u64>(FARHOLD_BLOCK) * FARHOLD_THREADS + FARHOLD_THREAD;
    const u64 group = thread / threads_of_group, member = thread % threads_of_group;
    const u64 groups = static_cast<u64>(FARHOLD_BLOCKS) * FARHOLD_THREADS / threads_of_group;
    const u64 places = arguments.bytes / arguments.granularity_bytes; // a power of two
    const u64 accesses = arguments.accesses / groups;
    u64 random = group * 0x9e3779b97f4a7c15ull + 1, sum = 0;
    for (u64 i = 0; i < accesses; i++) {
        random = random * 6364136223846793005ull + 1442695040888963407ull;
        const u64 place = (arguments.is_sequential ? i * groups + group : random >> 20) & (places - 1);
        const u64 offset = place * arguments.granularity_bytes + member * sizeof(Word) + arguments.misalign_bytes;
        Word *at = at_address<Word>(arguments.at + offset);
        if constexpr (WRITE) {
            Word value = {};
            *at = value;
        } else {
            sum += all_of(*at);
        }
    }
    if (sum == ~0ull) relaxed_add(at_address<u64>(arguments.sink), sum); // keeps the reads; the sum itself is not used
}
