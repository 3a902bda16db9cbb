// Joins pairs of partitions that fit, or nearly fit, shared memory (paper, section 5.1, "Join R and S").
//
//   make_tasks pairs of partitions -> tasks; a long probe side becomes several tasks, so that skew is shared by blocks
//   join       a block takes a task, builds a table from the build side, probes it; a build side larger than the table
//              takes several rounds, so every skew gives the right answer
#pragma once
#include "result.cuh"
#include "table.cuh"

static __device__ __forceinline__ void make_tasks(const ScheduleArguments &arguments) {
    const u64 *build_begins = at_address<const u64>(arguments.build_begins), *build_counts = at_address<const u64>(arguments.build_counts);
    const u64 *probe_begins = at_address<const u64>(arguments.probe_begins), *probe_counts = at_address<const u64>(arguments.probe_counts);
    JoinTask *tasks = at_address<JoinTask>(arguments.tasks);
    for (u32 p = FARHOLD_BLOCK * FARHOLD_THREADS + FARHOLD_THREAD; p < arguments.partitions; p += FARHOLD_BLOCKS * FARHOLD_THREADS) {
        const u64 probe_count = probe_counts[p];
        if (build_counts[p] == 0 || probe_count == 0) continue;
        const u32 cuts = static_cast<u32>((probe_count + arguments.probe_tuples_max - 1) / arguments.probe_tuples_max);
        const u32 first = relaxed_add(at_address<u32>(arguments.task_count), cuts);
        for (u32 cut = 0; cut < cuts && first + cut < arguments.task_capacity; cut++) {
            const u64 begin = static_cast<u64>(cut) * arguments.probe_tuples_max;
            const u64 count = probe_count - begin < arguments.probe_tuples_max ? probe_count - begin : arguments.probe_tuples_max;
            tasks[first + cut] = {build_begins[p], probe_begins[p] + begin, static_cast<u32>(build_counts[p]), static_cast<u32>(count)};
        }
    }
}

template <int WORDS> static __device__ __forceinline__ Tuple<WORDS> load_row(const Rows &rows, u64 position) {
    Tuple<WORDS> tuple;
    const Tuple<WORDS> *from = tuple_at<const Tuple<WORDS>>(rows, position);
    FARHOLD_UNROLL for (u32 v = 0; v < Tuple<WORDS>::VECTORS; v++) tuple.vector[v] = load_once(&from->vector[v]);
    return tuple;
}

// One round over the probe side. Every lane walks its matches, the warp together, so that rows are written side by
// side. Returns whether there was room for the warp's rows.
template <int WORDS, bool MATERIALIZE, class Start, class Find>
static __device__ __forceinline__ bool probe(const JoinArguments &arguments, const JoinTask &task, const Tuple<WORDS> *build, Sums &sums, Start &&start, Find &&find) {
    const RowWriter writer = {arguments.rows, arguments.rows_cursor, arguments.rows_capacity};
    for (u32 base = warp_of_thread() * WARP_THREADS; base < task.probe_count; base += FARHOLD_THREADS) {
        const u32 i = base + lane_of_thread();
        const bool has_tuple = i < task.probe_count;
        Tuple<WORDS> tuple = {};
        u32 cursor = 0;
        if (has_tuple) {
            tuple = load_row<WORDS>(arguments.probe, task.probe_begin + i);
            cursor = start(tuple.key());
        }
        u32 match = has_tuple ? find(tuple.key(), cursor) : NONE;
        while (__any_sync(FULL_WARP, match != NONE)) {
            if (match != NONE) sums.add<WORDS>(build[match], tuple);
            if (MATERIALIZE && !writer.add<WORDS>(match != NONE, build[match == NONE ? 0 : match], tuple)) return false;
            if (match != NONE) match = find(tuple.key(), cursor);
        }
    }
    return true;
}

// Shared memory: Perfect table_tuples * sizeof(Tuple) + ceil(table_tuples / 32) * 4; Linear table_tuples * sizeof(Tuple) + table_slots * 4;
// Chaining table_tuples * (sizeof(Tuple) + 4) + table_slots * 4; and 16 more, in front, for the task's number.
template <int WORDS, template <int> class Scheme, bool MATERIALIZE>
static __device__ __forceinline__ void join_partitions(const JoinArguments &arguments) {
    u32 *task_number = reinterpret_cast<u32 *>(shared_memory());
    const Scheme<WORDS> table = {TableMemory<WORDS>(shared_memory() + 16, arguments.table_tuples), arguments};
    const u32 task_count = *at_address<const u32>(arguments.task_count);
    Sums sums;
    bool has_room = true; // of the warp; one without room takes part in the block's tables only
    for (;;) {
        if (FARHOLD_THREAD == 0) *task_number = has_room ? relaxed_add(at_address<u32>(arguments.next_task), 1u) : task_count;
        __syncthreads();
        const u32 number = *task_number;
        __syncthreads();
        if (number >= task_count) break;
        const JoinTask task = at_address<const JoinTask>(arguments.tasks)[number];
        if constexpr (Scheme<WORDS>::IS_PERFECT) {
            for (u64 window = 0; window < arguments.table_slots; window += arguments.table_tuples) {
                table.clear();
                __syncthreads();
                for (u32 i = FARHOLD_THREAD; i < task.build_count; i += FARHOLD_THREADS)
                    if (!table.insert(load_row<WORDS>(arguments.build, task.build_begin + i), window)) sums.refused++;
                __syncthreads();
                if (has_room)
                    has_room = probe<WORDS, MATERIALIZE>(arguments, task, table.memory.tuples, sums, [](u64) { return 0u; },
                                                         [&](u64 key, u32 &cursor) { return cursor++ == 0 ? table.find(key, window) : NONE; });
                __syncthreads();
            }
        } else {
            for (u32 chunk = 0; chunk < task.build_count; chunk += arguments.table_tuples) {
                const u32 left = task.build_count - chunk, count = left < arguments.table_tuples ? left : arguments.table_tuples;
                table.clear();
                for (u32 i = FARHOLD_THREAD; i < count; i += FARHOLD_THREADS)
                    table.memory.tuples[i] = load_row<WORDS>(arguments.build, task.build_begin + chunk + i);
                __syncthreads();
                for (u32 i = FARHOLD_THREAD; i < count; i += FARHOLD_THREADS) table.insert(i);
                if (!is_planted(Planted::NoBarrierJoin)) __syncthreads();
                if (has_room)
                    has_room = probe<WORDS, MATERIALIZE>(arguments, task, table.memory.tuples, sums, [&](u64 key) { return table.start(key); },
                                                         [&](u64 key, u32 &cursor) { return table.find(key, cursor); });
                __syncthreads();
            }
        }
    }
    sums.deliver(arguments.aggregate);
}
