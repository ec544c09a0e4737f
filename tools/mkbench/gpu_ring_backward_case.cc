#include "tools/mkbench/gpu_ring_backward_case.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "tools/mkbench/gpu_backward_reference.h"
#include "tools/mkbench/gpu_rows.h"

namespace mkernel::bench {

Result<GpuRingBackwardCase> GpuRingBackwardCase::make(const AttentionShape& shape, std::int64_t world,
                                                      std::int64_t rank, int sets) {
  auto whole = GpuBackwardCase::make(shape);
  if (!whole.ok()) return whole.status();
  AttentionShape filled = shape;
  filled.keys = shape.sequence;
  GpuRingBackwardCase made(filled, std::move(*whole), world, rank);
  for (int i = 0; i < sets; ++i) MK_RETURN_IF_ERROR(made.allocate(made.sets_.emplace_back()));
  return made;
}

Status GpuRingBackwardCase::allocate(Set& set) const {
  const std::int64_t rows = shape_.batch * held_.size(), row = shape_.head_dim * kElementBytes;
  const std::int64_t queries = rows * shape_.heads * row, keys = rows * shape_.kv_heads * row;
  const std::int64_t sums = rows * shape_.heads * static_cast<std::int64_t>(sizeof(float));
  for (const auto& [buffer, bytes] : {std::pair{&set.q, queries},
                                      {&set.out, queries},
                                      {&set.d_out, queries},
                                      {&set.d_q, queries},
                                      {&set.k, keys},
                                      {&set.v, keys},
                                      {&set.d_k, keys},
                                      {&set.d_v, keys},
                                      {&set.lse, sums}}) {
    // Memory of no bytes has no address.
    auto memory = GpuBuffer::allocate(static_cast<std::uint64_t>(std::max<std::int64_t>(bytes, 16)));
    if (!memory.ok()) return memory.status();
    *buffer = std::move(*memory);
  }
  return {};
}

AttentionBackwardArguments GpuRingBackwardCase::arguments(int set) const {
  const Set& s = sets_[static_cast<std::size_t>(set)];
  return {.q = s.q.get(),
          .k = s.k.get(),
          .v = s.v.get(),
          .out = s.out.get(),
          .d_out = s.d_out.get(),
          .lse = static_cast<const float*>(s.lse.get()),
          .d_q = s.d_q.get(),
          .d_k = s.d_k.get(),
          .d_v = s.d_v.get()};
}

Status GpuRingBackwardCase::fill(int set, std::uint64_t seed, CUstream_st* stream, const Attend& attend) {
  Set& s = sets_[static_cast<std::size_t>(set)];
  s.seed = seed;
  MK_RETURN_IF_ERROR(make_whole(set, stream, attend));
  MK_RETURN_IF_ERROR(take_rows(s, stream));
  for (const GpuBuffer* gradient : {&s.d_q, &s.d_k, &s.d_v}) MK_RETURN_IF_ERROR(poison(*gradient, stream));
  return {};
}

Status GpuRingBackwardCase::make_whole(int set, CUstream_st* stream, const Attend& attend) {
  made_ = -1;
  MK_RETURN_IF_ERROR(whole_.fill(0, sets_[static_cast<std::size_t>(set)].seed, stream));
  MK_RETURN_IF_ERROR(attend(whole_.forward()));
  made_ = set;
  return {};
}

Status GpuRingBackwardCase::take_rows(const Set& set, CUstream_st* stream) const {
  const AttentionBackwardArguments whole = whole_.arguments();
  const auto rows = [this](std::int64_t heads) {
    return HeldRows{held_, shape_.batch, shape_.sequence, heads * shape_.head_dim * kElementBytes};
  };
  const HeldRows queries = rows(shape_.heads), keys = rows(shape_.kv_heads);
  const HeldRows sums{held_, shape_.batch * shape_.heads, shape_.sequence, sizeof(float)};
  MK_RETURN_IF_ERROR(queries.take(whole.q, set.q.get(), stream));
  MK_RETURN_IF_ERROR(queries.take(whole.out, set.out.get(), stream));
  MK_RETURN_IF_ERROR(queries.take(whole.d_out, set.d_out.get(), stream));
  MK_RETURN_IF_ERROR(keys.take(whole.k, set.k.get(), stream));
  MK_RETURN_IF_ERROR(keys.take(whole.v, set.v.get(), stream));
  return sums.take(whole.lse, set.lse.get(), stream);
}

Result<ProductCheck> GpuRingBackwardCase::check(int set, std::int64_t step, CUstream_st* stream,
                                                const Attend& attend) {
  if (made_ != set) MK_RETURN_IF_ERROR(make_whole(set, stream, attend));
  AttentionBackwardArguments found = whole_.arguments();
  const AttentionBackwardArguments own = arguments(set);
  found.d_q = own.d_q;
  found.d_k = own.d_k;
  found.d_v = own.d_v;
  const GradientRows rows{.queries = held_, .keys = held_, .parts = world_, .nodes = nodes_};
  return check_attention_backward(found, shape_, rows, step, stream);
}

Result<std::uint64_t> GpuRingBackwardCase::digest(int set, CUstream_st* stream) const {
  const Set& s = sets_[static_cast<std::size_t>(set)];
  return digest_of_gradients(s.d_q, s.d_k, s.d_v, stream);
}

}  // namespace mkernel::bench
