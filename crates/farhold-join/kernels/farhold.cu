// The GPU's side: every kernel of kernels.def as a CUDA kernel, for nvcc (cubins) and NVRTC.
#include "all.cuh"

#define KERNEL(name, threads_max, Arguments, body)                                                                                  \
    extern "C" __global__ void __launch_bounds__(threads_max, 1) name(const Arguments arguments) { body; }
#include "kernels.def"
