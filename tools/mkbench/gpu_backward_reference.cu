#include <cmath>

#include "tools/mkbench/gpu_backward_reference.h"
#include "tools/mkbench/gpu_differences.cuh"

namespace mkernel::bench {
namespace {

constexpr int kThreads = 128;  // a thread for each element of a head
constexpr int kChunk = 256;    // pairs of a query and a key that a block keeps

/// How far a number may be off that was rounded: relative to it, and beside that.
struct Rounding {
  double unit = 0, absolute = 0;
};

/// Positions of the sequence whose gradients are there, in their order.
struct HeldPositions {
  std::int64_t rows, first_part, begin[2];

  __device__ std::int64_t position(std::int64_t row) const {
    return row < first_part ? begin[0] + row : begin[1] + row - first_part;
  }
};

HeldPositions held_positions_of(const kernels::Positions& held) {
  return {held.size(), held.part[0].size(), {held.part[0].begin, held.part[1].begin}};
}

template <typename T>
struct Problem {
  const T *q, *k, *v, *out, *d_out, *d_q, *d_k, *d_v;
  const float* lse;
  std::int64_t lse_stride;  ///< from one head to the next
  std::int64_t batch, queries, keys, heads, kv_heads, head_dim, step;
  std::int64_t left, right;  ///< keys before and behind its own that a query sees; -1: all
  double scale, unit;
  double subnormal;   ///< error of a weight beside its relative one
  Rounding partials;  ///< of parts of the gradients of keys, before they are summed, and of sums of nodes
  HeldPositions held_queries, held_keys;

  /// Where the row of a query or a key begins.
  __device__ std::int64_t query_at(std::int64_t of_batch, std::int64_t head, std::int64_t query) const {
    return ((of_batch * queries + query) * heads + head) * head_dim;
  }
  __device__ std::int64_t key_at(std::int64_t of_batch, std::int64_t kv_head, std::int64_t key) const {
    return ((of_batch * keys + key) * kv_heads + kv_head) * head_dim;
  }
  /// Where the gradients of a row of those that are held begin.
  __device__ std::int64_t d_query_at(std::int64_t of_batch, std::int64_t head, std::int64_t row) const {
    return ((of_batch * held_queries.rows + row) * heads + head) * head_dim;
  }
  __device__ std::int64_t d_key_at(std::int64_t of_batch, std::int64_t kv_head, std::int64_t row) const {
    return ((of_batch * held_keys.rows + row) * kv_heads + kv_head) * head_dim;
  }
};

/// A number of fp32 arithmetic with the error that it may have.
struct Uncertain {
  double value, error;
};

template <typename T>
__device__ Uncertain dot(const T* a, const T* b, std::int64_t head_dim) {
  double sum = 0, magnitude = 0;
  for (std::int64_t i = 0; i < head_dim; ++i) {
    const double product = value_of(a[i]) * value_of(b[i]);
    sum += product;
    magnitude += fabs(product);
  }
  return {sum, (static_cast<double>(head_dim) + 2) * kFloatUnit * magnitude};
}

/// What a query and a key make of each other: the weight, and the gradient of the score times its scale. Both
/// are rounded before they meet the operands.
struct Pair {
  Uncertain weight, d_score;
};

/// `query`, `key`: where their rows begin. `lse`: of the query.
template <typename T>
__device__ Pair pair_of(const Problem<T>& p, std::int64_t query, std::int64_t key, double lse) {
  const Uncertain score = dot(p.q + query, p.k + key, p.head_dim);
  const Uncertain d_weight = dot(p.d_out + query, p.v + key, p.head_dim);
  const Uncertain delta = dot(p.out + query, p.d_out + query, p.head_dim);
  const double exponent = score.value * p.scale, weight = exp(exponent - lse);
  const double weight_error =
      weight * (2 * score.error * p.scale + 8 * kFloatUnit * (fabs(exponent) + fabs(lse) + 1));
  const double difference = d_weight.value - delta.value;
  const double d_error = weight_error * fabs(difference) +
                         weight * (d_weight.error + delta.error + 4 * kFloatUnit * fabs(difference));
  const auto narrowed = [&p](double value, double error) {
    return error + p.unit * (fabs(value) + error) + p.subnormal;
  };
  const double d_score = weight * difference;
  return {{weight, narrowed(weight, weight_error)},
          {d_score * p.scale, narrowed(d_score, d_error) * p.scale}};
}

/// The sum of one element of a gradient, of its terms' magnitudes, and how far the terms may be off.
struct Sum {
  double value = 0, magnitude = 0, error = 0;

  __device__ void add(const Uncertain& factor, double other) {
    value += factor.value * other;
    magnitude += fabs(factor.value * other);
    error += factor.error * fabs(other);
  }
  /// `partials`: of parts that are rounded before they are summed.
  __device__ void check(double seen, double terms, double unit, const Rounding& partials, std::int64_t at,
                        Differences* out) const {
    const double all =
        error + ((terms + 32) * kFloatUnit + partials.unit) * (magnitude + error) + partials.absolute;
    compare(seen, value, all + unit * (fabs(value) + all) + 0x1p-24, at, out);
  }
};

/// Calls add(i, pair) for i = begin .. end - 1 in every thread; make(i) computes the pair in one of them.
template <class Make, class Add>
__device__ void for_pairs(std::int64_t begin, std::int64_t end, const Make& make, const Add& add) {
  __shared__ Pair pairs[kChunk];
  for (std::int64_t first = begin; first < end; first += kChunk) {
    const auto count = static_cast<int>(min(std::int64_t{kChunk}, end - first));
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) pairs[i] = make(first + i);
    __syncthreads();
    for (int i = 0; i < count; ++i) add(first + i, pairs[i]);
    __syncthreads();
  }
}

/// A block for every query that is looked at; element i of the head belongs to thread i.
template <typename T>
__global__ __launch_bounds__(kThreads) void check_queries(const Problem<T> p, Differences* differences) {
  const std::int64_t index = std::int64_t{blockIdx.x} * p.step;  // [batch, heads, held queries]
  const std::int64_t row = index % p.held_queries.rows, head = index / p.held_queries.rows % p.heads;
  const std::int64_t batch = index / p.held_queries.rows / p.heads, kv_head = head / (p.heads / p.kv_heads);
  const std::int64_t query = p.held_queries.position(row);
  const double lse = p.lse[(batch * p.heads + head) * p.lse_stride + query];
  const std::int64_t at = p.query_at(batch, head, query), i = threadIdx.x;
  // The last query stands where the last key does.
  const std::int64_t own = query + p.keys - p.queries;
  const std::int64_t begin = p.left < 0 ? 0 : max(own - p.left, std::int64_t{0});
  const std::int64_t end = p.right < 0 ? p.keys : min(own + p.right + 1, p.keys);
  Sum d_q;
  for_pairs(
      begin, end, [&](std::int64_t key) { return pair_of(p, at, p.key_at(batch, kv_head, key), lse); },
      [&](std::int64_t key, const Pair& pair) {
        if (i < p.head_dim) d_q.add(pair.d_score, value_of(p.k[p.key_at(batch, kv_head, key) + i]));
      });
  if (i >= p.head_dim) return;
  const std::int64_t element = p.d_query_at(batch, head, row) + i;
  d_q.check(value_of(p.d_q[element]), static_cast<double>(p.keys), p.unit, {}, element, differences);
}

/// A block for every key that is looked at, whose gradients are sums over all heads of queries that share it.
template <typename T>
__global__ __launch_bounds__(kThreads) void check_keys(const Problem<T> p, Differences* differences) {
  const std::int64_t index = std::int64_t{blockIdx.x} * p.step;  // [batch, kv_heads, held keys]
  const std::int64_t row = index % p.held_keys.rows, kv_head = index / p.held_keys.rows % p.kv_heads;
  const std::int64_t batch = index / p.held_keys.rows / p.kv_heads, group = p.heads / p.kv_heads;
  const std::int64_t key = p.held_keys.position(row);
  const std::int64_t at = p.key_at(batch, kv_head, key), i = threadIdx.x;
  const std::int64_t own = key + p.queries - p.keys;  // the query that stands there
  const std::int64_t begin = p.right < 0 ? 0 : max(own - p.right, std::int64_t{0});
  const std::int64_t end = p.left < 0 ? p.queries : min(own + p.left + 1, p.queries);
  Sum d_k, d_v;
  for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    const float* lse = p.lse + (batch * p.heads + head) * p.lse_stride;
    for_pairs(
        begin, end,
        [&](std::int64_t query) { return pair_of(p, p.query_at(batch, head, query), at, lse[query]); },
        [&](std::int64_t query, const Pair& pair) {
          if (i >= p.head_dim) return;
          const std::int64_t element = p.query_at(batch, head, query) + i;
          d_k.add(pair.d_score, value_of(p.q[element]));
          d_v.add(pair.weight, value_of(p.d_out[element]));
        });
  }
  if (i >= p.head_dim) return;
  const auto terms = static_cast<double>(group * p.queries);
  const std::int64_t element = p.d_key_at(batch, kv_head, row) + i;
  d_k.check(value_of(p.d_k[element]), terms, p.unit, p.partials, element, differences);
  d_v.check(value_of(p.d_v[element]), terms, p.unit, p.partials, element, differences);
}

Rounding rounding_of_partials(const GradientRows& rows, DataType type) {
  if (rows.parts == 1) return {0, subnormal_error_of(type)};
  const std::int64_t sums = rows.nodes > 1 ? rows.nodes : 0;
  return {(sums > 0 ? 2 : 1) * rounding_unit_of(type),
          static_cast<double>(rows.parts + sums) * subnormal_error_of(type)};
}

template <typename T>
void launch_check(const AttentionBackwardArguments& arguments, const AttentionShape& shape,
                  const GradientRows& rows, std::int64_t step, Differences* differences, cudaStream_t stream,
                  std::int64_t lse_stride) {
  const auto of = [](const void* tensor) { return static_cast<const T*>(tensor); };
  const Problem<T> p{
      .q = of(arguments.q),
      .k = of(arguments.k),
      .v = of(arguments.v),
      .out = of(arguments.out),
      .d_out = of(arguments.d_out),
      .d_q = of(arguments.d_q),
      .d_k = of(arguments.d_k),
      .d_v = of(arguments.d_v),
      .lse = arguments.lse,
      .lse_stride = lse_stride > 0 ? lse_stride : shape.sequence,
      .batch = shape.batch,
      .queries = shape.sequence,
      .keys = shape.keys,
      .heads = shape.heads,
      .kv_heads = shape.kv_heads,
      .head_dim = shape.head_dim,
      .step = step,
      .left = shape.window_left,
      .right = shape.causal ? 0 : shape.window_right,
      .scale = shape.scale > 0 ? shape.scale : 1 / std::sqrt(static_cast<double>(shape.head_dim)),
      .unit = rounding_unit_of(shape.dtype),
      .subnormal = subnormal_error_of(shape.dtype),
      .partials = rounding_of_partials(rows, shape.dtype),
      .held_queries = held_positions_of(rows.queries),
      .held_keys = held_positions_of(rows.keys)};
  const auto blocks = [step](std::int64_t all) { return static_cast<unsigned>((all + step - 1) / step); };
  if (const unsigned queries = blocks(p.batch * p.heads * p.held_queries.rows); queries > 0)
    check_queries<T><<<queries, kThreads, 0, stream>>>(p, differences);
  if (const unsigned keys = blocks(p.batch * p.kv_heads * p.held_keys.rows); keys > 0)
    check_keys<T><<<keys, kThreads, 0, stream>>>(p, differences);
}

}  // namespace

Result<ProductCheck> check_attention_backward(const AttentionBackwardArguments& arguments,
                                              const AttentionShape& shape, const GradientRows& rows,
                                              std::int64_t step, CUstream_st* stream,
                                              std::int64_t lse_stride) {
  return counted_differences(stream, [&](Differences* differences) {
    if (shape.dtype == DataType::kBf16) {
      launch_check<__nv_bfloat16>(arguments, shape, rows, step, differences, stream, lse_stride);
    } else {
      launch_check<__half>(arguments, shape, rows, step, differences, stream, lse_stride);
    }
  });
}

}  // namespace mkernel::bench
