namespace mlx::core::cu {
// The sum over a block of THREADS; rounds that follow each other differ in `turn`, and need one barrier each.
template <int THREADS>
__device__ inline int block_count(int x, int turn) {
  __shared__ int parts[2][THREADS / 32];
  x = __reduce_add_sync(0xffffffffu, x);
  if (threadIdx.x % 32 == 0) parts[turn][threadIdx.x / 32] = x;
  __syncthreads();
  int sum = 0;
  for (int i = 0; i < THREADS / 32; ++i) sum += parts[turn][i];
  return sum;
}

// One block for a row of V <= 4,096 logits: top-k, top-p and the largest sum with the noise; every thread gets the id.
// Top-k keeps from the largest value on that `kept` logits reach, found bit by bit; top-p from the largest value on
// below which lies no more than 1 - p of the probability, likewise.
template <int THREADS>
__device__ int choose(const float* logits, const float* drawn, int V, int kept, float p, float temperature) {
  constexpr int EACH = 4096 / THREADS;
  float value[EACH];
  unsigned key[EACH], least = 0;
  #pragma unroll
  for (int i = 0; i < EACH; ++i) {
    const int at = threadIdx.x + i * THREADS;
    value[i] = at < V ? logits[at] : -INFINITY;
    key[i] = at < V ? ordered(value[i] + 0.0f) : 0;  // + 0.0f makes one of the two zeros
  }
  int turn = 0, found = 0;
  for (unsigned bit = 1u << 31; bit > 0 && found != kept; bit >>= 1, turn ^= 1) {
    int reached = 0;
    #pragma unroll
    for (int i = 0; i < EACH; ++i) reached += key[i] >= (least | bit);
    reached = block_count<THREADS>(reached, turn);
    if (reached >= kept) { least |= bit; found = reached; }
  }
  if (p < 1) {
    unsigned top = 0;
    for (unsigned bit = 1u << 31; bit > 0; bit >>= 1) {
      bool reached = false;
      #pragma unroll
      for (int i = 0; i < EACH; ++i) reached |= key[i] >= (top | bit);
      if (__syncthreads_or(reached)) top |= bit;
    }
    float share[EACH], whole = 0;
    #pragma unroll
    for (int i = 0; i < EACH; ++i) {
      share[i] = key[i] < least ? 0 : expf((value[i] - unordered(top)) / temperature);
      whole += share[i];
    }
    const float dropped = (1 - p) * block_sum<THREADS>(whole);
    unsigned from = 0;
    for (unsigned bit = 1u << 31; bit > 0; bit >>= 1) {
      float below = 0;
      #pragma unroll
      for (int i = 0; i < EACH; ++i) below += key[i] < (from | bit) ? share[i] : 0;
      if (block_sum<THREADS>(below) <= dropped) from |= bit;
    }
    least = max(least, min(from, top));
  }
  unsigned long long best = 0;
  #pragma unroll
  for (int i = 0; i < EACH; ++i) {
    const int at = threadIdx.x + i * THREADS;
    if (at < V) {
      const float sum = key[i] < least ? -INFINITY : value[i] + drawn[at];
      // The first of equals is chosen.
      const unsigned long long own = (unsigned long long)(ordered(sum + 0.0f)) << 32 | (0xffffffffu - at);
      best = own > best ? own : best;
    }
  }
  __shared__ unsigned long long bests[THREADS / 32];
  for (int i = 16; i > 0; i /= 2) {
    const unsigned long long other = __shfl_xor_sync(0xffffffffu, best, i);
    best = other > best ? other : best;
  }
  if (threadIdx.x % 32 == 0) bests[threadIdx.x / 32] = best;
  __syncthreads();
  for (int i = 0; i < THREADS / 32; ++i) best = bests[i] > best ? bests[i] : best;
  __syncthreads();
  return int(0xffffffffu - unsigned(best));
}
}
