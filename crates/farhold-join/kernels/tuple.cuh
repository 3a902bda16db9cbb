// Tuples, where they lie, and to which partition they belong.
#pragma once
#include "world.cuh"

// A key and `WORDS` payload words: 16, 32 or 64 bytes, moved as 16-byte vectors.
template <int WORDS> struct alignas(16) Tuple {
    static_assert(WORDS % 2 == 1, "a tuple is whole vectors");
    static constexpr u32 VECTORS = (WORDS + 1) / 2;
    Vector vector[VECTORS];

    __device__ __forceinline__ u64 key() const { return vector[0].x; }
    __device__ __forceinline__ u64 payload(int word) const {
        const Vector &v = vector[(word + 1) / 2];
        return (word + 1) % 2 ? v.y : v.x;
    }
    __device__ __forceinline__ void set(int word_with_key, u64 value) {
        Vector &v = vector[word_with_key / 2];
        (word_with_key % 2 ? v.y : v.x) = value;
    }
};

// A bijection of 64-bit words in which every output bit depends on every bit of the key, so that any of its bits can be
// a radix or a bucket (two rounds of multiply and xor-shift: the "rrmxmx" family). Cheap next to the 16 bytes that come
// over the link.
static __device__ __forceinline__ u64 mix(u64 x) {
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93ull;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93ull;
    return x ^ x >> 32;
}

static __device__ __forceinline__ u64 digest_of(const Radix &radix, u64 key) { return radix.is_dense ? key - radix.key_min : mix(key); }

static __device__ __forceinline__ u32 partition_of(const Radix &radix, u64 key) {
    return static_cast<u32>(digest_of(radix, key) >> radix.shift) & ((1u << radix.bits) - 1);
}

template <class T> static __device__ __forceinline__ T *tuple_at(const Rows &rows, u64 position) {
    if (rows.pages == 0) return at_address<T>(rows.base) + position;
    const u64 page = at_address<const u64>(rows.pages)[position >> rows.page_shift];
    return at_address<T>(page) + (position & ((1ull << rows.page_shift) - 1));
}

struct Columns {}; // reads a `Source` as columns
struct InRows {};  // reads it as rows

template <class T> static __device__ __forceinline__ u64 load_key(Columns, const Source &source, u64 i) {
    return load_once(at_address<const u64>(source.keys) + i);
}
template <class T> static __device__ __forceinline__ u64 load_key(InRows, const Source &source, u64 i) {
    return tuple_at<const T>(source.rows, source.first + i)->vector[0].x;
}

template <int WORDS> static __device__ __forceinline__ Tuple<WORDS> load_tuple(Columns, const Source &source, u64 i) {
    Tuple<WORDS> tuple = {};
    tuple.set(0, load_once(at_address<const u64>(source.keys) + i));
    if (source.payloads == 0) {
        tuple.set(1, source.first + i);
        return tuple;
    }
    FARHOLD_UNROLL for (int word = 0; word < WORDS; word++)
        tuple.set(word + 1, load_once(at_address<const u64>(source.payloads) + word * source.payload_stride + i));
    return tuple;
}
template <int WORDS> static __device__ __forceinline__ Tuple<WORDS> load_tuple(InRows, const Source &source, u64 i) {
    Tuple<WORDS> tuple;
    const Tuple<WORDS> *from = tuple_at<const Tuple<WORDS>>(source.rows, source.first + i);
    FARHOLD_UNROLL for (u32 v = 0; v < Tuple<WORDS>::VECTORS; v++) tuple.vector[v] = load_once(&from->vector[v]);
    return tuple;
}

// A warp writes `count` tuples of `from` to `out[position ...]`: neighbouring lanes write neighbouring vectors, so whole
// transactions leave when `position` is aligned to one.
template <int WORDS>
static __device__ __forceinline__ void flush_by_warp(const Tuple<WORDS> *from, u32 count, const Rows &out, u64 position) {
    constexpr u32 VECTORS = Tuple<WORDS>::VECTORS;
    for (u32 v = lane_of_thread(); v < count * VECTORS; v += WARP_THREADS) {
        Tuple<WORDS> *to = tuple_at<Tuple<WORDS>>(out, position + v / VECTORS);
        store_once(&to->vector[v % VECTORS], from[v / VECTORS].vector[v % VECTORS]);
    }
}

// Tuples of one transaction.
template <int WORDS> constexpr u32 TRANSACTION_TUPLES = TRANSACTION_BYTES / sizeof(Tuple<WORDS>);

// The part of the input that this block works on: equal pieces, cut at whole transactions.
struct Piece {
    u64 begin, end;
};
static __device__ __forceinline__ Piece piece_of_block(u64 count) {
    const u64 unit = TRANSACTION_BYTES / sizeof(u64);
    const u64 each = ((count + FARHOLD_BLOCKS - 1) / FARHOLD_BLOCKS + unit - 1) / unit * unit;
    const u64 begin = each * FARHOLD_BLOCK;
    const u64 end = begin + each;
    return {begin < count ? begin : count, end < count ? end : count};
}
