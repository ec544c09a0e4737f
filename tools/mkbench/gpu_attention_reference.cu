#include <cmath>

#include "tools/mkbench/gpu_attention_reference.h"
#include "tools/mkbench/gpu_differences.cuh"

namespace mkernel::bench {
namespace {

constexpr int kThreads = 128;  // a thread for each element of a head
constexpr int kChunk = 1024;   // keys whose weights a block keeps

struct Problem {
  std::int64_t batch, queries, keys, heads, kv_heads, head_dim, step;
  /// Queries of the first part, and where both parts begin in the sequence.
  std::int64_t first_part, begin[2];
  std::int64_t left, right;  ///< of the window; -1: all keys
  std::int64_t lse_stride;   ///< from one head to the next
  double scale, unit;
  double of_weight;  ///< error of a weight beside its relative one: of subnormal numbers
};

/// Of the values of all threads of the block, which all get it.
template <class Combine>
__device__ double over_block(double mine, const Combine& combine) {
  __shared__ double all[kThreads];
  all[threadIdx.x] = mine;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half)
      all[threadIdx.x] = combine(all[threadIdx.x], all[threadIdx.x + half]);
    __syncthreads();
  }
  const double result = all[0];
  __syncthreads();
  return result;
}
__device__ double largest(double mine) {
  return over_block(mine, [](double a, double b) { return fmax(a, b); });
}

/// One query of one head: what a block knows of it. Element i of the head belongs to thread i.
struct Softmax {
  double top = -INFINITY, total = 0;
  double magnitude = 0;          ///< of the largest dot product
  double sum = 0, absolute = 0;  ///< of the thread's element: of weight x value
};

template <typename T>
__device__ void attend_chunk(const Problem& p, const double* query, const T* k, const T* v, int keys,
                             double* weights, Softmax& state) {
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t stride = p.kv_heads * p.head_dim;
  double top = state.top, magnitude = state.magnitude;
  for (int key = thread; key < keys; key += kThreads) {
    double dot = 0, size = 0;
    for (int i = 0; i < p.head_dim; ++i) {
      const double product = query[i] * value_of(k[key * stride + i]);
      dot += product;
      size += fabs(product);
    }
    weights[key] = dot * p.scale;
    top = fmax(top, dot * p.scale);
    magnitude = fmax(magnitude, size * p.scale);
  }
  top = largest(top);
  state.magnitude = largest(magnitude);
  const double rescale = exp(state.top - top);
  double total = 0;
  for (int key = thread; key < keys; key += kThreads) total += weights[key] = exp(weights[key] - top);
  total = over_block(total, [](double a, double b) { return a + b; });
  state.top = top;
  state.total = state.total * rescale + total;
  state.sum *= rescale;
  state.absolute *= rescale;
  if (thread < p.head_dim) {
    for (int key = 0; key < keys; ++key) {
      const double term = weights[key] * value_of(v[key * stride + thread]);
      state.sum += term;
      state.absolute += fabs(term);
    }
  }
  __syncthreads();
}

/// A block for every query that is looked at.
template <typename T>
__global__ __launch_bounds__(kThreads) void check_kernel(const T* q, const T* k, const T* v, const T* out,
                                                         const float* lse, const Problem p,
                                                         Differences* differences) {
  __shared__ double query[kThreads], weights[kChunk];
  const std::int64_t row = std::int64_t{blockIdx.x} * p.step;  // [batch, heads, queries]
  const std::int64_t position = row % p.queries, head = row / p.queries % p.heads;
  const std::int64_t batch = row / p.queries / p.heads;
  const std::int64_t first = ((batch * p.queries + position) * p.heads + head) * p.head_dim;
  const std::int64_t kv_head = head / (p.heads / p.kv_heads), stride = p.kv_heads * p.head_dim;
  const std::int64_t kv_first = batch * p.keys * stride + kv_head * p.head_dim;
  const std::int64_t in_sequence =
      position < p.first_part ? p.begin[0] + position : p.begin[1] + position - p.first_part;
  const std::int64_t begin = p.left < 0 ? 0 : max(in_sequence - p.left, std::int64_t{0});
  const std::int64_t end = p.right < 0 ? p.keys : min(in_sequence + p.right + 1, p.keys);
  const std::int64_t visible = max(end - begin, std::int64_t{0});
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < p.head_dim) query[thread] = value_of(q[first + thread]);
  __syncthreads();
  Softmax state;
  for (std::int64_t key = begin; key < end; key += kChunk) {
    const auto keys = static_cast<int>(min(std::int64_t{kChunk}, end - key));
    attend_chunk(p, query, k + kv_first + key * stride, v + kv_first + key * stride, keys, weights, state);
  }
  const double relative = 4 * (static_cast<double>(p.head_dim) + 3) * kFloatUnit * state.magnitude +
                          2 * (static_cast<double>(visible) + 32) * kFloatUnit;
  if (thread < p.head_dim) {
    const double inverse = visible > 0 ? 1 / state.total : 0, expected = state.sum * inverse;
    const double before =
        ((relative + p.unit) * state.absolute + static_cast<double>(visible) * p.of_weight) * inverse;
    compare(value_of(out[first + thread]), expected, before + p.unit * (fabs(expected) + before) + 0x1p-24,
            first + thread, differences);
  }
  if (thread == 0 && lse != nullptr) {
    const double expected = visible > 0 ? state.top + log(state.total) : -INFINITY;
    compare(lse[row / p.queries * p.lse_stride + position], expected,
            relative + 8 * kFloatUnit * (fabs(state.top) + fabs(expected) + 1), first, differences);
  }
}

template <typename T>
void launch_check(const AttentionArguments& arguments, const Problem& p, Differences* differences,
                  cudaStream_t stream) {
  const std::int64_t rows = (p.batch * p.heads * p.queries + p.step - 1) / p.step;
  check_kernel<T><<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(
      static_cast<const T*>(arguments.q), static_cast<const T*>(arguments.k),
      static_cast<const T*>(arguments.v), static_cast<const T*>(arguments.out), arguments.lse, p,
      differences);
}

}  // namespace

Result<ProductCheck> check_attention(const AttentionArguments& arguments, const AttentionShape& shape,
                                     const kernels::Positions& queries, std::int64_t step,
                                     CUstream_st* stream, std::int64_t lse_stride) {
  const Problem p{.batch = shape.batch,
                  .queries = queries.size(),
                  .keys = shape.keys,
                  .heads = shape.heads,
                  .kv_heads = shape.kv_heads,
                  .head_dim = shape.head_dim,
                  .step = step,
                  .first_part = queries.part[0].size(),
                  .begin = {queries.part[0].begin, queries.part[1].begin},
                  .left = shape.window_left,
                  .right = shape.causal ? 0 : shape.window_right,
                  .lse_stride = lse_stride > 0 ? lse_stride : queries.size(),
                  .scale = shape.scale > 0 ? shape.scale : 1 / std::sqrt(static_cast<double>(shape.head_dim)),
                  .unit = rounding_unit_of(shape.dtype),
                  .of_weight = subnormal_error_of(shape.dtype)};
  return counted_differences(stream, [&](Differences* differences) {
    if (shape.dtype == DataType::kBf16) {
      launch_check<__nv_bfloat16>(arguments, p, differences, stream);
    } else {
      launch_check<__half>(arguments, p, differences, stream);
    }
  });
}

}  // namespace mkernel::bench
