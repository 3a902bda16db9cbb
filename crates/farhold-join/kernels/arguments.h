// What the host passes to each kernel: one structure by value. `src/gpu/kernels.rs` holds the same layouts;
// both sides assert sizes. Addresses are 64-bit words, valid on the device (device memory or pinned host memory).
#pragma once

typedef unsigned int u32;
typedef unsigned long long u64;

// An array of tuples: in one piece, or in pages of 2^page_shift tuples that lie anywhere (device or pinned host memory).
struct Rows {
    u64 base;       // address of tuple 0 when `pages` is 0
    u64 pages;      // address of the pages' addresses (u64 each), or 0
    u32 page_shift; // log2 of tuples a page
    u32 reserved;
};

// Which partition a key belongs to: bits [shift, shift + bits) of its digest.
struct Radix {
    u64 key_min;  // dense keys: the smallest; their digest is the distance from it
    u32 is_dense; // 0: the digest is a mixing of the key
    u32 bits;
    u32 shift;
    u32 reserved;
};

// Where a pass reads its tuples: columns (keys, then `payload_words` columns `payload_stride` words apart), or rows.
struct Source {
    u64 keys;
    u64 payloads;       // 0: the payload is the row's number
    u64 payload_stride; // in words
    Rows rows;
    u64 first; // rows: the first tuple's position; columns: the number of the first row
    u64 count;
};

struct HistogramArguments {
    Source source;
    Radix radix;
    u64 counts;   // u64 a partition; added to
    u32 replicas; // private copies in shared memory, so that warps collide less
    u32 reserved;
};

// Turns counts into places. Partition p holds [begins[p], begins[p] + counts[p]). Full buffers are taken from `fronts`
// upwards, remainders from `backs` downwards.
struct PrefixSumArguments {
    u64 counts;
    u64 begins; // u64 a partition, and one more: the end of all
    u64 fronts;
    u64 backs;
    u32 partitions;
    u32 align_tuples; // a power of two: every partition begins at a multiple
};

struct PartitionArguments {
    Source source;
    Radix radix;
    Rows out;
    u64 fronts;
    u64 backs;
    u64 second_level;       // Hierarchical: the second-level buffers of all blocks, in device memory
    u64 second_level_state; // Hierarchical: their fill between launches (u32 a buffer)
    u32 buffer_tuples;      // a first-level buffer, in shared memory (Shared, Hierarchical); the batch (Linear)
    u32 second_level_tuples;
    u32 resume; // go on with the buffers of the launch before
    u32 keep;   // leave the second-level buffers as they are at the end: another launch follows
};

struct ScheduleArguments {
    u64 build_begins, build_counts, probe_begins, probe_counts;
    u64 tasks;      // JoinTask each
    u64 task_count; // u32, must be 0 before
    u32 partitions;
    u32 task_capacity;
    u32 table_tuples;      // build tuples that one table in shared memory holds
    u32 probe_tuples_max;  // a longer probe side is cut, so that blocks share skewed partitions
};

struct JoinTask {
    u64 build_begin, probe_begin;
    u32 build_count, probe_count;
};

struct JoinAggregate {
    u64 matches;
    u64 build_sum; // of all payload words, wrapping
    u64 probe_sum;
    u64 refused; // build keys that the table cannot hold: perfect hashing, repeated or out of range; open slots, many
                 // equal keys. Then the other sums are meaningless
};

struct JoinArguments {
    Rows build;
    Rows probe;
    u64 tasks;
    u64 task_count;
    u64 next_task; // u32, must be 0 before
    u64 aggregate;
    u64 rows;          // materialized result: all build payload words, then all probe payload words
    u64 rows_cursor;   // u64: rows wanted, also beyond the capacity
    u64 rows_capacity;
    Radix radix;       // what is below `shift + bits` has been used up by partitioning
    u32 table_tuples;  // build tuples that one table in shared memory holds
    u32 table_slots;   // chaining: heads, linear: slots, both powers of two; perfect: slots of a whole partition
};

struct TableArguments {
    Source source;     // build or probe side
    Radix radix;
    u64 keys;          // linear: u64 a slot. perfect: presence bits, u32 for 32 slots
    u64 payloads;      // payload words of each slot
    u64 slots;         // linear: a power of two
    u64 spare;         // linear: payloads of build tuples whose key is the mark of an empty slot
    u64 spare_count;   // u64
    u64 spare_capacity;
    u64 aggregate;
    u64 rows;
    u64 rows_cursor;
    u64 rows_capacity;
};

struct AccessArguments {
    u64 at;       // the range
    u64 bytes;    // of the range; a power of two
    u64 accesses; // how many, over all threads
    u32 granularity_bytes;
    u32 misalign_bytes;
    u32 is_sequential;
    u32 reserved;
    u64 sink; // u64: sum of what was read, so that reads are not dropped
};

#define FARHOLD_SIZE(type, bytes) static_assert(sizeof(type) == bytes, #type " is laid out as src/gpu/kernels.rs has it")
FARHOLD_SIZE(Rows, 24);
FARHOLD_SIZE(Radix, 24);
FARHOLD_SIZE(Source, 64);
FARHOLD_SIZE(HistogramArguments, 104);
FARHOLD_SIZE(PrefixSumArguments, 40);
FARHOLD_SIZE(PartitionArguments, 160);
FARHOLD_SIZE(ScheduleArguments, 64);
FARHOLD_SIZE(JoinTask, 24);
FARHOLD_SIZE(JoinAggregate, 32);
FARHOLD_SIZE(JoinArguments, 136);
FARHOLD_SIZE(TableArguments, 168);
FARHOLD_SIZE(AccessArguments, 48);
