namespace mlx::core::cu {
// All blocks of a launch. They must run at the same time, so there are no more of them than multiprocessors, and no
// other such launch may run beside: each is made to wait for the ticket that the one before leaves.
struct Grid {
  unsigned* arrived;  // zero at first
  unsigned goal = 0;

  // By its ticket; `left` becomes that of the next launch.
  __device__ Grid(const unsigned* ticket, unsigned* left) : arrived(const_cast<unsigned*>(ticket)) {
    if (blockIdx.x == 0 && threadIdx.x < TICKET) left[threadIdx.x] = 0;
  }

  // Behind it every block sees what any wrote before it.
  __device__ void meet() {
    __syncthreads();
    if (threadIdx.x == 0) {
      goal += gridDim.x;
      count();
      while (counted() < goal) pause();
    }
    __syncthreads();
  }

#ifdef __CUDA_ARCH__
  // Whoever sees the block counted sees what it has written: cheaper than a fence on either side.
  __device__ void count() { asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(arrived) : "memory"); }
  __device__ unsigned counted() {
    unsigned number;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(number) : "l"(arrived) : "memory");
    return number;
  }
  __device__ void pause() {}
#else
  void count() { ++*arrived; }
  unsigned counted() { return *arrived; }
  void pause() { give_way(); }
#endif
};

// Has a line brought near that a block will need once all have met.
__device__ inline void fetch(const void* line) {
#ifdef __CUDA_ARCH__
  asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
#endif
}
}
