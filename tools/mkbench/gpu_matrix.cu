#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include "kernels/cuda/memory/error.h"
#include "tools/mkbench/gpu_matrix.h"

namespace mkernel::bench {
namespace {

using kernels::cuda_status;

__device__ float widen(__nv_bfloat16 value) {
  return __bfloat162float(value);
}
__device__ float widen(__half value) {
  return __half2float(value);
}

/// Mixes all bits of an index (two rounds of multiply and xor-shift).
__device__ std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 31)) * 0x9e3779b97f4a7c15U;
  value = (value ^ (value >> 29)) * 0xd1342543de82ef95U;
  return value ^ (value >> 32);
}

template <typename T>
__global__ void fill_kernel(T* data, std::uint64_t count, std::uint64_t seed, float scale) {
  const std::uint64_t step = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const auto bits = static_cast<std::uint32_t>(mix(i + (seed << 40) + seed) >> 40);
    data[i] = static_cast<T>(scale * (static_cast<float>(bits) / 8388608.0F - 1.0F));
  }
}

__global__ void digest_kernel(const std::uint16_t* data, std::uint64_t count, unsigned long long* out) {
  const std::uint64_t step = std::uint64_t{gridDim.x} * blockDim.x;
  unsigned long long sum = 0;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step)
    sum += mix((i << 16) + data[i] + 1);
  atomicAdd(out, sum);
}

constexpr int kMaxTerms = 64;

struct Sums {
  unsigned long long wrong;
  long long first_wrong;
  double error2, reference2;
  unsigned long long worst;  // bits of a double >= 0: ordered like integers
};

/// c = the sum of `terms` products a x b; each may have been rounded with `partial_unit` before it was added,
/// and so may the sum of every `node_terms` of them before it was added to the others'.
struct Problem {
  std::int64_t m, n, k;
  bool row_major;
  double unit, partial_unit, tiny;
  int terms, node_terms;
  const void* a[kMaxTerms];
  const void* b[kMaxTerms];
};

constexpr int kBlock = 64;
constexpr int kDepth = 16;
constexpr int kEach = 4;  // a thread computes kEach x kEach elements

template <typename T>
__device__ T element(const T* matrix, std::int64_t row, std::int64_t column, std::int64_t rows,
                     std::int64_t columns) {
  return row < rows && column < columns ? matrix[row * columns + column] : static_cast<T>(0.0F);
}

/// [64 rows of a, 64 columns of b] of one depth, as fp32.
template <typename T>
__device__ void load(const T* a, const T* b, const Problem& p, std::int64_t row, std::int64_t column,
                     std::int64_t depth, float (&sa)[kDepth][kBlock + 1], float (&sb)[kDepth][kBlock + 1]) {
  for (int i = static_cast<int>(threadIdx.x); i < kBlock * kDepth; i += 256) {
    const int along = i / kDepth, d = i % kDepth;
    sa[d][along] = widen(element(a, row + along, depth + d, p.m, p.k));
    if (!p.row_major) sb[d][along] = widen(element(b, column + along, depth + d, p.n, p.k));
    if (p.row_major)
      sb[i / kBlock][i % kBlock] = widen(element(b, depth + i / kBlock, column + i % kBlock, p.k, p.n));
  }
}

/// `partials`: the sum of the absolute values of what was rounded; `magnitude`: sum |a b|.
__device__ void count_element(double value, double reference, double partials, double magnitude,
                              std::int64_t at, const Problem& p, Sums& mine) {
  const double sums = static_cast<double>(p.k) * p.terms * 0x1p-24 * magnitude;
  const double bound = p.unit * fabs(reference) + p.partial_unit * partials + sums + p.tiny;
  const double error = fabs(value - reference);
  if (!(error <= bound)) {
    ++mine.wrong;
    mine.first_wrong = at;
  }
  mine.error2 += error * error;
  mine.reference2 += reference * reference;
  const auto ratio = static_cast<unsigned long long>(__double_as_longlong(error / bound));
  if (ratio > mine.worst) mine.worst = ratio;
}

/// One block of 64 x 64 elements: fp64 products, comparison, sums into `out`.
template <typename T>
__global__ __launch_bounds__(256) void check_kernel(const T* c, const __grid_constant__ Problem p,
                                                    Sums* out) {
  __shared__ float sa[kDepth][kBlock + 1];
  __shared__ float sb[kDepth][kBlock + 1];
  const std::int64_t row = std::int64_t{blockIdx.y} * kBlock, column = std::int64_t{blockIdx.x} * kBlock;
  const int y = static_cast<int>(threadIdx.x) / 16, x = static_cast<int>(threadIdx.x) % 16;
  double sum[kEach][kEach] = {};
  float node[kEach][kEach] = {}, partials[kEach][kEach] = {}, magnitude[kEach][kEach] = {};
  for (int term = 0; term < p.terms; ++term) {
    const auto* a = static_cast<const T*>(p.a[term]);
    const auto* b = static_cast<const T*>(p.b[term]);
    double product[kEach][kEach] = {};
    for (std::int64_t depth = 0; depth < p.k; depth += kDepth) {
      load(a, b, p, row, column, depth, sa, sb);
      __syncthreads();
      for (int d = 0; d < kDepth; ++d) {
        float fa[kEach], fb[kEach];
        for (int i = 0; i < kEach; ++i) {
          fa[i] = sa[d][y + 16 * i];
          fb[i] = sb[d][x + 16 * i];
        }
        for (int i = 0; i < kEach; ++i) {
          for (int j = 0; j < kEach; ++j) {
            product[i][j] += static_cast<double>(fa[i] * fb[j]);  // exact: two factors of at most 11 bits
            magnitude[i][j] += fabsf(fa[i] * fb[j]);
          }
        }
      }
      __syncthreads();
    }
    const bool node_ends = (term + 1) % p.node_terms == 0;
    for (int i = 0; i < kEach; ++i) {
      for (int j = 0; j < kEach; ++j) {
        sum[i][j] += product[i][j];
        partials[i][j] += fabsf(static_cast<float>(product[i][j]));
        node[i][j] += static_cast<float>(product[i][j]);
        if (!node_ends) continue;
        // A sum of one term is rounded already, a sum of all is c.
        if (p.node_terms > 1 && p.node_terms < p.terms) partials[i][j] += fabsf(node[i][j]);
        node[i][j] = 0;
      }
    }
  }
  Sums mine{0, -1, 0, 0, 0};
  for (int i = 0; i < kEach; ++i) {
    for (int j = 0; j < kEach; ++j) {
      const std::int64_t r = row + y + 16 * i, s = column + x + 16 * j;
      if (r < p.m && s < p.n)
        count_element(widen(c[r * p.n + s]), sum[i][j], partials[i][j], magnitude[i][j], r * p.n + s, p,
                      mine);
    }
  }
  atomicAdd(&out->error2, mine.error2);
  atomicAdd(&out->reference2, mine.reference2);
  atomicMax(&out->worst, mine.worst);
  if (mine.wrong == 0) return;
  atomicAdd(&out->wrong, mine.wrong);
  out->first_wrong = mine.first_wrong;
}

template <typename T>
void launch_check(const void* c, const Problem& p, Sums* out, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((p.n + kBlock - 1) / kBlock),
                  static_cast<unsigned>((p.m + kBlock - 1) / kBlock));
  check_kernel<T><<<grid, 256, 0, stream>>>(static_cast<const T*>(c), p, out);
}

Problem problem_of(const GemmShape& shape) {
  const bool bf16 = shape.dtype == DataType::kBf16;
  Problem p{.m = shape.m, .n = shape.n, .k = shape.k, .row_major = shape.b_layout == Layout::kRowMajor};
  p.unit = bf16 ? 0x1p-8 : 0x1p-11;
  // Half the distance of subnormal numbers of the output.
  p.tiny = bf16 ? 0x1p-130 : 0x1p-25;
  return p;
}

Result<ProductCheck> check_sum(const Problem& p, const void* c, DataType type, cudaStream_t stream) {
  auto buffer = GpuBuffer::allocate(sizeof(Sums));
  if (!buffer.ok()) return buffer.status();
  Sums sums{0, -1, 0, 0, 0};
  MK_RETURN_IF_ERROR(cuda_status(
      cudaMemcpyAsync(buffer->get(), &sums, sizeof sums, cudaMemcpyHostToDevice, stream), "check: sums"));
  auto* out = static_cast<Sums*>(buffer->get());
  if (type == DataType::kBf16) {
    launch_check<__nv_bfloat16>(c, p, out, stream);
  } else {
    launch_check<__half>(c, p, out, stream);
  }
  MK_RETURN_IF_ERROR(cuda_status(cudaGetLastError(), "check: launch"));
  MK_RETURN_IF_ERROR(
      cuda_status(cudaMemcpyAsync(&sums, out, sizeof sums, cudaMemcpyDeviceToHost, stream), "check: sums"));
  MK_RETURN_IF_ERROR(cuda_status(cudaStreamSynchronize(stream), "check"));
  double worst = 0;
  static_assert(sizeof worst == sizeof sums.worst);
  std::memcpy(&worst, &sums.worst, sizeof worst);
  return ProductCheck{static_cast<std::uint64_t>(p.m * p.n), sums.wrong, sums.first_wrong,
                      std::sqrt(sums.error2 / sums.reference2), worst};
}

}  // namespace

void GpuBuffer::Free::operator()(void* memory) const {
  cudaFree(memory);
}

Result<GpuBuffer> GpuBuffer::allocate(std::uint64_t bytes) {
  void* memory = nullptr;
  MK_RETURN_IF_ERROR(
      cuda_status(cudaMalloc(&memory, bytes), "allocating " + std::to_string(bytes) + " bytes"));
  GpuBuffer buffer;
  buffer.memory_.reset(memory);
  buffer.bytes_ = bytes;
  return Result<GpuBuffer>(std::move(buffer));
}

Status fill_random(void* data, DataType type, std::uint64_t count, std::uint64_t seed, CUstream_st* stream,
                   float scale) {
  constexpr int kBlocks = 1056;
  if (type == DataType::kBf16) {
    fill_kernel<<<kBlocks, 256, 0, stream>>>(static_cast<__nv_bfloat16*>(data), count, seed, scale);
  } else {
    fill_kernel<<<kBlocks, 256, 0, stream>>>(static_cast<__half*>(data), count, seed, scale);
  }
  return cuda_status(cudaGetLastError(), "random values");
}

Status poison(const GpuBuffer& buffer, CUstream_st* stream) {
  return cuda_status(cudaMemsetAsync(buffer.get(), 0xff, buffer.bytes(), stream), "poison");
}

Result<std::uint64_t> digest_of(const GpuBuffer& buffer, CUstream_st* stream) {
  constexpr int kBlocks = 1056;
  auto sum = GpuBuffer::allocate(sizeof(unsigned long long));
  if (!sum.ok()) return sum.status();
  auto* out = static_cast<unsigned long long*>(sum->get());
  MK_RETURN_IF_ERROR(cuda_status(cudaMemsetAsync(out, 0, sizeof *out, stream), "digest"));
  digest_kernel<<<kBlocks, 256, 0, stream>>>(static_cast<const std::uint16_t*>(buffer.get()),
                                             buffer.bytes() / 2, out);
  MK_RETURN_IF_ERROR(cuda_status(cudaGetLastError(), "digest"));
  unsigned long long digest = 0;
  MK_RETURN_IF_ERROR(
      cuda_status(cudaMemcpyAsync(&digest, out, sizeof digest, cudaMemcpyDeviceToHost, stream), "digest"));
  MK_RETURN_IF_ERROR(cuda_status(cudaStreamSynchronize(stream), "digest"));
  return std::uint64_t{digest};
}

Result<ProductCheck> check_product(const GemmArguments& arguments, const GemmShape& shape,
                                   CUstream_st* stream) {
  Problem p = problem_of(shape);
  p.terms = p.node_terms = 1;
  p.a[0] = arguments.a;
  p.b[0] = arguments.b;
  return check_sum(p, arguments.c, shape.dtype, stream);
}

Result<ProductCheck> check_reduced_product(const std::vector<GemmArguments>& partials,
                                           std::uint32_t ranks_per_node, const void* c,
                                           const GemmShape& shape, Range rows, CUstream_st* stream) {
  if (partials.size() > kMaxTerms) {
    return Status(StatusCode::kInvalidArgument, "check: " + std::to_string(partials.size()) +
                                                    " products, at most " + std::to_string(kMaxTerms));
  }
  if (rows.size() == 0) return ProductCheck{};
  Problem p = problem_of(shape);
  p.m = rows.size();
  p.partial_unit = p.unit;
  p.node_terms = static_cast<int>(ranks_per_node);
  for (const GemmArguments& partial : partials) {
    p.a[p.terms] = static_cast<const std::byte*>(partial.a) + rows.begin * shape.k * 2;
    p.b[p.terms++] = partial.b;
  }
  return check_sum(p, c, shape.dtype, stream);
}

std::string gpu_name() {
  cudaDeviceProp properties{};
  return cudaGetDeviceProperties(&properties, 0) == cudaSuccess ? properties.name : "unknown";
}

Status hopper_present() {
  int count = 0;
  MK_RETURN_IF_ERROR(cuda_status(cudaGetDeviceCount(&count), "no usable GPU"));
  if (count == 0) return {StatusCode::kUnavailable, "no GPU"};
  cudaDeviceProp properties{};
  MK_RETURN_IF_ERROR(cuda_status(cudaGetDeviceProperties(&properties, 0), "GPU 0"));
  if (properties.major == 9 && properties.minor == 0) return {};
  return {StatusCode::kUnavailable, std::string(properties.name) + " has compute capability " +
                                        std::to_string(properties.major) + "." +
                                        std::to_string(properties.minor) + ", not 9.0"};
}

}  // namespace mkernel::bench
