#include "tools/mkbench/gpu_backward_case.h"

#include "tools/mkbench/gpu_backward_reference.h"
#include "tools/mkbench/random.h"

namespace mkernel::bench {

Result<GpuBackwardCase> GpuBackwardCase::make(AttentionShape shape, int sets) {
  if (shape.keys == 0) shape.keys = shape.sequence;
  auto operands = GpuAttentionCase::make(shape, 1, 0, sets);
  if (!operands.ok()) return operands.status();
  GpuBackwardCase made(shape, std::move(*operands));
  const std::int64_t row = shape.batch * shape.head_dim * kElementBytes;
  const std::int64_t queries = row * shape.sequence * shape.heads, keys = row * shape.keys * shape.kv_heads;
  for (int i = 0; i < sets; ++i) {
    Set& set = made.sets_.emplace_back();
    for (const auto& [buffer, bytes] :
         {std::pair{&set.d_out, queries}, {&set.d_q, queries}, {&set.d_k, keys}, {&set.d_v, keys}}) {
      auto memory = GpuBuffer::allocate(static_cast<std::uint64_t>(bytes));
      if (!memory.ok()) return memory.status();
      *buffer = std::move(*memory);
    }
  }
  return made;
}

AttentionBackwardArguments GpuBackwardCase::arguments(int set) const {
  const AttentionArguments of_forward = forward(set);
  const Set& s = of(set);
  return {.q = of_forward.q,
          .k = of_forward.k,
          .v = of_forward.v,
          .out = of_forward.out,
          .d_out = s.d_out.get(),
          .lse = of_forward.lse,
          .d_q = s.d_q.get(),
          .d_k = s.d_k.get(),
          .d_v = s.d_v.get()};
}

Status GpuBackwardCase::fill(int set, std::uint64_t seed, CUstream_st* stream, float scale) {
  MK_RETURN_IF_ERROR(operands_.fill(set, seed, stream, scale));
  const GpuBuffer& d_out = of(set).d_out;
  MK_RETURN_IF_ERROR(
      fill_random(d_out.get(), shape_.dtype, d_out.bytes() / kElementBytes, seed_of(seed, 0, 0, 4), stream));
  return poison_gradients(set, stream);
}

Status GpuBackwardCase::poison_gradients(int set, CUstream_st* stream) {
  MK_RETURN_IF_ERROR(poison(of(set).d_q, stream));
  MK_RETURN_IF_ERROR(poison(of(set).d_k, stream));
  return poison(of(set).d_v, stream);
}

Result<ProductCheck> GpuBackwardCase::check(int set, std::int64_t step, CUstream_st* stream) const {
  return check_attention_backward(arguments(set), shape_, GradientRows::all(shape_), step, stream);
}

Result<std::uint64_t> GpuBackwardCase::digest(int set, CUstream_st* stream) const {
  const Set& s = of(set);
  return digest_of_gradients(s.d_q, s.d_k, s.d_v, stream);
}

Result<std::uint64_t> digest_of_gradients(const GpuBuffer& d_q, const GpuBuffer& d_k, const GpuBuffer& d_v,
                                          CUstream_st* stream) {
  std::uint64_t sum = 0;
  for (const GpuBuffer* gradient : {&d_q, &d_k, &d_v}) {
    auto digest = digest_of(*gradient, stream);
    if (!digest.ok()) return digest;
    sum = sum * 3 + *digest;  // not the same when two gradients are swapped
  }
  return sum;
}

}  // namespace mkernel::bench
