// Hash tables of one partition in shared memory. Each of the three has `find(key, cursor)`, which returns the next
// build tuple with this key, or NONE; `cursor` starts as `start(key)`.
//
//   Perfect   the key's distance from the smallest is its slot ("array join"); keys are unique
//   Linear    indices in open slots, half of them empty
//   Chaining  heads and a next index a tuple (paper, section 6.1, with 2048 entries)
#pragma once
#include "../tuple.cuh"

constexpr u32 NONE = 0xffffffffu;

template <int WORDS> struct TableMemory {
    Tuple<WORDS> *tuples; // table_tuples
    u32 *words;           // Perfect: presence bits; Linear: slots; Chaining: heads, then next
    __device__ __forceinline__ TableMemory(unsigned char *memory, u32 table_tuples) {
        tuples = reinterpret_cast<Tuple<WORDS> *>(memory);
        words = reinterpret_cast<u32 *>(tuples + table_tuples);
    }
};

static __device__ __forceinline__ u64 unused_digest(const JoinArguments &arguments, u64 key) {
    return digest_of(arguments.radix, key) >> (arguments.radix.shift + arguments.radix.bits);
}

template <int WORDS> struct Chaining {
    TableMemory<WORDS> memory;
    const JoinArguments &arguments;
    static constexpr bool IS_PERFECT = false;

    __device__ __forceinline__ void clear() const {
        for (u32 i = FARHOLD_THREAD; i < arguments.table_slots; i += FARHOLD_THREADS) memory.words[i] = NONE;
    }
    __device__ __forceinline__ u32 head_of(u64 key) const { return static_cast<u32>(unused_digest(arguments, key)) & (arguments.table_slots - 1); }
    __device__ __forceinline__ void insert(u32 i) const {
        u32 *next = memory.words + arguments.table_slots;
        next[i] = relaxed_exchange(&memory.words[head_of(memory.tuples[i].key())], i);
    }
    __device__ __forceinline__ u32 start(u64 key) const { return memory.words[head_of(key)]; }
    __device__ __forceinline__ u32 find(u64 key, u32 &cursor) const {
        const u32 *next = memory.words + arguments.table_slots;
        while (cursor != NONE) {
            const u32 i = cursor;
            cursor = next[i];
            if (memory.tuples[i].key() == key) return i;
        }
        return NONE;
    }
};

template <int WORDS> struct Linear {
    TableMemory<WORDS> memory;
    const JoinArguments &arguments;
    static constexpr bool IS_PERFECT = false;

    __device__ __forceinline__ void clear() const {
        for (u32 i = FARHOLD_THREAD; i < arguments.table_slots; i += FARHOLD_THREADS) memory.words[i] = NONE;
    }
    __device__ __forceinline__ u32 start(u64 key) const { return static_cast<u32>(unused_digest(arguments, key)) & (arguments.table_slots - 1); }
    __device__ __forceinline__ void insert(u32 i) const {
        u32 slot = start(memory.tuples[i].key());
        while (relaxed_compare_swap(&memory.words[slot], NONE, i) != NONE) slot = (slot + 1) & (arguments.table_slots - 1);
    }
    // Ends at the first empty slot. `table_slots` is at least twice `table_tuples`, so an empty slot exists.
    __device__ __forceinline__ u32 find(u64 key, u32 &cursor) const {
        for (;;) {
            const u32 i = memory.words[cursor];
            if (i == NONE) return NONE;
            cursor = (cursor + 1) & (arguments.table_slots - 1);
            if (memory.tuples[i].key() == key) return i;
        }
    }
};

// The table is a window of `table_tuples` slots of the partition, from slot `window` on.
template <int WORDS> struct Perfect {
    TableMemory<WORDS> memory;
    const JoinArguments &arguments;
    static constexpr bool IS_PERFECT = true;

    __device__ __forceinline__ void clear() const {
        for (u32 i = FARHOLD_THREAD; i < (arguments.table_tuples + 31) / 32; i += FARHOLD_THREADS) memory.words[i] = 0;
    }
    __device__ __forceinline__ bool is_present(u32 slot) const { return memory.words[slot / 32] >> slot % 32 & 1; }
    // Returns false when the key repeats, or lies outside of the stated range.
    __device__ __forceinline__ bool insert(const Tuple<WORDS> &tuple, u64 window) const {
        const u64 slot = unused_digest(arguments, tuple.key());
        if (slot >= arguments.table_slots) return false;
        if (slot - window >= arguments.table_tuples) return true; // below (wrapped) or above: another window's
        const u32 here = static_cast<u32>(slot - window);
        if (relaxed_or(&memory.words[here / 32], 1u << here % 32) >> here % 32 & 1) return false;
        memory.tuples[here] = tuple;
        return true;
    }
    __device__ __forceinline__ u32 find(u64 key, u64 window) const {
        const u64 slot = unused_digest(arguments, key);
        if (slot >= arguments.table_slots || slot - window >= arguments.table_tuples) return NONE;
        const u32 here = static_cast<u32>(slot - window);
        return is_present(here) ? here : NONE;
    }
};
