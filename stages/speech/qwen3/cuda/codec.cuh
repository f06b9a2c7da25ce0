// What the parts of the codec decoder's step share. Rows are [T, C]; a block has 256 threads. A sum is formed in an order
// that the number of rows does not change, so that any split of a sequence into steps gives the same bits.
namespace mlx::core::cu {
enum Kind { FEW, MANY, ATTEND, MIX, TO_PCM };
enum Bent { STRAIGHT, GELU, NORMED, GATED };
#ifdef __CUDACC__
#define APART __noinline__  // compiled faster, and with registers of its own
#else
#define APART
#endif
constexpr int SHARED = 49152;  // bytes, for whatever a part of the step does

// A layer of one step, as codec_kernels.py writes it down: sizes, where its weights are among the parameters, and where
// its rows are in the room. -1: it has none.
struct Phase {
  int kind, size, blocks, T, C, N, K, past, dilation, tail, w, bias, snake, width, bent, x, other, y, snaked, unused;
};

// The input rows of a causal layer: `past` rows of `tail`, then those of `x`.
struct Window {
  const float *tail, *x;
  int past, C;
  __device__ const float* row(int at) const {
    const int from = at < past ? at : at - past;
    return (at < past ? tail : x) + from * C;
  }
};

// A place in shared memory in bytes, and copies to it beside other work, which end in groups: as PTX, for the compiler
// would otherwise find each place anew from the start of that memory.
#ifdef __CUDACC__
using Place = unsigned;
__device__ inline Place place(const void* shared) { return __cvta_generic_to_shared(shared); }
template <int N>
__device__ inline Pack<float, N> load_shared(Place from) {
  Pack<float, N> x;
  if constexpr (N == 2) {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.at[0]), "=f"(x.at[1]) : "r"(from));
  } else {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.at[0]), "=f"(x.at[1]), "=f"(x.at[2]), "=f"(x.at[3]) : "r"(from));
  }
  return x;
}
__device__ inline void copy(Place to, const float* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until all but the last LATER groups of this thread have arrived.
template <int LATER>
__device__ inline void wait_groups() { asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory"); }
#endif

// The rows that the next step's layer needs again, copied by all blocks together.
__device__ inline void keep(const Window& in, int T, float* kept) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < in.past * in.C / 4; i += gridDim.x * blockDim.x) {
    const int row = 4 * i / in.C, c = 4 * i % in.C;
    *reinterpret_cast<Pack<float, 4>*>(kept + 4 * i) = load<4>(in.row(T + row) + c);
  }
}

// What becomes of a sum: bias, GELU, residual rows; the row itself, and the next layer's Snake of it.
struct Finish {
  const float *bias, *other, *snake;  // [N]; [T, N]; [2, width] (alpha, 1 / beta). May be null, as y and snaked.
  int N, width;
  bool gelu;
  float *y, *snaked;

  __device__ Finish(const Phase& phase, const float* parameters, float* room)
      : bias(phase.bias < 0 ? nullptr : parameters + phase.bias), other(phase.other < 0 ? nullptr : room + phase.other),
        snake(phase.snake < 0 ? nullptr : parameters + phase.snake), N(phase.N), width(phase.width),
        gelu(phase.bent == GELU), y(phase.y < 0 ? nullptr : room + phase.y), snaked(room + phase.snaked) {}

  __device__ void operator()(int row, int column, float value) const {
    const int at = row * N + column;
    if (bias) value += bias[column];
    if (gelu) value *= 0.5f * (1 + erff(value * 0.70710678f));
    if (other) value += other[at];
    if (y) y[at] = value;
    if (snake) {
      const int channel = column < width ? column : column % width;
      const float sine = sinf(value * snake[channel]);
      snaked[at] = fmaf(snake[width + channel], sine * sine, value);
    }
  }
};

// As `block_sum`, of a block of 256 threads, without shared memory of its own: there is none left. `parts` [8] is shared.
__device__ inline float block_total(float x, float* parts) {
  x = summed(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < 8; ++i) sum += parts[i];
  return sum;
}
}
