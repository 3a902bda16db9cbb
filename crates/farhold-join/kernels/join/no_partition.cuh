// The join without partitioning: one table of the whole build side in device memory (paper, section 6.1, baselines).
//
//   Perfect  presence bits and payloads, one slot a key of the stated range
//   Linear   keys and payloads in open slots, half of them empty. ~0 marks an empty slot; build tuples with that key wait in
//            a spare list, so that every key is allowed
#pragma once
#include "result.cuh"

constexpr u64 EMPTY_KEY = ~0ull;
// The longest walk to an open slot. Among unique keys that half of the slots hold, walks of 2^32 tuples stay below 100; equal
// keys make a list, on which the time is quadratic, so that the table is refused.
constexpr u32 STEPS_MAX = 256;

template <int WORDS> static __device__ __forceinline__ void store_payload(u64 address, u64 slot, const Tuple<WORDS> &tuple) {
    u64 *to = at_address<u64>(address) + slot * WORDS;
    FARHOLD_UNROLL for (int word = 0; word < WORDS; word++) to[word] = tuple.payload(word);
}
template <int WORDS> static __device__ __forceinline__ Tuple<WORDS> load_payload(u64 address, u64 slot) {
    const u64 *from = at_address<const u64>(address) + slot * WORDS;
    Tuple<WORDS> tuple = {};
    FARHOLD_UNROLL for (int word = 0; word < WORDS; word++) tuple.set(word + 1, from[word]);
    return tuple;
}

// Returns what the slot held. If it held nothing, it is the key's now.
static __device__ __forceinline__ u64 claim_slot(u64 *slot, u64 key) {
    if (is_planted(Planted::PlainClaim)) {
        const u64 held = *slot;
        if (held == EMPTY_KEY) *slot = key;
        return held;
    }
    return relaxed_compare_swap(slot, EMPTY_KEY, key);
}

template <int WORDS> static __device__ __forceinline__ void table_build_perfect(const TableArguments &arguments) {
    u32 *present = at_address<u32>(arguments.keys);
    Sums sums;
    const u64 step = static_cast<u64>(FARHOLD_BLOCKS) * FARHOLD_THREADS;
    for (u64 i = static_cast<u64>(FARHOLD_BLOCK) * FARHOLD_THREADS + FARHOLD_THREAD; i < arguments.source.count; i += step) {
        const Tuple<WORDS> tuple = load_tuple<WORDS>(Columns(), arguments.source, i);
        const u64 slot = tuple.key() - arguments.radix.key_min;
        if (slot >= arguments.slots || (relaxed_or(&present[slot / 32], 1u << slot % 32) >> slot % 32 & 1)) {
            sums.refused++;
            continue;
        }
        store_payload<WORDS>(arguments.payloads, slot, tuple);
    }
    sums.deliver(arguments.aggregate);
}

template <int WORDS> static __device__ __forceinline__ void table_build_linear(const TableArguments &arguments) {
    u64 *keys = at_address<u64>(arguments.keys);
    Sums sums;
    const u64 step = static_cast<u64>(FARHOLD_BLOCKS) * FARHOLD_THREADS;
    for (u64 i = static_cast<u64>(FARHOLD_BLOCK) * FARHOLD_THREADS + FARHOLD_THREAD; i < arguments.source.count; i += step) {
        const Tuple<WORDS> tuple = load_tuple<WORDS>(Columns(), arguments.source, i);
        if (tuple.key() == EMPTY_KEY) {
            const u64 at = relaxed_add(at_address<u64>(arguments.spare_count), static_cast<u64>(1));
            if (at < arguments.spare_capacity) store_payload<WORDS>(arguments.spare, at, tuple);
            continue;
        }
        u64 slot = mix(tuple.key()) & (arguments.slots - 1);
        u32 steps = 0;
        while (claim_slot(&keys[slot], tuple.key()) != EMPTY_KEY && ++steps < STEPS_MAX) slot = (slot + 1) & (arguments.slots - 1);
        if (steps == STEPS_MAX) {
            sums.refused++; // the other sums are meaningless then
            break;
        }
        store_payload<WORDS>(arguments.payloads, slot, tuple);
    }
    sums.deliver(arguments.aggregate);
}

// Walks the matches of every lane, the warp together. `next(tuple, cursor, match)` returns false when no match is left.
template <int WORDS, bool MATERIALIZE, class Start, class Next>
static __device__ __forceinline__ void probe_table(const TableArguments &arguments, Start &&start, Next &&next) {
    const RowWriter writer = {arguments.rows, arguments.rows_cursor, arguments.rows_capacity};
    Sums sums;
    const u64 step = static_cast<u64>(FARHOLD_BLOCKS) * FARHOLD_THREADS;
    bool has_room = true;
    for (u64 base = static_cast<u64>(FARHOLD_BLOCK) * FARHOLD_THREADS + warp_of_thread() * WARP_THREADS; has_room && base < arguments.source.count; base += step) {
        const u64 i = base + lane_of_thread();
        Tuple<WORDS> tuple = {}, match = {};
        bool has_match = i < arguments.source.count;
        u64 cursor = 0;
        if (has_match) {
            tuple = load_tuple<WORDS>(Columns(), arguments.source, i);
            cursor = start(tuple.key());
            has_match = next(tuple.key(), cursor, match);
        }
        while (has_room && __any_sync(FULL_WARP, has_match)) {
            if (has_match) sums.add<WORDS>(match, tuple);
            if (MATERIALIZE) has_room = writer.add<WORDS>(has_match, match, tuple);
            if (has_match) has_match = next(tuple.key(), cursor, match);
        }
    }
    sums.deliver(arguments.aggregate);
}

template <int WORDS, bool MATERIALIZE> static __device__ __forceinline__ void table_probe_perfect(const TableArguments &arguments) {
    const u32 *present = at_address<const u32>(arguments.keys);
    probe_table<WORDS, MATERIALIZE>(
        arguments, [](u64) { return 0ull; },
        [&](u64 key, u64 &cursor, Tuple<WORDS> &match) {
            const u64 slot = key - arguments.radix.key_min;
            if (cursor++ != 0 || slot >= arguments.slots || !(present[slot / 32] >> slot % 32 & 1)) return false;
            match = load_payload<WORDS>(arguments.payloads, slot);
            return true;
        });
}

template <int WORDS, bool MATERIALIZE> static __device__ __forceinline__ void table_probe_linear(const TableArguments &arguments) {
    const u64 *keys = at_address<const u64>(arguments.keys);
    const u64 spares = *at_address<const u64>(arguments.spare_count);
    probe_table<WORDS, MATERIALIZE>(
        arguments, [&](u64 key) { return key == EMPTY_KEY ? 0ull : mix(key) & (arguments.slots - 1); },
        [&](u64 key, u64 &cursor, Tuple<WORDS> &match) {
            if (key == EMPTY_KEY) {
                if (cursor == spares) return false;
                match = load_payload<WORDS>(arguments.spare, cursor++);
                return true;
            }
            for (;;) {
                const u64 slot = cursor, found = keys[slot];
                if (found == EMPTY_KEY) return false;
                cursor = (slot + 1) & (arguments.slots - 1);
                if (found != key) continue;
                match = load_payload<WORDS>(arguments.payloads, slot);
                return true;
            }
        });
}
