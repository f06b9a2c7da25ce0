namespace mlx::core::cu {
// One block of 1,024 threads for a row of V <= 4,096 logits: top-k, top-p and the largest sum with the noise.
// Top-k keeps from the largest value on that `kept` logits reach, found bit by bit; top-p from the largest value on
// below which lies no more than 1 - p of the probability, likewise.
__device__ void choose(const float* logits, const float* drawn, int V, int kept, float p, float temperature, int* code) {
  constexpr int EACH = 4;
  float value[EACH];
  unsigned key[EACH], least = 0;
  for (int i = 0; i < EACH; ++i) {
    const int at = threadIdx.x + i * 1024;
    value[i] = at < V ? logits[at] : -INFINITY;
    key[i] = at < V ? ordered(value[i]) : 0;
  }
  for (unsigned bit = 1u << 31; bit > 0; bit >>= 1) {
    int reached = 0;
    for (int i = 0; i < EACH && i * 1024 < V; ++i) reached += __syncthreads_count(key[i] >= (least | bit));
    if (reached >= kept) least |= bit;
  }
  if (p < 1) {
    unsigned top = 0;
    for (unsigned bit = 1u << 31; bit > 0; bit >>= 1) {
      int reached = 0;
      for (int i = 0; i < EACH; ++i) reached |= __syncthreads_or(key[i] >= (top | bit));
      if (reached) top |= bit;
    }
    float share[EACH], whole = 0;
    for (int i = 0; i < EACH; ++i) {
      share[i] = key[i] < least ? 0 : expf((value[i] - unordered(top)) / temperature);
      whole += share[i];
    }
    const float dropped = (1 - p) * block_sum(whole);
    unsigned from = 0;
    for (unsigned bit = 1u << 31; bit > 0; bit >>= 1) {
      float below = 0;
      for (int i = 0; i < EACH; ++i) below += key[i] < (from | bit) ? share[i] : 0;
      if (block_sum(below) <= dropped) from |= bit;
    }
    least = max(least, min(from, top));
  }
  const float floor = unordered(least);
  unsigned long long best = 0;
  for (int i = 0; i < EACH; ++i) {
    const int at = threadIdx.x + i * 1024;
    if (at < V) {
      const float sum = value[i] < floor ? -INFINITY : value[i] + drawn[at];
      // + 0.0f makes one of the two zeros: they are equal, and the first of equals is chosen.
      const unsigned long long found = (unsigned long long)(ordered(sum + 0.0f)) << 32 | (0xffffffffu - at);
      best = found > best ? found : best;
    }
  }
  __shared__ unsigned long long bests[32];
  for (int i = 16; i > 0; i /= 2) {
    const unsigned long long other = __shfl_xor_sync(0xffffffffu, best, i);
    best = other > best ? other : best;
  }
  if (threadIdx.x % 32 == 0) bests[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 1; i < 32; ++i) best = bests[i] > best ? bests[i] : best;
    *code = int(0xffffffffu - unsigned(best));
  }
}
}
