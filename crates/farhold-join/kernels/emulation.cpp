// The emulation's side: runs every kernel of kernels.def, by its name, on the CPU.
#define SIMT_IMPLEMENTATION
#include "all.cuh"

namespace {
struct Entry {
    const char *name;
    unsigned threads_max;
    size_t argument_bytes;
    void (*run)(const void *arguments, dim3 grid, dim3 block, size_t shared_bytes, uint64_t seed, int os_threads);
};

const Entry ENTRIES[] = {
#define KERNEL(name, threads_max, Arguments, body)                                                                                  \
    {#name, threads_max, sizeof(Arguments),                                                                                         \
     [](const void *from, dim3 grid, dim3 block, size_t shared_bytes, uint64_t seed, int os_threads) {                 \
         Arguments arguments;                                                                                          \
         memcpy(&arguments, from, sizeof arguments);                                                                   \
         simt::launch(grid, block, shared_bytes, seed, os_threads, [&] { body; });                                     \
     }},
#include "kernels.def"
};
} // namespace

// 0: done; 1: no such kernel; 2: its arguments have another size; 3: it runs only with fewer threads.
extern "C" int farhold_emulate(const char *name, const void *arguments, size_t argument_bytes, unsigned blocks, unsigned threads,
                               size_t shared_bytes, uint64_t seed, int os_threads) {
    for (const Entry &entry : ENTRIES) {
        if (strcmp(entry.name, name) != 0) continue;
        if (entry.argument_bytes != argument_bytes) return 2;
        if (threads > entry.threads_max) return 3;
        entry.run(arguments, dim3(blocks), dim3(threads), shared_bytes, seed, os_threads);
        return 0;
    }
    return 1;
}
