// The result of a join: sums over all matches, or one row for each match.
#pragma once
#include "../tuple.cuh"

template <int WORDS> static __device__ __forceinline__ u64 payload_sum(const Tuple<WORDS> &tuple) {
    u64 sum = 0;
    FARHOLD_UNROLL for (int word = 0; word < WORDS; word++) sum += tuple.payload(word);
    return sum;
}

// A thread's share of the sums, kept in registers until the end.
struct Sums {
    u64 matches = 0, build = 0, probe = 0, refused = 0;

    template <int WORDS> __device__ __forceinline__ void add(const Tuple<WORDS> &build_tuple, const Tuple<WORDS> &probe_tuple) {
        matches++;
        build += payload_sum(build_tuple);
        probe += payload_sum(probe_tuple);
    }
    // Call with all threads of full warps.
    __device__ __forceinline__ void deliver(u64 address) const {
        u64 all[4] = {matches, build, probe, refused};
        FARHOLD_UNROLL for (int i = 0; i < 4; i++) {
            FARHOLD_UNROLL for (int distance = 16; distance > 0; distance /= 2) all[i] += __shfl_xor_sync(FULL_WARP, all[i], distance);
            if (lane_of_thread() == 0 && all[i] != 0) relaxed_add(&at_address<u64>(address)[i], all[i]);
        }
    }
};

// One row for each match, through a linear allocator (paper, section 5.1): a single pass, order undefined. Past the
// capacity nothing is written. A warp that comes there stops; the host sees by the cursor that rows had no room, and
// uses none of them.
struct RowWriter {
    u64 rows, cursor, capacity;

    // Call with full warps; lanes with `has_match` write. Returns whether there may be room for more, the same to all lanes.
    template <int WORDS>
    __device__ __forceinline__ bool add(bool has_match, const Tuple<WORDS> &build_tuple, const Tuple<WORDS> &probe_tuple) const {
        const u32 writers = __ballot_sync(FULL_WARP, has_match);
        if (writers == 0) return true;
        u64 position = 0;
        if (lane_of_thread() == 0) position = relaxed_add(at_address<u64>(cursor), static_cast<u64>(__popc(writers)));
        position = __shfl_sync(FULL_WARP, position, 0);
        const bool has_room = position + __popc(writers) <= capacity;
        position += __popc(writers & ((1u << lane_of_thread()) - 1));
        if (!has_match || position >= capacity) return has_room;
        Vector *to = at_address<Vector>(rows) + position * WORDS;
        u64 words[2 * WORDS];
        FARHOLD_UNROLL for (int i = 0; i < WORDS; i++) {
            words[i] = build_tuple.payload(i);
            words[WORDS + i] = probe_tuple.payload(i);
        }
        FARHOLD_UNROLL for (int i = 0; i < WORDS; i++) store_once(&to[i], Vector{words[2 * i], words[2 * i + 1]});
        return has_room;
    }
};
