namespace mlx::core::cu {
// All blocks of a launch. They must run at the same time, so there are no more of them than multiprocessors, and no
// other such launch may run beside: each is made to wait for the ticket that the one before leaves.
struct Grid {
  unsigned* arrived;  // zero at first
  unsigned goal = 0;

  // Behind it every block sees what any wrote before it.
  __device__ void meet() {
    __syncthreads();
    if (threadIdx.x == 0) {
      goal += gridDim.x;
      __threadfence();
      atomicAdd(arrived, 1u);
      while (*static_cast<volatile unsigned*>(arrived) < goal) __nanosleep(20);
      __threadfence();
    }
    __syncthreads();
  }
};

// Has a line brought near that a block will need once all have met.
__device__ inline void fetch(const void* line) {
#ifdef __CUDA_ARCH__
  asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
#endif
}
}
