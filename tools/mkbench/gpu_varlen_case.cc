#include "tools/mkbench/gpu_varlen_case.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "kernels/cuda/memory/error.h"
#include "tools/mkbench/gpu_attention_reference.h"
#include "tools/mkbench/random.h"

namespace mkernel::bench {
namespace {

constexpr std::uint16_t kUntouched = 0xffff;  // of poison()

std::int64_t bytes_of_head(const AttentionShape& shape) {
  return shape.head_dim * static_cast<std::int64_t>(kernels::element_bytes(shape.dtype));
}

Status copy_operand(void* to, const void* from, std::size_t bytes, CUstream_st* stream) {
  return kernels::cuda_status(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream),
                              "operands of attention");
}

}  // namespace

GpuVarlenCase::GpuVarlenCase(const AttentionShape& shape) : shape_(shape) {
  if (shape_.keys == 0) shape_.keys = shape_.sequence;
}

Result<GpuVarlenCase> GpuVarlenCase::make(const AttentionShape& shape) {
  GpuVarlenCase made(shape);
  const AttentionShape& s = made.shape_;
  const std::int64_t heads = s.sequence * s.heads;
  const std::int64_t queries = heads * bytes_of_head(s), keys = s.keys * s.kv_heads * bytes_of_head(s);
  for (const auto& [buffer, bytes] :
       {std::pair{&made.q_, queries},
        {&made.k_, keys},
        {&made.v_, keys},
        {&made.out_, queries},
        {&made.lse_, heads * std::int64_t{sizeof(float)}},
        {&made.cu_seqlens_q_, (s.max_sequences + 1) * std::int64_t{sizeof(std::int32_t)}},
        {&made.cu_seqlens_k_, (s.max_sequences + 1) * std::int64_t{sizeof(std::int32_t)}}}) {
    auto memory = GpuBuffer::allocate(static_cast<std::uint64_t>(bytes));
    if (!memory.ok()) return memory.status();
    *buffer = std::move(*memory);
  }
  return made;
}

AttentionArguments GpuVarlenCase::arguments() const {
  return {q_.get(),
          k_.get(),
          v_.get(),
          out_.get(),
          static_cast<float*>(lse_.get()),
          static_cast<const std::int32_t*>(cu_seqlens_q_.get()),
          static_cast<const std::int32_t*>(cu_seqlens_k_.get())};
}

Status GpuVarlenCase::fill(std::uint64_t seed, CUstream_st* stream, float scale) {
  std::uint64_t operand = 0;
  for (const GpuBuffer* buffer : {&q_, &k_, &v_}) {
    MK_RETURN_IF_ERROR(fill_random(buffer->get(), shape_.dtype,
                                   buffer->bytes() / kernels::element_bytes(shape_.dtype),
                                   seed_of(seed, 0, 0, ++operand), stream, buffer == &v_ ? 1 : scale));
  }
  MK_RETURN_IF_ERROR(poison(lse_, stream));
  return poison(out_, stream);
}

Status GpuVarlenCase::set_lengths(const Lengths& q, const Lengths& k, CUstream_st* stream) const {
  MK_RETURN_IF_ERROR(copy_operand(cu_seqlens_q_.get(), q.data(), q.size() * sizeof(q[0]), stream));
  return copy_operand(cu_seqlens_k_.get(), k.data(), k.size() * sizeof(k[0]), stream);
}

Result<ProductCheck> GpuVarlenCase::check(const Lengths& q, const Lengths& k, std::int64_t step,
                                          CUstream_st* stream) const {
  ProductCheck all;
  for (std::size_t i = 0; i + 1 < q.size(); ++i) {
    AttentionShape one = shape_;
    one.sequence = q[i + 1] - q[i];
    one.keys = k[i + 1] - k[i];
    if (one.sequence == 0) continue;
    const auto at = [&](const GpuBuffer& buffer, std::int64_t row, std::int64_t heads) {
      return static_cast<std::byte*>(buffer.get()) + row * heads * bytes_of_head(one);
    };
    const AttentionArguments operands{at(q_, q[i], one.heads), at(k_, k[i], one.kv_heads),
                                      at(v_, k[i], one.kv_heads), at(out_, q[i], one.heads),
                                      static_cast<float*>(lse_.get()) + q[i]};
    // The last query stands where the last key does.
    auto check = check_attention(operands, one, {{Range{one.keys - one.sequence, one.keys}, Range{}}}, step,
                                 stream, shape_.sequence);
    if (!check.ok()) return check;
    add_check(*check, q[i] * one.heads * one.head_dim, all);
  }
  return all;
}

Result<std::uint64_t> GpuVarlenCase::digest(CUstream_st* stream) const {
  auto out = digest_of(out_, stream);
  if (!out.ok()) return out;
  auto lse = digest_of(lse_, stream);
  if (!lse.ok()) return lse;
  return *out + *lse;
}

Result<std::uint64_t> GpuVarlenCase::written_from(std::int64_t first, CUstream_st* stream) const {
  return written_behind(out_, static_cast<std::uint64_t>(first * shape_.heads * bytes_of_head(shape_)),
                        stream);
}

void add_check(const ProductCheck& one, std::int64_t first, ProductCheck& all) {
  if (one.wrong > 0) all.first_wrong = one.first_wrong + first;
  all.elements += one.elements;
  all.wrong += one.wrong;
  all.relative_error = std::max(all.relative_error, one.relative_error);
  all.worst = std::max(all.worst, one.worst);
}

Result<std::uint64_t> written_behind(const GpuBuffer& buffer, std::uint64_t bytes, CUstream_st* stream) {
  std::vector<std::uint16_t> rest((buffer.bytes() - bytes) / sizeof(std::uint16_t));
  if (rest.empty()) return std::uint64_t{0};
  MK_RETURN_IF_ERROR(copy_operand(rest.data(), static_cast<const std::byte*>(buffer.get()) + bytes,
                                  rest.size() * sizeof(rest[0]), stream));
  MK_RETURN_IF_ERROR(kernels::cuda_status(cudaStreamSynchronize(stream), "outputs of attention"));
  return static_cast<std::uint64_t>(
      std::count_if(rest.begin(), rest.end(), [](std::uint16_t bits) { return bits != kUntouched; }));
}

}  // namespace mkernel::bench
