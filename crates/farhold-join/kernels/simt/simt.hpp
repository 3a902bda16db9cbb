// CUDA C++ kernels on the CPU, for tests: an emulation of the programming model, not of a GPU's speed or memory order.
//
//   launch ── one OS thread a block in flight ── one fiber a CUDA thread ── a seeded scheduler picks the next fiber
//
// The idea: the host compiler compiles a kernel unchanged. A fiber runs until it meets a collective (a barrier, a
// ballot, a shuffle), an atomic (at random) or a spin, and yields there. A collective completes when every thread that
// its mask names has arrived with the same operation and the same mask. One that cannot complete is a deadlock, and
// ends the process with a list of the waiting threads and their places.
//
// What it catches: divergent collectives, missing barriers, shared memory beyond its end (a guard page), lost claims.
// Missing barriers are found under ThreadSanitizer, to which only barriers, `__syncwarp` and acquire or release atomics
// are announced as happens-before edges.
// What it does not model: relaxed hardware ordering beyond what ThreadSanitizer sees, asynchronous copies, time.
#pragma once
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include <sys/mman.h>

#if defined(__SANITIZE_THREAD__)
#define SIMT_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SIMT_TSAN 1
#endif
#endif

#ifdef SIMT_TSAN
// The scheduler itself switches stacks and is not instrumented; the fibers are announced as threads.
#define SIMT_OPAQUE __attribute__((no_sanitize("thread")))
extern "C" {
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned);
void __tsan_destroy_fiber(void *);
void __tsan_switch_to_fiber(void *, unsigned);
void __tsan_acquire(void *);
void __tsan_release(void *);
}
#else
#define SIMT_OPAQUE
inline void *__tsan_get_current_fiber() { return nullptr; }
inline void *__tsan_create_fiber(unsigned) { return nullptr; }
inline void __tsan_destroy_fiber(void *) {}
inline void __tsan_switch_to_fiber(void *, unsigned) {}
inline void __tsan_acquire(void *) {}
inline void __tsan_release(void *) {}
#endif

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
    dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

namespace simt {

constexpr size_t STACK_BYTES = 64 << 10;
constexpr size_t SHARED_BYTES_MAX = 227 << 10; // what a block of Hopper may ask for
constexpr int WARP = 32;

enum class State : uint8_t { Runnable, AtBarrier, InWarpCollective, Done };

enum class Operation : int { None, SyncWarp, Ballot, MatchAny, Shuffle, ReduceAdd };

struct Fiber {
    void *stack_pointer = nullptr;
    void *sanitizer = nullptr;
    State state = State::Runnable;
    unsigned thread = 0;
    // The collective that it waits in, and the result of that one.
    Operation operation = Operation::None;
    unsigned mask = 0;
    uint64_t input = 0;
    uint64_t inputs[WARP] = {};
    unsigned barriers_passed = 0;
    int predicate = 0;
};

struct Block {
    std::vector<Fiber> fibers;
    int current = 0;
    int size = 0;
    void *scheduler_stack_pointer = nullptr;
    void *scheduler_sanitizer = nullptr;
    uint64_t random = 1;
    dim3 index, dimension, grid;
    const std::function<void()> *body = nullptr;
    unsigned char *shared = nullptr;
    int barrier_count = 0;       // threads whose predicate held at the last barrier
    char barrier_tag[2] = {};    // one for odd, one for even barriers: a fast thread's next arrival orders nothing
    char end_tag = 0;            // its threads' ends, before the stacks and the shared memory are used again
    std::vector<char> warp_tag;
};

inline thread_local Block *block = nullptr;

// Saves the callee-saved registers and the stack pointer, and continues where `to` was saved (System V, x86-64).
extern "C" void simt_switch(void **from, void *to);
#ifdef SIMT_IMPLEMENTATION
__asm__(".text\n.globl simt_switch\n.type simt_switch,@function\nsimt_switch:\n"
        " push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
        " mov %rsp,(%rdi)\n mov %rsi,%rsp\n"
        " pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n"
        ".size simt_switch,.-simt_switch\n.section .note.GNU-stack,\"\",@progbits\n.text\n");
#endif

SIMT_OPAQUE inline uint64_t next_random() {
    uint64_t &r = block->random;
    r ^= r << 13;
    r ^= r >> 7;
    r ^= r << 17;
    return r;
}

SIMT_OPAQUE inline Fiber &self() { return block->fibers[block->current]; }

SIMT_OPAQUE inline void give_way() {
    Fiber &fiber = self();
    __tsan_switch_to_fiber(block->scheduler_sanitizer, 1); // 1: switching orders nothing
    simt_switch(&fiber.stack_pointer, block->scheduler_stack_pointer);
}

SIMT_OPAQUE inline void give_way_sometimes() {
    if ((next_random() & 7) == 0) give_way();
}

[[noreturn]] SIMT_OPAQUE inline void fail(const char *why) {
    fprintf(stderr, "simt: %s in block (%u,%u)\n", why, block->index.x, block->index.y);
    int shown = 0, done = 0;
    for (const Fiber &f : block->fibers) {
        done += f.state == State::Done;
        if (f.state == State::Runnable || f.state == State::Done || shown++ >= 40) continue;
        fprintf(stderr, "  thread %u: %s operation=%d mask=%08x\n", f.thread,
                f.state == State::AtBarrier ? "__syncthreads" : "warp collective", int(f.operation), f.mask);
    }
    fprintf(stderr, "  %d exited\n", done);
    abort();
}

SIMT_OPAQUE inline void fiber_main() {
    (*block->body)(); // what the launcher did before is ordered by the creation of the fiber
    __tsan_release(&block->end_tag);
    self().state = State::Done;
    give_way();
    abort();
}

// A barrier of the block; returns the number of threads that came with a true predicate.
SIMT_OPAQUE inline int barrier(int predicate) {
    Fiber &fiber = self();
    char *tag = &block->barrier_tag[fiber.barriers_passed & 1];
    fiber.barriers_passed++;
    fiber.state = State::AtBarrier;
    fiber.predicate = predicate != 0;
    __tsan_release(tag);
    give_way();
    __tsan_acquire(tag);
    return block->barrier_count;
}

// Waits for every lane that `mask` names, and then holds their inputs. Only `__syncwarp` orders memory, as in CUDA.
SIMT_OPAQUE inline Fiber &warp_collective(Operation operation, unsigned mask, uint64_t input) {
    Fiber &fiber = self();
    if (!(mask >> (block->current % WARP) & 1)) fail("the calling lane is not in its own mask");
    char *tag = &block->warp_tag[block->current / WARP];
    fiber.state = State::InWarpCollective;
    fiber.operation = operation;
    fiber.mask = mask;
    fiber.input = input;
    if (operation == Operation::SyncWarp) __tsan_release(tag);
    give_way();
    if (operation == Operation::SyncWarp) __tsan_acquire(tag);
    return fiber;
}

SIMT_OPAQUE inline bool complete_warp_collectives(int warp) {
    Block &b = *block;
    int begin = warp * WARP, end = begin + WARP < b.size ? begin + WARP : b.size;
    unsigned existing = end - begin == WARP ? ~0u : (1u << (end - begin)) - 1;
    bool any = false;
    for (int i = begin; i < end; i++) {
        Fiber &asking = b.fibers[i];
        if (asking.state != State::InWarpCollective) continue;
        unsigned mask = asking.mask & existing;
        bool all_here = true;
        for (int k = begin; k < end && all_here; k++) {
            if (!(mask >> (k - begin) & 1)) continue;
            Fiber &other = b.fibers[k];
            if (other.state == State::Done) {
                b.current = i;
                fail("a mask names a lane that has exited");
            }
            all_here = other.state == State::InWarpCollective && other.operation == asking.operation && other.mask == asking.mask;
        }
        if (!all_here) continue;
        uint64_t inputs[WARP] = {};
        for (int k = begin; k < end; k++) inputs[k - begin] = b.fibers[k].input;
        for (int k = begin; k < end; k++) {
            if (!(mask >> (k - begin) & 1)) continue;
            Fiber &other = b.fibers[k];
            memcpy(other.inputs, inputs, sizeof inputs);
            other.mask = mask;
            other.state = State::Runnable;
            any = true;
        }
    }
    return any;
}

SIMT_OPAQUE inline void complete_barrier() {
    block->barrier_count = 0;
    for (Fiber &f : block->fibers) {
        if (f.state != State::AtBarrier) continue;
        block->barrier_count += f.predicate;
        f.state = State::Runnable;
    }
}

SIMT_OPAQUE inline void run_block() {
    Block &b = *block;
    std::vector<int> runnable;
    for (;;) {
        runnable.clear();
        int at_barrier = 0, done = 0;
        for (int i = 0; i < b.size; i++) {
            State state = b.fibers[i].state;
            if (state == State::Runnable) runnable.push_back(i);
            at_barrier += state == State::AtBarrier;
            done += state == State::Done;
        }
        if (done == b.size) return;
        if (runnable.empty()) {
            bool progress = false;
            for (int w = 0; w * WARP < b.size; w++) progress |= complete_warp_collectives(w);
            if (progress) continue;
            if (at_barrier + done < b.size) fail("deadlock: a divergent barrier or warp collective");
            complete_barrier();
            continue;
        }
        // A random part of the runnable threads, beginning with a random one.
        size_t start = next_random() % runnable.size(), count = 1 + next_random() % runnable.size();
        for (size_t j = 0; j < count; j++) {
            int i = runnable[(start + j) % runnable.size()];
            if (b.fibers[i].state != State::Runnable) continue;
            b.current = i;
            __tsan_switch_to_fiber(b.fibers[i].sanitizer, 1);
            simt_switch(&b.scheduler_stack_pointer, b.fibers[i].stack_pointer);
            if (b.fibers[i].state == State::InWarpCollective) complete_warp_collectives(i / WARP);
        }
    }
}

inline void *must_map(size_t bytes) {
    void *at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
        perror("simt: mmap");
        abort();
    }
    return at;
}

// Stacks for this many fibers, kept for the next launch: otherwise a small kernel would spend its time on fresh pages.
struct Stacks {
    char *at = nullptr;
    size_t bytes = 0;
    ~Stacks() {
        if (at) munmap(at, bytes);
    }
};
inline char *stacks_of_this_thread(int fibers) {
    static thread_local Stacks stacks;
    if (stacks.bytes < STACK_BYTES * fibers) {
        if (stacks.at) munmap(stacks.at, stacks.bytes);
        stacks.bytes = STACK_BYTES * fibers;
        stacks.at = static_cast<char *>(must_map(stacks.bytes));
    }
    return stacks.at;
}

// Runs `body` once for every thread of every block. `os_threads` blocks are in flight at a time.
template <class Body>
void launch(dim3 grid, dim3 dimension, size_t shared_bytes, uint64_t seed, int os_threads, Body &&body) {
    if (shared_bytes > SHARED_BYTES_MAX) {
        fprintf(stderr, "simt: %zu bytes of shared memory asked for, %zu are there\n", shared_bytes, SHARED_BYTES_MAX);
        abort();
    }
    const std::function<void()> function = body;
    const unsigned blocks = grid.x * grid.y * grid.z;
    const int size = int(dimension.x * dimension.y * dimension.z);
    std::atomic<unsigned> next{0};
    auto worker = [&] {
        Block b;
        b.fibers.resize(size);
        b.size = size;
        b.warp_tag.resize((size + WARP - 1) / WARP);
        b.body = &function;
        b.dimension = dimension;
        b.grid = grid;
        char *stacks = stacks_of_this_thread(size);
        // Shared memory ends at a page without access rights.
        const size_t pages = (shared_bytes + 4095) / 4096 * 4096;
        unsigned char *shared = static_cast<unsigned char *>(must_map(pages + 4096));
        mprotect(shared + pages, 4096, PROT_NONE);
        b.shared = shared + (pages - shared_bytes) / 16 * 16;
        block = &b;
        for (unsigned number; (number = next.fetch_add(1)) < blocks;) {
            b.random = (seed * 0x9E3779B97F4A7C15ull) ^ ((number + 1) * 0xD1B54A32D192ED03ull);
            if (b.random == 0) b.random = 1;
            b.index = dim3(number % grid.x, number / grid.x % grid.y, number / grid.x / grid.y);
            b.scheduler_sanitizer = __tsan_get_current_fiber();
            memset(shared, 0xA5, pages); // shared memory starts undefined
            for (int i = 0; i < size; i++) {
                Fiber &f = b.fibers[i] = Fiber();
                f.thread = unsigned(i);
                void **top = reinterpret_cast<void **>(stacks + STACK_BYTES * (i + 1) - 16);
                *--top = nullptr;
                *--top = reinterpret_cast<void *>(fiber_main);
                for (int r = 0; r < 6; r++) *--top = nullptr;
                f.stack_pointer = top;
                f.sanitizer = __tsan_create_fiber(0);
            }
            run_block();
            __tsan_acquire(&b.end_tag);
            for (Fiber &f : b.fibers) __tsan_destroy_fiber(f.sanitizer);
        }
        block = nullptr;
        munmap(shared, pages + 4096);
    };
    if (os_threads == 1) return worker();
    std::vector<std::thread> threads;
    for (int i = 0; i < os_threads; i++) threads.emplace_back(worker);
    for (std::thread &t : threads) t.join();
}

SIMT_OPAQUE inline unsigned thread_x() { return block->fibers[block->current].thread; }
SIMT_OPAQUE inline unsigned block_x() { return block->index.x; }
SIMT_OPAQUE inline unsigned block_dimension_x() { return block->dimension.x; }
SIMT_OPAQUE inline unsigned grid_dimension_x() { return block->grid.x; }
SIMT_OPAQUE inline unsigned char *shared_memory() { return block->shared; }

template <class T> SIMT_OPAQUE inline uint64_t bits_of(T value) {
    static_assert(sizeof(T) <= 8);
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    return bits;
}

template <class T> SIMT_OPAQUE inline T shuffle(unsigned mask, T value, int from) {
    Fiber &f = warp_collective(Operation::Shuffle, mask, bits_of(value));
    if (from < 0 || from >= WARP || !(f.mask >> from & 1)) fail("a shuffle reads a lane that takes no part");
    memcpy(&value, &f.inputs[from], sizeof value);
    return value;
}

} // namespace simt

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __restrict__ __restrict

inline void __syncthreads() { simt::barrier(0); }
inline int __syncthreads_or(int p) { return simt::barrier(p) != 0; }
inline int __syncthreads_count(int p) { return simt::barrier(p); }
inline void __syncwarp(unsigned mask = ~0u) { simt::warp_collective(simt::Operation::SyncWarp, mask, 0); }

SIMT_OPAQUE inline unsigned __ballot_sync(unsigned mask, int p) {
    simt::Fiber &f = simt::warp_collective(simt::Operation::Ballot, mask, p != 0);
    unsigned result = 0;
    for (int i = 0; i < simt::WARP; i++)
        if (f.mask >> i & 1) result |= unsigned(f.inputs[i] != 0) << i;
    return result;
}
inline int __any_sync(unsigned mask, int p) { return __ballot_sync(mask, p) != 0; }

template <class T> SIMT_OPAQUE inline unsigned __match_any_sync(unsigned mask, T value) {
    uint64_t mine = simt::bits_of(value);
    simt::Fiber &f = simt::warp_collective(simt::Operation::MatchAny, mask, mine);
    unsigned result = 0;
    for (int i = 0; i < simt::WARP; i++)
        if ((f.mask >> i & 1) && f.inputs[i] == mine) result |= 1u << i;
    return result;
}

template <class T> inline T __shfl_sync(unsigned mask, T value, int from) { return simt::shuffle(mask, value, from & 31); }
template <class T> inline T __shfl_up_sync(unsigned mask, T value, unsigned by) {
    int lane = int(simt::thread_x() & 31);
    return simt::shuffle(mask, value, lane < int(by) ? lane : lane - int(by));
}
template <class T> inline T __shfl_xor_sync(unsigned mask, T value, int with) {
    return simt::shuffle(mask, value, int(simt::thread_x() & 31) ^ with);
}

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
