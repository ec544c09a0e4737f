#include "tools/mkbench/gpu_varlen_backward_case.h"

#include <cstddef>

#include "tools/mkbench/gpu_backward_case.h"
#include "tools/mkbench/gpu_backward_reference.h"
#include "tools/mkbench/random.h"

namespace mkernel::bench {
namespace {

std::int64_t row_bytes(const AttentionShape& shape, std::int64_t heads) {
  return heads * shape.head_dim * static_cast<std::int64_t>(kernels::element_bytes(shape.dtype));
}

}  // namespace

Result<GpuVarlenBackwardCase> GpuVarlenBackwardCase::make(AttentionShape shape) {
  if (shape.keys == 0) shape.keys = shape.sequence;
  auto operands = GpuVarlenCase::make(shape);
  if (!operands.ok()) return operands.status();
  GpuVarlenBackwardCase made(shape, std::move(*operands));
  const std::int64_t queries = shape.sequence * row_bytes(shape, shape.heads);
  const std::int64_t keys = shape.keys * row_bytes(shape, shape.kv_heads);
  for (const auto& [buffer, bytes] :
       {std::pair{&made.d_out_, queries}, {&made.d_q_, queries}, {&made.d_k_, keys}, {&made.d_v_, keys}}) {
    auto memory = GpuBuffer::allocate(static_cast<std::uint64_t>(bytes));
    if (!memory.ok()) return memory.status();
    *buffer = std::move(*memory);
  }
  return made;
}

AttentionBackwardArguments GpuVarlenBackwardCase::arguments() const {
  const AttentionArguments of_forward = forward();
  return {.q = of_forward.q,
          .k = of_forward.k,
          .v = of_forward.v,
          .out = of_forward.out,
          .d_out = d_out_.get(),
          .lse = of_forward.lse,
          .d_q = d_q_.get(),
          .d_k = d_k_.get(),
          .d_v = d_v_.get(),
          .cu_seqlens_q = of_forward.cu_seqlens_q,
          .cu_seqlens_k = of_forward.cu_seqlens_k};
}

Status GpuVarlenBackwardCase::fill(std::uint64_t seed, CUstream_st* stream, float scale) {
  MK_RETURN_IF_ERROR(operands_.fill(seed, stream, scale));
  const std::uint64_t elements = d_out_.bytes() / kernels::element_bytes(shape_.dtype);
  MK_RETURN_IF_ERROR(fill_random(d_out_.get(), shape_.dtype, elements, seed_of(seed, 0, 0, 4), stream));
  return poison_gradients(stream);
}

Status GpuVarlenBackwardCase::poison_gradients(CUstream_st* stream) {
  for (const GpuBuffer* gradient : {&d_q_, &d_k_, &d_v_}) MK_RETURN_IF_ERROR(poison(*gradient, stream));
  return {};
}

Result<ProductCheck> GpuVarlenBackwardCase::check(const Lengths& q, const Lengths& k, std::int64_t step,
                                                  CUstream_st* stream) const {
  ProductCheck all;
  const AttentionBackwardArguments whole = arguments();
  for (std::size_t i = 0; i + 1 < q.size(); ++i) {
    AttentionShape one = shape_;
    one.sequence = q[i + 1] - q[i];
    one.keys = k[i + 1] - k[i];
    if (one.sequence + one.keys == 0) continue;
    const auto at = [](const void* tensor, std::int64_t bytes) {
      return static_cast<const std::byte*>(tensor) + bytes;
    };
    const auto gradient_at = [](void* tensor, std::int64_t bytes) {
      return static_cast<std::byte*>(tensor) + bytes;
    };
    const std::int64_t query = q[i] * row_bytes(one, one.heads), key = k[i] * row_bytes(one, one.kv_heads);
    const AttentionBackwardArguments operands{.q = at(whole.q, query),
                                              .k = at(whole.k, key),
                                              .v = at(whole.v, key),
                                              .out = at(whole.out, query),
                                              .d_out = at(whole.d_out, query),
                                              .lse = whole.lse + q[i],
                                              .d_q = gradient_at(whole.d_q, query),
                                              .d_k = gradient_at(whole.d_k, key),
                                              .d_v = gradient_at(whole.d_v, key)};
    auto check =
        check_attention_backward(operands, one, GradientRows::all(one), step, stream, shape_.sequence);
    if (!check.ok()) return check;
    add_check(*check, q[i] * one.heads * one.head_dim, all);
  }
  return all;
}

Result<std::uint64_t> GpuVarlenBackwardCase::digest(CUstream_st* stream) const {
  return digest_of_gradients(d_q_, d_k_, d_v_, stream);
}

Result<std::uint64_t> GpuVarlenBackwardCase::written_from(std::int64_t query, std::int64_t key,
                                                          CUstream_st* stream) const {
  std::uint64_t all = 0;
  for (const auto& [gradient, bytes] : {std::pair{&d_q_, query * row_bytes(shape_, shape_.heads)},
                                        {&d_k_, key * row_bytes(shape_, shape_.kv_heads)},
                                        {&d_v_, key * row_bytes(shape_, shape_.kv_heads)}}) {
    auto written = written_behind(*gradient, static_cast<std::uint64_t>(bytes), stream);
    if (!written.ok()) return written;
    all += *written;
  }
  return all;
}

}  // namespace mkernel::bench
