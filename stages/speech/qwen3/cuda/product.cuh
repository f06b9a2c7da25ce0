namespace mlx::core::cu {
// Matrices w [N, K], their first row at w.first, over rows x [rows, K], rows <= 8; with NORMED over rms_norm(x), whose
// weight is norm [K]. Each sum goes to `put(b, n, sum)`, or, PAIRED, with that from the second half of N to
// `put(b, n, one, other)`, by one thread. Whatever `rows` is, a sum is formed in one order.

// Rows of numbers, or, with BITS of 8 or 4, of MLX's affine quantisation: GROUP of them have a scale and a zero.
template <typename T, int BITS, int GROUP>
struct Matrix {
  const void* rows;
  const T *scales, *zeros;
  size_t first;

  __device__ Matrix from(size_t row) const { return {rows, scales, zeros, first + row}; }

  // Eight neighbours of a row of K, as pairs.
  template <int K>
  __device__ Pack<unsigned, 4> eight(int row, int k) const {
    const size_t at = (first + row) * K + k;
    const unsigned* words = static_cast<const unsigned*>(rows) + at * BITS / 32;
    if constexpr (BITS == 16) return load_once<4>(words);
    Pack<T, 8> made;
    const float scale = float(scales[at / GROUP]), zero = float(zeros[at / GROUP]);
    #pragma unroll
    for (int j = 0; j < 8; ++j) {
      const unsigned number = words[j * BITS / 32] >> j * BITS % 32 & ((1u << BITS) - 1);
      made.at[j] = T(float(number) * scale + zero);
    }
    return *reinterpret_cast<const Pack<unsigned, 4>*>(&made);
  }
};

// d = a [16, 16] b [16, 8] + d on tensor cores. Lane 4 g + t has of a the pairs 2 t and 2 t + 8 of columns of rows g and
// g + 8, of b those rows of column g, of d the columns 2 t and 2 t + 1 of rows g and g + 8.
template <typename T>
__device__ inline void multiply(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#ifdef __CUDA_ARCH__
  if constexpr (cuda::std::is_same_v<T, __half>)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  play_multiply<T>(d, a, b);
#endif
}

// 16-bit numbers. TILE rows of w, 16 or 8, are the work of SPLIT warps, each with its part of K. Which of the k that a
// warp's lanes load together meets which in `multiply` is of no importance, if it is the same in w and x: so each lane
// loads 16 bytes. PAIRED, half of a tile's rows are from the second half of N.
template <typename T, bool NORMED, bool PAIRED, int N, int K, int TILE, int SPLIT, typename Matrix, typename Put>
__device__ void tensor_product(const T* x, const Matrix& w, const T* norm, int rows, Put put) {
  constexpr int STEPS = K / 32, EACH = (STEPS + SPLIT - 1) / SPLIT, GROUPS_OF_WARPS = WARPS / SPLIT;
  constexpr int HALF = TILE / 2, OUTPUTS = PAIRED ? HALF : TILE;
  __shared__ float sums[WARPS][TILE + 1][8];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int group = warp / SPLIT, part = warp % SPLIT;
  const int first = part * EACH, last = min(first + EACH, STEPS);
  for (int tiles = blockIdx.x * GROUPS_OF_WARPS; tiles < N / TILE; tiles += gridDim.x * GROUPS_OF_WARPS) {
    const int tile = tiles + group;
    if (tile < N / TILE) {
      const auto row = [&](int r) { return PAIRED ? tile * HALF + (r < HALF ? r : r - HALF + N / 2) : tile * TILE + r; };
      const int own_row = row(g), own_row_8 = row(g + 8);
      const T* values = x + size_t(g) * K + 8 * t;
      float d[4] = {}, square = 0;
      #pragma unroll 4
      for (int step = first; step < last; ++step) {
        const auto own = w.template eight<K>(own_row, step * 32 + 8 * t);
        Pack<unsigned, 4> own_8 = {}, given = {};
        if (TILE == 16) own_8 = w.template eight<K>(own_row_8, step * 32 + 8 * t);
        if (g < rows) {
          auto numbers = load<8>(values + step * 32);
          if (NORMED) {
            const auto weight = load<8>(norm + step * 32 + 8 * t);
            #pragma unroll
            for (int j = 0; j < 8; ++j) {
              const float number = float(numbers.at[j]);
              square += number * number;
              numbers.at[j] = T(number * float(weight.at[j]));
            }
          }
          given = *reinterpret_cast<const Pack<unsigned, 4>*>(&numbers);
        }
        #pragma unroll
        for (int i = 0; i < 4; i += 2)
          multiply<T>(
              d, {own.at[i], own_8.at[i], own.at[i + 1], own_8.at[i + 1]}, {given.at[i], given.at[i + 1]});
      }
      sums[warp][g][2 * t] = d[0];
      sums[warp][g][2 * t + 1] = d[1];
      if (TILE == 16) {
        sums[warp][g + 8][2 * t] = d[2];
        sums[warp][g + 8][2 * t + 1] = d[3];
      }
      if (NORMED) {
        square += __shfl_xor_sync(0xffffffffu, square, 1);
        square += __shfl_xor_sync(0xffffffffu, square, 2);
        if (t == 0) sums[warp][TILE][g] = square;
      }
    }
    __syncthreads();
    for (int i = part * 32 + lane; i < OUTPUTS * 8 && tile < N / TILE; i += SPLIT * 32) {
      const int r = i / 8, b = i % 8, begin = group * SPLIT;
      if (b >= rows) continue;
      float one = 0, other = 0, square = 0;
      for (int s = begin; s < begin + SPLIT; ++s) {
        one += sums[s][r][b];
        if (PAIRED) other += sums[s][r + HALF][b];
        if (NORMED) square += sums[s][TILE][b];
      }
      const float scale = NORMED ? rsqrtf(square / K + EPS) : 1;
      if constexpr (PAIRED) put(b, tile * HALF + r, one * scale, other * scale);
      else put(b, tile * TILE + r, one * scale);
    }
    __syncthreads();
  }
}

// fp32 in full: a warp sums a row of w, or a pair of rows.
template <typename T, bool NORMED, bool PAIRED, int N, int K, typename Matrix, typename Put>
__device__ void exact_product(const T* x, const Matrix& matrix, const T* norm, int rows, Put put) {
  constexpr int V = 16 / sizeof(T), ROWS = 8, TASKS = PAIRED ? N / 2 : N;
  const T* w = static_cast<const T*>(matrix.rows) + matrix.first * K;
  const int lane = threadIdx.x % 32;
  // Warps are counted across the blocks, so that few tasks are spread over all of them.
  for (int task = threadIdx.x / 32 * gridDim.x + blockIdx.x; task < TASKS; task += WARPS * gridDim.x) {
    float one[ROWS] = {}, other[ROWS] = {}, square[ROWS] = {};
    for (int k = lane * V; k < K; k += 32 * V) {
      const auto own = load_once<V>(w + size_t(task) * K + k), pair = load_once<V>(w + size_t(TASKS % N + task) * K + k);
      const auto weight = load<V>(NORMED ? norm + k : w);
      #pragma unroll
      for (int b = 0; b < ROWS; ++b) {
        if (b < rows) {
          const auto numbers = load<V>(x + size_t(b) * K + k);
          #pragma unroll
          for (int j = 0; j < V; ++j) {
            const float number = float(numbers.at[j]), value = NORMED ? number * float(weight.at[j]) : number;
            square[b] += number * number;
            one[b] += value * float(own.at[j]);
            if (PAIRED) other[b] += value * float(pair.at[j]);
          }
        }
      }
    }
    #pragma unroll
    for (int b = 0; b < ROWS; ++b) {
      if (b < rows) {
        const float scale = NORMED ? rsqrtf(summed(square[b]) / K + EPS) : 1;
        const float sum = summed(one[b]) * scale, sum_2 = PAIRED ? summed(other[b]) * scale : 0;
        if (lane == 0) {
          if constexpr (PAIRED) put(b, task, sum, sum_2);
          else put(b, task, sum);
        }
      }
    }
  }
}

template <typename T, bool NORMED, bool PAIRED, int N, int K, int TILE, int SPLIT, typename Matrix, typename Put>
__device__ void product(const T* x, const Matrix& w, const T* norm, int rows, Put put) {
  if constexpr (sizeof(T) == 2) tensor_product<T, NORMED, PAIRED, N, K, TILE, SPLIT>(x, w, norm, rows, put);
  else exact_product<T, NORMED, PAIRED, N, K>(x, w, norm, rows, put);
}
}
