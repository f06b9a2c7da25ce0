// What the kernels share.
namespace mlx::core::cu {
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack { T at[N]; };

template <int N, typename T>
__device__ inline Pack<T, N> load(const T* from) { return *reinterpret_cast<const Pack<T, N>*>(from); }

// Of what is too much to stay near until it is read again.
template <int N, typename T>
__device__ inline Pack<T, N> load_once(const T* from) {
  const uint4 bits = __ldcs(reinterpret_cast<const uint4*>(from));
  return *reinterpret_cast<const Pack<T, N>*>(&bits);
}

__device__ inline float summed(float x) {
  for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(0xffffffffu, x, i);
  return x;
}

__device__ inline unsigned ordered(float x) {
  unsigned bits = __float_as_uint(x);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

__device__ inline float unordered(unsigned key) {
  return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key);
}

// Of a block of THREADS; every thread gets it.
template <int THREADS>
__device__ inline float block_sum(float x) {
  __shared__ float parts[THREADS / 32];
  x = summed(x);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < THREADS / 32; ++i) sum += parts[i];
  __syncthreads();
  return sum;
}
}
