#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <utility>

#include "kernels/cuda/memory/error.h"
#include "tools/mkbench/gpu_moe_reference.h"

namespace mkernel::bench {
namespace {

using kernels::cuda_status;

constexpr int kSide = 64;   // rows and columns of a block of a product
constexpr int kSteps = 16;  // of k at a time
constexpr int kThreads = 256;
constexpr int kOfThread = 4;  // a thread computes 4 x 4 elements

__device__ float value_of(__nv_bfloat16 element) {
  return __bfloat162float(element);
}
__device__ float value_of(__half element) {
  return __half2float(element);
}

/// a[m, k] x b, whose rows and columns lie so far apart. Row r of a is row from[r] / per_row of memory; all
/// of them in order where `from` is null.
template <typename T>
struct Operands {
  const T* a;
  const T* b;
  const std::int32_t* from;
  int per_row;
  std::int64_t m, n, k, b_row, b_column;

  __device__ float of_a(std::int64_t row, std::int64_t i) const {
    if (row >= m || i >= k) return 0;
    const std::int64_t memory_row = from == nullptr ? row : from[row] / per_row;
    return value_of(a[memory_row * k + i]);
  }
  __device__ float of_b(std::int64_t i, std::int64_t column) const {
    return i < k && column < n ? value_of(b[i * b_row + column * b_column]) : 0;
  }
};

/// One block of 64 x 64 elements, each handed to store(row, column, sum).
template <typename T, typename Store>
__global__ __launch_bounds__(kThreads) void product_kernel(const Operands<T> p, const Store store) {
  __shared__ float sa[kSteps][kSide + 1];
  __shared__ float sb[kSteps][kSide + 1];
  const std::int64_t row = std::int64_t{blockIdx.y} * kSide, column = std::int64_t{blockIdx.x} * kSide;
  const int y = static_cast<int>(threadIdx.x) / 16, x = static_cast<int>(threadIdx.x) % 16;
  double sum[kOfThread][kOfThread] = {};
  for (std::int64_t k = 0; k < p.k; k += kSteps) {
    for (int i = static_cast<int>(threadIdx.x); i < kSide * kSteps; i += kThreads) {
      sa[i % kSteps][i / kSteps] = p.of_a(row + i / kSteps, k + i % kSteps);
      // Neighbours in memory by neighbouring threads.
      const int step = p.b_column == 1 ? i / kSide : i % kSteps;
      const int along = p.b_column == 1 ? i % kSide : i / kSteps;
      sb[step][along] = p.of_b(k + step, column + along);
    }
    __syncthreads();
    for (int step = 0; step < kSteps; ++step) {
      for (int i = 0; i < kOfThread; ++i) {
        for (int j = 0; j < kOfThread; ++j) {
          // Exact: two factors of at most 11 bits.
          sum[i][j] += static_cast<double>(sa[step][y + 16 * i] * sb[step][x + 16 * j]);
        }
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < kOfThread; ++i) {
    for (int j = 0; j < kOfThread; ++j) {
      const std::int64_t r = row + y + 16 * i, c = column + x + 16 * j;
      if (r < p.m && c < p.n) store(r, c, sum[i][j]);
    }
  }
}

struct StoreResult {
  float* out;
  std::int64_t n;
  __device__ void operator()(std::int64_t row, std::int64_t column, double sum) const {
    out[row * n + column] = static_cast<float>(sum);
  }
};

/// A token has an expert once: nobody else adds to its row at the time. Without `entries` row r is token r,
/// and its weight 1.
struct AddWeighted {
  const std::int32_t* entries;
  const float* weights;
  int topk;
  std::int64_t n;
  float *sum, *magnitude;
  __device__ void operator()(std::int64_t row, std::int64_t column, double result) const {
    const float weight = entries == nullptr ? 1 : weights[entries[row]];
    const std::int64_t token = entries == nullptr ? row : entries[row] / topk;
    const float value = weight * static_cast<float>(result);
    const std::int64_t at = token * n + column;
    sum[at] += value;
    magnitude[at] += fabsf(value);
  }
};

template <typename T>
__global__ void activate_kernel(const float* first, T* out, std::int64_t count, std::int64_t inner) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const float* row = first + i / inner * 2 * inner;
    const double gate = row[i % inner], up = row[inner + i % inner];
    out[i] = static_cast<T>(static_cast<float>(gate / (1 + exp(-gate)) * up));
  }
}

struct Differences {
  unsigned long long wrong;
  long long first_wrong;
  double error2, reference2;
  unsigned long long worst;  // bits of a double >= 0: ordered like integers
};

template <typename T>
__global__ void compare_kernel(const T* y, const float* sum, const float* magnitude, std::int64_t count,
                               MoeBound limit, Differences* out) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  double error2 = 0, reference2 = 0, worst = 0;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const double reference = sum[i], error = fabs(value_of(y[i]) - reference);
    const double bound = limit.relative * (fabs(reference) + 2.0 * magnitude[i]) + limit.slack;
    if (!(error <= bound)) {
      atomicAdd(&out->wrong, 1ULL);
      out->first_wrong = i;
    }
    error2 += error * error;
    reference2 += reference * reference;
    worst = fmax(worst, error / bound);
  }
  atomicAdd(&out->error2, error2);
  atomicAdd(&out->reference2, reference2);
  atomicMax(&out->worst, static_cast<unsigned long long>(__double_as_longlong(worst)));
}

template <typename T, typename Store>
Status multiply(const Operands<T>& p, const Store& store, CUstream_st* stream) {
  const dim3 grid(static_cast<unsigned>((p.n + kSide - 1) / kSide),
                  static_cast<unsigned>((p.m + kSide - 1) / kSide));
  product_kernel<<<grid, kThreads, 0, stream>>>(p, store);
  return cuda_status(cudaGetLastError(), "reference of an expert");
}

/// b [k, columns] in the layout of the shape.
template <typename T>
Operands<T> operands_of(const MoeShape& shape, std::int64_t m, std::int64_t columns, std::int64_t k,
                        const void* a, const void* b) {
  const bool row_major = shape.w_layout == Layout::kRowMajor;
  return {.a = static_cast<const T*>(a),
          .b = static_cast<const T*>(b),
          .from = nullptr,
          .per_row = 1,
          .m = m,
          .n = columns,
          .k = k,
          .b_row = row_major ? columns : 1,
          .b_column = row_major ? 1 : k};
}

Status allocate(GpuBuffer& buffer, std::int64_t elements, std::size_t bytes) {
  auto made = GpuBuffer::allocate(static_cast<std::uint64_t>(elements) * bytes + 16);
  if (made.ok()) buffer = std::move(*made);
  return made.status();
}

Status to_gpu(const GpuBuffer& to, const void* from, std::size_t bytes, CUstream_st* stream) {
  return cuda_status(cudaMemcpyAsync(to.get(), from, bytes, cudaMemcpyHostToDevice, stream), "routing");
}

}  // namespace

Result<GpuMoeReference> GpuMoeReference::make(const MoeShape& shape, CUstream_st* stream) {
  GpuMoeReference made;
  made.shape_ = shape;
  made.stream_ = stream;
  const std::int64_t tokens = shape.max_tokens;
  MK_RETURN_IF_ERROR(allocate(made.entries_, tokens * shape.topk, sizeof(std::int32_t)));
  MK_RETURN_IF_ERROR(allocate(made.weights_, tokens * shape.topk, sizeof(float)));
  const std::int64_t inner = std::max(shape.intermediate, shape.shared_intermediate);
  MK_RETURN_IF_ERROR(allocate(made.first_, tokens * 2 * inner, sizeof(float)));
  MK_RETURN_IF_ERROR(allocate(made.activation_, tokens * inner, 2));
  MK_RETURN_IF_ERROR(allocate(made.sum_, tokens * shape.n, sizeof(float)));
  MK_RETURN_IF_ERROR(allocate(made.magnitude_, tokens * shape.n, sizeof(float)));
  return Result<GpuMoeReference>(std::move(made));
}

Status GpuMoeReference::begin(const MoeRouting& routing) {
  std::vector<std::int32_t> entries;
  begin_.assign(1, 0);
  std::vector<std::vector<std::int32_t>> by_expert(static_cast<std::size_t>(shape_.experts));
  for (std::size_t entry = 0; entry < routing.topk.size(); ++entry)
    by_expert[static_cast<std::size_t>(routing.topk[entry])].push_back(static_cast<std::int32_t>(entry));
  for (const auto& mine : by_expert) {
    entries.insert(entries.end(), mine.begin(), mine.end());
    begin_.push_back(static_cast<std::int64_t>(entries.size()));
  }
  MK_RETURN_IF_ERROR(to_gpu(entries_, entries.data(), entries.size() * sizeof(entries[0]), stream_));
  MK_RETURN_IF_ERROR(
      to_gpu(weights_, routing.weights.data(), routing.weights.size() * sizeof(float), stream_));
  for (const GpuBuffer* sums : {&sum_, &magnitude_})
    MK_RETURN_IF_ERROR(cuda_status(cudaMemsetAsync(sums->get(), 0, sums->bytes(), stream_), "reference"));
  return {};
}

Status GpuMoeReference::add(std::int32_t expert, const void* x, const void* w1, const void* w2) {
  const std::int64_t first = begin_[static_cast<std::size_t>(expert)];
  const std::int64_t rows = begin_[static_cast<std::size_t>(expert) + 1] - first;
  const auto* entries = static_cast<const std::int32_t*>(entries_.get()) + first;
  return add({entries, rows, static_cast<int>(shape_.topk)}, shape_.intermediate, x, w1, w2);
}

Status GpuMoeReference::add_shared(const void* x, const void* w1, const void* w2) {
  return add({nullptr, shape_.shared_intermediate > 0 ? shape_.max_tokens : 0, 1}, shape_.shared_intermediate,
             x, w1, w2);
}

Status GpuMoeReference::add(const Chosen& chosen, std::int64_t inner, const void* x, const void* w1,
                            const void* w2) {
  if (chosen.rows == 0) return {};
  return shape_.dtype == DataType::kBf16 ? add_as<__nv_bfloat16>(chosen, inner, x, w1, w2)
                                         : add_as<__half>(chosen, inner, x, w1, w2);
}

template <typename T>
Status GpuMoeReference::add_as(const Chosen& chosen, std::int64_t inner, const void* x, const void* w1,
                               const void* w2) {
  const auto& [entries, rows, topk] = chosen;
  const AddWeighted add{
      entries,  static_cast<const float*>(weights_.get()), topk,
      shape_.n, static_cast<float*>(sum_.get()),           static_cast<float*>(magnitude_.get())};
  auto of_tokens = operands_of<T>(shape_, rows, inner > 0 ? 2 * inner : shape_.n, shape_.hidden, x, w1);
  of_tokens.from = entries;
  of_tokens.per_row = topk;
  if (inner == 0) return multiply(of_tokens, add, stream_);
  auto* results = static_cast<float*>(first_.get());
  MK_RETURN_IF_ERROR(multiply(of_tokens, StoreResult{results, 2 * inner}, stream_));
  activate_kernel<<<1056, kThreads, 0, stream_>>>(results, static_cast<T*>(activation_.get()), rows * inner,
                                                  inner);
  MK_RETURN_IF_ERROR(cuda_status(cudaGetLastError(), "activations"));
  return multiply(operands_of<T>(shape_, rows, shape_.n, inner, activation_.get(), w2), add, stream_);
}

Result<ProductCheck> GpuMoeReference::compare(const void* y) {
  auto buffer = GpuBuffer::allocate(sizeof(Differences));
  if (!buffer.ok()) return buffer.status();
  Differences found{0, -1, 0, 0, 0};
  MK_RETURN_IF_ERROR(to_gpu(*buffer, &found, sizeof(found), stream_));
  auto* out = static_cast<Differences*>(buffer->get());
  const auto* sum = static_cast<const float*>(sum_.get());
  const auto* magnitude = static_cast<const float*>(magnitude_.get());
  const std::int64_t count = shape_.max_tokens * shape_.n;
  const MoeBound limit = MoeBound::of(shape_);
  if (shape_.dtype == DataType::kBf16) {
    compare_kernel<<<1056, kThreads, 0, stream_>>>(static_cast<const __nv_bfloat16*>(y), sum, magnitude,
                                                   count, limit, out);
  } else {
    compare_kernel<<<1056, kThreads, 0, stream_>>>(static_cast<const __half*>(y), sum, magnitude, count,
                                                   limit, out);
  }
  MK_RETURN_IF_ERROR(cuda_status(cudaGetLastError(), "comparison"));
  MK_RETURN_IF_ERROR(cuda_status(cudaMemcpyAsync(&found, out, sizeof(found), cudaMemcpyDeviceToHost, stream_),
                                 "comparison"));
  MK_RETURN_IF_ERROR(cuda_status(cudaStreamSynchronize(stream_), "comparison"));
  double worst = 0;
  std::memcpy(&worst, &found.worst, sizeof(worst));
  return ProductCheck{static_cast<std::uint64_t>(count), found.wrong, found.first_wrong,
                      std::sqrt(found.error2 / found.reference2), worst};
}

}  // namespace mkernel::bench
