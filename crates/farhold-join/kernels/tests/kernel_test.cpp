// Runs every partitioner, over columns and rows, and every join and table kernel in the emulation, and compares with
// plain loops over the input.
//
//   kernel_test [seeds]      all fan-outs 2..2048, tails, pages, several launches; exits with 1 at the first difference
//   kernel_test race [n]     smaller, for a build with -fsanitize=thread; with the n-th planted mistake, which must not pass
#define SIMT_IMPLEMENTATION
#include "../all.cuh"

#include <algorithm>
#include <map>
#include <string>

namespace {

uint64_t next_random(uint64_t &state) {
    state += 0x9e3779b97f4a7c15ull;
    uint64_t z = state;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

[[noreturn]] void different(const std::string &what) {
    fprintf(stderr, "kernel_test: %s\n", what.c_str());
    exit(1);
}

template <class T> u64 address(const std::vector<T> &v) { return reinterpret_cast<u64>(v.data()); }

enum Kind { STANDARD, LINEAR, SHARED, HIERARCHICAL };
const char *const NAMES[] = {"standard", "linear", "shared", "hierarchical"};

struct Case {
    Kind kind;
    u32 bits;
    u64 count;
    u32 threads, blocks, launches;
    bool paged;
    bool skewed;
    uint64_t seed;
    bool from_rows = false; // SHARED only: the second pass
    std::string name() const {
        char text[200];
        snprintf(text, sizeof text, "%s: fan-out %u, %llu tuples, %u blocks of %u, %u launches%s%s%s, seed %llu", NAMES[kind], 1u << bits,
                 count, blocks, threads, launches, paged ? ", paged" : "", skewed ? ", skewed" : "", from_rows ? ", from rows" : "",
                 (unsigned long long)seed);
        return text;
    }
};

u32 power_of_two_below(u64 n) {
    u32 p = 1;
    while (u64(p) * 2 <= n) p *= 2;
    return p;
}

// Partitions columns, or rows in pages. Checks that every tuple lies once, whole, in its partition, and that nothing
// lies elsewhere.
template <int WORDS> void check_partitioner(const Case &c) {
    using T = Tuple<WORDS>;
    uint64_t random = c.seed * 977 + c.bits;
    std::vector<u64> keys(c.count), payloads(c.count * WORDS);
    for (u64 i = 0; i < c.count; i++) {
        keys[i] = c.skewed && next_random(random) % 4 ? 7 : next_random(random);
        for (int w = 0; w < WORDS; w++) payloads[w * c.count + i] = i * 31 + w;
    }
    const u32 partitions = 1u << c.bits;
    Radix radix = {};
    radix.bits = c.bits;
    radix.shift = 5;

    HistogramArguments histogram_arguments = {};
    Source source = {};
    source.keys = address(keys);
    source.payloads = address(payloads);
    source.payload_stride = c.count;
    source.count = c.count;
    // As the first pass leaves rows: in pages that lie anywhere, beginning somewhere in the first of them.
    const u32 page_shift = 7;
    const u64 skipped = c.from_rows ? 37 : 0;
    std::vector<T> input(c.from_rows ? (((c.count + skipped) >> page_shift) + 1) << page_shift : 0);
    std::vector<u64> input_pages(input.size() >> page_shift);
    for (size_t i = 0; i < input_pages.size(); i++)
        input_pages[i] = address(input) + (input_pages.size() - 1 - i) * (sizeof(T) << page_shift);
    if (c.from_rows) {
        source = {};
        source.rows = {0, address(input_pages), page_shift, 0};
        source.first = skipped;
        source.count = c.count;
        for (u64 i = 0; i < c.count; i++) {
            T *t = tuple_at<T>(source.rows, skipped + i);
            t->set(0, keys[i]);
            for (int w = 0; w < WORDS; w++) t->set(w + 1, payloads[w * c.count + i]);
        }
    }
    std::vector<u64> counts(partitions), begins(partitions + 1), fronts(partitions), backs(partitions);
    histogram_arguments.source = source;
    histogram_arguments.radix = radix;
    histogram_arguments.counts = address(counts);
    histogram_arguments.replicas = std::min(c.threads / 32, 16384 / partitions);
    simt::launch(c.blocks, c.threads, size_t(histogram_arguments.replicas) * partitions * 4, c.seed, 2,
                 [=] {
                     if (c.from_rows) histogram<WORDS, InRows>(histogram_arguments);
                     else histogram<WORDS, Columns>(histogram_arguments);
                 });
    std::vector<u64> expected(partitions);
    for (u64 key : keys) expected[mix(key) >> 5 & (partitions - 1)]++;
    if (expected != counts) different(c.name() + ": histogram");

    const u32 align = TRANSACTION_TUPLES<WORDS>;
    const PrefixSumArguments prefix = {address(counts), address(begins), address(fronts), address(backs), partitions, align};
    simt::launch(1, c.threads, size_t(c.threads) * 8, c.seed, 1, [=] { place_partitions(prefix); });
    u64 at = 0;
    for (u32 p = 0; p < partitions; at += (counts[p] + align - 1) / align * align, p++)
        if (begins[p] != at || fronts[p] != at || backs[p] != at + counts[p]) different(c.name() + ": prefix sum");
    if (begins[partitions] != at) different(c.name() + ": end of the prefix sum");

    // The output, with room for one page more than needed, all of it marked.
    std::vector<T> memory(((at >> page_shift) + 2) << page_shift);
    const u64 UNTOUCHED = 0xfeedfeedfeedfeedull;
    for (T &t : memory)
        for (int w = 0; w <= WORDS; w++) t.set(w, UNTOUCHED);
    std::vector<u64> pages(memory.size() >> page_shift);
    for (size_t i = 0; i < pages.size(); i++) // in another order than the positions
        pages[i] = address(memory) + (pages.size() - 1 - i) * (sizeof(T) << page_shift);
    PartitionArguments arguments = {};
    arguments.radix = radix;
    arguments.out.base = address(memory);
    arguments.out.pages = c.paged ? address(pages) : 0;
    arguments.out.page_shift = page_shift;
    arguments.fronts = address(fronts);
    arguments.backs = address(backs);
    const u32 per_partition = c.kind == SHARED ? 8 : 12;
    const u64 room = (160u << 10) / partitions > per_partition ? (160u << 10) / partitions - per_partition : 0;
    arguments.buffer_tuples = std::min(c.seed % 2 ? 64u : 16u, power_of_two_below(std::max<u64>(1, room / sizeof(T))));
    arguments.second_level_tuples = std::max(c.seed % 3 ? 32u : 64u, arguments.buffer_tuples);
    const u64 second_buffers = u64(c.blocks) * (partitions + c.threads / 32);
    std::vector<T> second(c.kind == HIERARCHICAL ? second_buffers * arguments.second_level_tuples : 0);
    std::vector<u32> state(second_buffers);
    arguments.second_level = address(second);
    arguments.second_level_state = address(state);
    size_t shared_bytes = 0;
    if (c.kind == LINEAR) shared_bytes = size_t(LINEAR_TUPLES_PER_THREAD<WORDS>) * c.threads * sizeof(T) + partitions * 16 + 16;
    if (c.kind >= SHARED) shared_bytes = size_t(partitions) * (arguments.buffer_tuples * sizeof(T) + per_partition);
    for (u32 launch = 0; launch < c.launches; launch++) {
        const u64 begin = c.count * launch / c.launches, end = c.count * (launch + 1) / c.launches;
        arguments.source = source;
        if (!c.from_rows) {
            arguments.source.keys += begin * 8;
            arguments.source.payloads += begin * 8;
        }
        arguments.source.first = skipped + begin;
        arguments.source.count = end - begin;
        arguments.resume = launch > 0;
        arguments.keep = launch + 1 < c.launches;
        simt::launch(c.blocks, c.threads, shared_bytes, c.seed + launch, 2, [=] {
            if (c.kind == STANDARD) partition_standard<WORDS, Columns>(arguments);
            if (c.kind == LINEAR) partition_linear<WORDS, Columns>(arguments);
            if (c.kind == SHARED && c.from_rows) partition_shared<WORDS, InRows>(arguments);
            if (c.kind == SHARED && !c.from_rows) partition_shared<WORDS, Columns>(arguments);
            if (c.kind == HIERARCHICAL) partition_hierarchical<WORDS, Columns>(arguments);
        });
    }

    std::vector<char> seen(c.count);
    u64 touched = 0;
    for (const T &t : memory) touched += t.key() != UNTOUCHED || t.payload(0) != UNTOUCHED;
    if (touched != c.count) different(c.name() + ": tuples lost or written elsewhere");
    for (u32 p = 0; p < partitions; p++) {
        for (u64 position = begins[p]; position < begins[p] + counts[p]; position++) {
            const T &t = *tuple_at<T>(arguments.out, position);
            const u64 row = t.payload(0) / 31;
            if (row >= c.count || seen[row]++ || t.key() != keys[row] || (mix(t.key()) >> 5 & (partitions - 1)) != p)
                different(c.name() + ": a tuple is wrong, twice, or in a wrong partition");
            for (int w = 0; w < WORDS; w++)
                if (t.payload(w) != row * 31 + w) different(c.name() + ": a payload word is wrong");
        }
    }
}

struct JoinCase {
    int scheme; // 0 chaining, 1 linear, 2 perfect
    u32 build, probe, table_tuples, threads, blocks;
    uint64_t seed;
};

// Joins two relations that are already partitioned (into 8, on the host) and compares sums and rows with a multimap.
template <int WORDS> void check_join(const JoinCase &c) {
    using T = Tuple<WORDS>;
    uint64_t random = c.seed * 131 + 5;
    const bool dense = c.scheme == 2;
    const u64 distinct = dense ? c.build : std::max(1u, c.build / 3);
    auto tuple = [&](u64 key, u64 id) {
        T t = {};
        t.set(0, key);
        for (int w = 0; w < WORDS; w++) t.set(w + 1, id * 1000 + w);
        return t;
    };
    Radix radix = {};
    radix.bits = 2;
    radix.shift = 1;
    radix.is_dense = dense;
    radix.key_min = dense ? 100 : 0;
    const u32 partitions = 8; // three bits are used up: shift + bits
    std::vector<std::vector<T>> build(partitions), probe(partitions);
    std::multimap<u64, T> table;
    auto place = [&](u64 key) { return u32(digest_of(radix, key)) & 7; };
    for (u32 i = 0; i < c.build; i++) {
        // The keys include the largest word, which marks empty slots elsewhere.
        const u64 key = dense ? 100 + i : i % 50 == 3 ? ~0ull : next_random(random) % distinct;
        const T t = tuple(key, i);
        build[place(key)].push_back(t);
        table.emplace(key, t);
    }
    for (u32 i = 0; i < c.probe; i++) {
        const u64 key = i % 40 == 5 ? ~0ull : (dense ? 90 : 0) + next_random(random) % (distinct + distinct / 4 + 12);
        probe[place(key)].push_back(tuple(key, i));
    }
    u64 matches = 0, build_sum = 0, probe_sum = 0;
    std::vector<std::vector<u64>> rows;
    std::vector<T> build_rows, probe_rows;
    std::vector<u64> build_begins, build_counts, probe_begins, probe_counts;
    for (u32 p = 0; p < partitions; p++) {
        build_begins.push_back(build_rows.size());
        build_counts.push_back(build[p].size());
        probe_begins.push_back(probe_rows.size());
        probe_counts.push_back(probe[p].size());
        build_rows.insert(build_rows.end(), build[p].begin(), build[p].end());
        probe_rows.insert(probe_rows.end(), probe[p].begin(), probe[p].end());
        for (const T &s : probe[p]) {
            for (auto [r, end] = table.equal_range(s.key()); r != end; ++r) {
                matches++;
                build_sum += payload_sum(r->second);
                probe_sum += payload_sum(s);
                std::vector<u64> row;
                for (int w = 0; w < WORDS; w++) row.push_back(r->second.payload(w));
                for (int w = 0; w < WORDS; w++) row.push_back(s.payload(w));
                rows.push_back(row);
            }
        }
    }
    std::vector<JoinTask> tasks(partitions + c.probe);
    u32 counters[2] = {};
    const ScheduleArguments scheduling = {address(build_begins), address(build_counts), address(probe_begins), address(probe_counts),
                                          address(tasks), reinterpret_cast<u64>(&counters[0]), partitions, u32(tasks.size()), c.table_tuples, 37};
    simt::launch(2, c.threads, 0, c.seed, 2, [=] { make_tasks(scheduling); });
    JoinAggregate sums = {};
    std::vector<u64> out(matches * 2 * WORDS + 2);
    u64 cursor = 0;
    JoinArguments arguments = {};
    arguments.build.base = address(build_rows);
    arguments.probe.base = address(probe_rows);
    arguments.tasks = address(tasks);
    arguments.task_count = reinterpret_cast<u64>(&counters[0]);
    arguments.next_task = reinterpret_cast<u64>(&counters[1]);
    arguments.aggregate = reinterpret_cast<u64>(&sums);
    arguments.rows = (address(out) + 15) / 16 * 16;
    arguments.rows_cursor = reinterpret_cast<u64>(&cursor);
    arguments.rows_capacity = matches;
    arguments.radix = radix;
    arguments.table_tuples = c.table_tuples;
    arguments.table_slots = c.scheme == 2 ? (c.build + 7) / 8 : c.scheme == 1 ? power_of_two_below(c.table_tuples * 4 - 1) : 16;
    size_t shared_bytes = 16 + c.table_tuples * sizeof(T);
    if (c.scheme == 0) shared_bytes += c.table_tuples * 4 + arguments.table_slots * 4;
    if (c.scheme == 1) shared_bytes += arguments.table_slots * 4;
    if (c.scheme == 2) shared_bytes += (c.table_tuples + 31) / 32 * 4;
    auto join = [&] {
        simt::launch(c.blocks, c.threads, shared_bytes, c.seed, 2, [=] {
            if (c.scheme == 0) join_partitions<WORDS, Chaining, true>(arguments);
            if (c.scheme == 1) join_partitions<WORDS, Linear, true>(arguments);
            if (c.scheme == 2) join_partitions<WORDS, Perfect, true>(arguments);
        });
    };
    join();
    const std::string name = "join scheme " + std::to_string(c.scheme) + " seed " + std::to_string(c.seed) + " build " + std::to_string(c.build);
    if (sums.refused != 0) different(name + ": refused keys");
    if (sums.matches != matches || sums.build_sum != build_sum || sums.probe_sum != probe_sum) different(name + ": sums");
    if (cursor != matches) different(name + ": rows");
    std::vector<std::vector<u64>> found;
    for (u64 i = 0; i < matches; i++) {
        const u64 *row = at_address<const u64>(arguments.rows) + i * 2 * WORDS;
        found.emplace_back(row, row + 2 * WORDS);
    }
    std::sort(found.begin(), found.end());
    std::sort(rows.begin(), rows.end());
    if (found != rows) different(name + ": the rows differ");

    // Rows that have no room are not counted on: each warp stops at the first ones.
    cursor = counters[1] = 0;
    arguments.rows_capacity = matches / 10;
    join();
    const u64 cursor_max = arguments.rows_capacity + c.blocks * c.threads;
    if (matches > 0 && (cursor <= arguments.rows_capacity || cursor > cursor_max)) different(name + ": the cursor of rows without room");
}

struct TableCase {
    bool perfect;
    u32 build, probe, threads, blocks;
    uint64_t seed;
};

// A table in device memory, built and probed in two launches each; sums and rows against a multimap.
template <int WORDS> void check_table(const TableCase &c) {
    uint64_t random = c.seed * 733 + 11;
    const u64 key_min = 100, slots = c.perfect ? c.build * 2 + 1 : power_of_two_below(std::max(1u, c.build) * 4 - 1);
    std::vector<u64> keys(c.build), probe_keys(c.probe), payloads(u64(c.build) * WORDS), probe_payloads(u64(c.probe) * WORDS);
    std::multimap<u64, u32> table;
    u64 spares = 0;
    for (u32 i = 0; i < c.build; i++) {
        // Every other slot of an interval; or keys of which some occur several times, and some are the mark of an empty
        // slot.
        keys[i] = c.perfect ? key_min + 2 * ((u64(i) * 7919 + c.seed) % c.build) : i % 50 == 3 ? ~0ull : next_random(random) % (c.build / 2 + 1);
        spares += keys[i] == ~0ull;
        table.emplace(keys[i], i);
    }
    for (u32 i = 0; i < c.probe; i++) probe_keys[i] = i % 40 == 5 ? ~0ull : (c.perfect ? key_min - 10 : 0) + next_random(random) % (2 * u64(c.build) + 20);
    for (int w = 0; w < WORDS; w++) {
        for (u32 i = 0; i < c.build; i++) payloads[u64(w) * c.build + i] = i * 1000 + w;
        for (u32 i = 0; i < c.probe; i++) probe_payloads[u64(w) * c.probe + i] = i * 999 + w;
    }
    JoinAggregate expected = {};
    std::vector<std::vector<u64>> rows;
    for (u32 p = 0; p < c.probe; p++)
        for (auto [b, end] = table.equal_range(probe_keys[p]); b != end; ++b) {
            std::vector<u64> row;
            for (int w = 0; w < WORDS; w++) row.push_back(payloads[u64(w) * c.build + b->second]);
            for (int w = 0; w < WORDS; w++) row.push_back(probe_payloads[u64(w) * c.probe + p]);
            for (int w = 0; w < WORDS; w++) expected.build_sum += row[w], expected.probe_sum += row[WORDS + w];
            expected.matches++;
            rows.push_back(row);
        }
    std::sort(rows.begin(), rows.end());

    std::vector<u64> slot_keys(slots, ~0ull), slot_payloads(slots * WORDS), spare(spares * WORDS + 1);
    std::vector<u32> present((slots + 31) / 32);
    JoinAggregate sums = {};
    u64 spare_count = 0, cursor = 0;
    std::vector<u64> out(rows.size() * 2 * WORDS + 2);
    TableArguments arguments = {};
    arguments.radix.key_min = key_min;
    arguments.keys = c.perfect ? reinterpret_cast<u64>(present.data()) : address(slot_keys);
    arguments.payloads = address(slot_payloads);
    arguments.slots = slots;
    arguments.spare = address(spare);
    arguments.spare_count = reinterpret_cast<u64>(&spare_count);
    arguments.spare_capacity = spares;
    arguments.aggregate = reinterpret_cast<u64>(&sums);
    const std::string name = std::string(c.perfect ? "perfect" : "linear") + " table, seed " + std::to_string(c.seed) + ", build " + std::to_string(c.build);
    auto in_two = [&](const std::vector<u64> &keys, const std::vector<u64> &payloads, auto &&kernel) {
        for (u64 launch = 0; launch < 2; launch++) {
            const u64 begin = keys.size() * launch / 2, end = keys.size() * (launch + 1) / 2;
            TableArguments part = arguments;
            part.source = {};
            part.source.keys = address(keys) + begin * 8;
            part.source.payloads = address(payloads) + begin * 8;
            part.source.payload_stride = keys.size();
            part.source.first = begin;
            part.source.count = end - begin;
            simt::launch(c.blocks, c.threads, 0, c.seed + launch, 2, [=] { kernel(part); });
        }
    };
    in_two(keys, payloads, [perfect = c.perfect](const TableArguments &part) {
        if (perfect) table_build_perfect<WORDS>(part);
        else table_build_linear<WORDS>(part);
    });
    if (sums.refused != 0 || spare_count != spares) different(name + ": refused keys");
    for (const bool materialize : {false, true}) {
        sums = {};
        arguments.rows = materialize ? (address(out) + 15) / 16 * 16 : 0;
        arguments.rows_cursor = reinterpret_cast<u64>(&cursor);
        arguments.rows_capacity = materialize ? rows.size() : 0;
        in_two(probe_keys, probe_payloads, [perfect = c.perfect, materialize](const TableArguments &part) {
            if (perfect && materialize) table_probe_perfect<WORDS, true>(part);
            if (perfect && !materialize) table_probe_perfect<WORDS, false>(part);
            if (!perfect && materialize) table_probe_linear<WORDS, true>(part);
            if (!perfect && !materialize) table_probe_linear<WORDS, false>(part);
        });
        if (sums.matches != expected.matches || sums.build_sum != expected.build_sum || sums.probe_sum != expected.probe_sum)
            different(name + ": sums");
        if (cursor != (materialize ? rows.size() : 0)) different(name + ": rows");
    }
    std::vector<std::vector<u64>> found;
    for (u64 i = 0; i < rows.size(); i++) {
        const u64 *row = at_address<const u64>(arguments.rows) + i * 2 * WORDS;
        found.emplace_back(row, row + 2 * WORDS);
    }
    std::sort(found.begin(), found.end());
    if (found != rows) different(name + ": the rows differ");

    // Rows that have no room are not counted on: each warp of a launch stops at the first ones.
    cursor = 0;
    arguments.rows_capacity = rows.size() / 10;
    in_two(probe_keys, probe_payloads, [perfect = c.perfect](const TableArguments &part) {
        if (perfect) table_probe_perfect<WORDS, true>(part);
        else table_probe_linear<WORDS, true>(part);
    });
    const u64 cursor_max = arguments.rows_capacity + 2 * c.blocks * c.threads;
    if (!rows.empty() && (cursor <= arguments.rows_capacity || cursor > cursor_max)) different(name + ": the cursor of rows without room");

    // A key that is present already gets no second slot; open slots hold only a limited number of equal keys.
    if (c.build < 2) return;
    std::vector<u64> equal(c.perfect ? 2 : STEPS_MAX + 50, keys[0] == ~0ull ? 1 : keys[0]), ids(equal.size() * WORDS);
    std::vector<u64> fresh_keys(2048, ~0ull), fresh_payloads(2048 * WORDS);
    if (!c.perfect) arguments.keys = address(fresh_keys), arguments.payloads = address(fresh_payloads), arguments.slots = 2048;
    sums = {};
    in_two(equal, ids, [perfect = c.perfect](const TableArguments &part) {
        if (perfect) table_build_perfect<WORDS>(part);
        else table_build_linear<WORDS>(part);
    });
    if (sums.refused == 0) different(name + ": equal keys are not refused");
}

void race() {
    for (int kind = 0; kind < 4; kind++)
        for (u32 bits : {1, 4})
            check_partitioner<1>({Kind(kind), bits, 3001, 128, 2, 2, false, bits == 1, 1});
    check_partitioner<1>({SHARED, 4, 3001, 128, 2, 2, false, false, 1, true});
    for (int scheme = 0; scheme < 3; scheme++) check_join<1>({scheme, 300, 500, 32, 64, 2, 1});
    for (bool perfect : {false, true}) check_table<1>({perfect, 400, 600, 64, 4, 1});
}

void everything(uint64_t seeds) {
    u32 cases = 0;
    for (uint64_t seed = 1; seed <= seeds; seed++)
        for (int kind = 0; kind < 4; kind++) {
            // Every fan-out, and tails of all kinds: nothing, less than a warp, one tuple more or less than a block
            // takes.
            for (u32 bits = 1; bits <= 11; bits++, cases++)
                check_partitioner<1>({Kind(kind), bits, 6000 + 13 * bits + seed, 64 + 64 * (bits % 3), 1 + bits % 4, 1 + bits % 3, bits % 2 == 0, bits % 5 == 4, seed});
            for (u64 count : {0, 1, 31, 33, 127, 129, 1023}) {
                check_partitioner<1>({Kind(kind), 4, count, 128, 3, 1 + u32(count % 2), count % 3 == 1, false, seed});
                cases++;
            }
            check_partitioner<3>({Kind(kind), 6, 2503, 96, 2, 2, true, false, seed});
            check_partitioner<7>({Kind(kind), 3, 1501, 64, 2, 2, false, true, seed});
            cases += 2;
        }
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        for (u32 bits = 1; bits <= 11; bits++, cases++)
            check_partitioner<1>({SHARED, bits, 6000 + 13 * bits + seed, 64 + 64 * (bits % 3), 1 + bits % 4, 1 + bits % 3, bits % 2 == 0, bits % 5 == 4, seed, true});
        for (u64 count : {0, 1, 31, 33, 127, 129, 1023}) {
            check_partitioner<1>({SHARED, 4, count, 128, 3, 1 + u32(count % 2), count % 3 == 1, false, seed, true});
            cases++;
        }
        check_partitioner<3>({SHARED, 6, 2503, 96, 2, 2, true, false, seed, true});
        check_partitioner<7>({SHARED, 3, 1501, 64, 2, 2, false, true, seed, true});
        cases += 2;
        for (bool perfect : {false, true})
            for (u32 build : {0, 1, 40, 701}) {
                check_table<1>({perfect, build, 900, 96, 3, seed});
                check_table<3>({perfect, build, 300, 64, 2, seed});
                check_table<7>({perfect, build, 150, 64, 2, seed});
                cases += 3;
            }
    }
    for (uint64_t seed = 1; seed <= seeds; seed++)
        for (int scheme = 0; scheme < 3; scheme++)
            for (u32 build : {0, 1, 40, 700}) {
                check_join<1>({scheme, build, 900, 64, 96, 3, seed});
                check_join<3>({scheme, build, 300, 16, 64, 2, seed});
                cases += 2;
            }
    printf("kernel_test: %u cases agree (emulation on the CPU)\n", cases);
}

} // namespace

int main(int count, char **arguments) {
    if (count > 1 && std::string(arguments[1]) == "race") {
        if (count > 2) planted = Planted(atoi(arguments[2]));
        race();
        printf("kernel_test: no race found (emulation on the CPU)\n");
    } else {
        everything(count > 1 ? strtoull(arguments[1], nullptr, 10) : 2);
    }
}
