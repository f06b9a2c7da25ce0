namespace mlx::core::cu {
// Number `at` of the V that MLX draws with a key: Threefry-2x32 in 20 rounds (Salmon et al., 2011), whose two results
// stand half of V apart.
__device__ inline unsigned random_bits(unsigned one, unsigned other, int at, int V) {
  constexpr int TURNS[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  const int half = (V + 1) / 2, low = at < half ? at : at - half;
  const unsigned keys[3] = {one, other, one ^ other ^ 0x1bd11bda};
  unsigned x = low + one, y = (low + half < V ? low + half : 0) + other;
  #pragma unroll
  for (int i = 0; i < 5; ++i) {
    #pragma unroll
    for (int j = 0; j < 4; ++j) {
      x += y;
      y = (y << TURNS[i % 2][j] | y >> (32 - TURNS[i % 2][j])) ^ x;
    }
    x += keys[(i + 1) % 3];
    y += keys[(i + 2) % 3] + i + 1;
  }
  return at < half ? x : y;
}

// Gumbel noise times `heat`, as `sampling.noise` has it: drawn [groups, rows, V] of the code groups from `first` on,
// by all blocks. keys [rows, 2]; `frame(b)` and `heat(b)` of each request.
template <int THREADS, typename Frame, typename Heat>
__device__ void draw(float* drawn, const unsigned* keys, int first, int groups, int rows, int V, Frame frame, Heat heat) {
  for (int i = blockIdx.x * THREADS + threadIdx.x; i < groups * rows * V; i += gridDim.x * THREADS) {
    const int b = i / V % rows, group = first + i / (rows * V);
    const unsigned bits = random_bits(keys[2 * b] ^ frame(b), keys[2 * b + 1] ^ group, i % V, V);
    const float uniform = fminf(float(bits) / 4294967296.0f, 0.99999994f);
    drawn[i] = fmaxf(-logf(-logf(uniform)), -4.0f) * heat(b);
  }
}
}
