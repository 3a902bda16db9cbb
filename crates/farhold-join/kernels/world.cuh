// One source for two worlds: CUDA (nvcc, NVRTC) and the emulation on the CPU (`simt/simt.hpp`). Kernels include this
// file and use nothing else of either world, so that the tests run what the GPU runs.
#pragma once

#ifdef __CUDACC__

#define FARHOLD_THREAD threadIdx.x
#define FARHOLD_BLOCK blockIdx.x
#define FARHOLD_THREADS blockDim.x
#define FARHOLD_BLOCKS gridDim.x
#define FARHOLD_UNROLL _Pragma("unroll")

#else

#include "simt/simt.hpp"
#define FARHOLD_THREAD simt::thread_x()
#define FARHOLD_BLOCK simt::block_x()
#define FARHOLD_THREADS simt::block_dimension_x()
#define FARHOLD_BLOCKS simt::grid_dimension_x()
#define FARHOLD_UNROLL

#endif

#include "arguments.h"

constexpr u32 WARP_THREADS = 32;
constexpr u32 FULL_WARP = 0xffffffffu;
// The bytes of one memory transaction over the interconnect, and its alignment (paper, section 3.4.1).
constexpr u32 TRANSACTION_BYTES = 128;

static __device__ __forceinline__ u32 lane_of_thread() { return FARHOLD_THREAD & (WARP_THREADS - 1); }
static __device__ __forceinline__ u32 warp_of_thread() { return FARHOLD_THREAD / WARP_THREADS; }
static __device__ __forceinline__ u32 warps_of_block() { return FARHOLD_THREADS / WARP_THREADS; }

// 16 bytes that move as one load or store.
struct alignas(16) Vector {
    u64 x, y;
};

#ifdef __CUDACC__

extern __shared__ Vector farhold_shared[];
static __device__ __forceinline__ unsigned char *shared_memory() { return reinterpret_cast<unsigned char *>(farhold_shared); }

// Words in shared memory with which threads of a block claim slots. The memory orders are those of C++ at block scope.
static __device__ __forceinline__ u32 claim_add(u32 *word, u32 by) {
    u32 old;
    u32 at = static_cast<u32>(__cvta_generic_to_shared(word));
    asm volatile("atom.acquire.cta.shared.add.u32 %0, [%1], %2;" : "=r"(old) : "r"(at), "r"(by) : "memory");
    return old;
}
static __device__ __forceinline__ void publish_add(u32 *word, u32 by) {
    u32 at = static_cast<u32>(__cvta_generic_to_shared(word));
    asm volatile("red.release.cta.shared.add.u32 [%0], %1;" ::"r"(at), "r"(by) : "memory");
}
static __device__ __forceinline__ u32 acquire_load(const u32 *word) {
    u32 value;
    u32 at = static_cast<u32>(__cvta_generic_to_shared(word));
    asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(value) : "r"(at) : "memory");
    return value;
}
static __device__ __forceinline__ void release_store(u32 *word, u32 value) {
    u32 at = static_cast<u32>(__cvta_generic_to_shared(word));
    asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(at), "r"(value) : "memory");
}
static __device__ __forceinline__ u32 relaxed_add(u32 *word, u32 by) { return atomicAdd(word, by); }
static __device__ __forceinline__ u64 relaxed_add(u64 *word, u64 by) { return atomicAdd(word, by); }
static __device__ __forceinline__ u32 relaxed_or(u32 *word, u32 with) { return atomicOr(word, with); }
static __device__ __forceinline__ u32 relaxed_exchange(u32 *word, u32 value) { return atomicExch(word, value); }
static __device__ __forceinline__ u32 relaxed_compare_swap(u32 *word, u32 expected, u32 value) { return atomicCAS(word, expected, value); }
static __device__ __forceinline__ u64 relaxed_compare_swap(u64 *word, u64 expected, u64 value) { return atomicCAS(word, expected, value); }
static __device__ __forceinline__ void spin_pause() { __nanosleep(32); }

// Memory that is read or written once and so need not stay in a cache.
static __device__ __forceinline__ Vector load_once(const Vector *from) {
    Vector v;
    asm volatile("ld.global.cs.v2.u64 {%0, %1}, [%2];" : "=l"(v.x), "=l"(v.y) : "l"(from));
    return v;
}
static __device__ __forceinline__ u64 load_once(const u64 *from) {
    u64 v;
    asm volatile("ld.global.cs.u64 %0, [%1];" : "=l"(v) : "l"(from));
    return v;
}
static __device__ __forceinline__ void store_once(Vector *to, Vector v) {
    asm volatile("st.global.cs.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(v.x), "l"(v.y) : "memory");
}

#else

static inline unsigned char *shared_memory() { return simt::shared_memory(); }

// At every atomic operation the emulated scheduler may switch to another thread.
static inline u32 claim_add(u32 *word, u32 by) {
    simt::give_way_sometimes();
    return __atomic_fetch_add(word, by, __ATOMIC_ACQUIRE);
}
static inline void publish_add(u32 *word, u32 by) {
    simt::give_way_sometimes();
    __atomic_fetch_add(word, by, __ATOMIC_RELEASE);
}
static inline u32 acquire_load(const u32 *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
static inline void release_store(u32 *word, u32 value) {
    simt::give_way_sometimes();
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}
template <class T> static inline T relaxed_add(T *word, T by) {
    simt::give_way_sometimes();
    return __atomic_fetch_add(word, by, __ATOMIC_RELAXED);
}
static inline u32 relaxed_or(u32 *word, u32 with) {
    simt::give_way_sometimes();
    return __atomic_fetch_or(word, with, __ATOMIC_RELAXED);
}
static inline u32 relaxed_exchange(u32 *word, u32 value) {
    simt::give_way_sometimes();
    return __atomic_exchange_n(word, value, __ATOMIC_RELAXED);
}
template <class T> static inline T relaxed_compare_swap(T *word, T expected, T value) {
    simt::give_way_sometimes();
    __atomic_compare_exchange_n(word, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}
static inline void spin_pause() { simt::give_way(); }

static inline Vector load_once(const Vector *from) { return *from; }
static inline u64 load_once(const u64 *from) { return *from; }
static inline void store_once(Vector *to, Vector v) { *to = v; }

#endif

// Memory of the whole grid, for which a relaxed read of a word is enough.
template <class T> static __device__ __forceinline__ T *at_address(u64 address) { return reinterpret_cast<T *>(address); }

// A mistake planted on purpose, so that the checks can prove that they notice it. Only in the emulation: on a GPU
// `is_planted` is a constant.
enum class Planted : int {
    Nothing,
    NoBarrierHistogram,
    NoBarrierLinear,
    NoBarrierShared,
    NoBarrierHierarchical,
    NoBarrierJoin,
    NoCommitWait,
    EarlyUnlockShared,
    EarlyUnlockHierarchical,
    DivergentBallot,
    PlainClaim,
};
#ifdef __CUDACC__
static __device__ __forceinline__ constexpr bool is_planted(Planted) { return false; }
#else
inline Planted planted = Planted::Nothing;
static inline bool is_planted(Planted mistake) { return planted == mistake; }
#endif
