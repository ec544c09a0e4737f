#include "tools/mkbench/gpu_attention_case.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "tools/mkbench/gpu_attention_reference.h"
#include "tools/mkbench/gpu_rows.h"
#include "tools/mkbench/random.h"

namespace mkernel::bench {
namespace {

AttentionShape filled(AttentionShape shape) {
  if (shape.keys == 0) shape.keys = shape.sequence;
  return shape;
}

/// Memory of no bytes has no address.
Status allocate_operand(GpuBuffer& buffer, std::int64_t bytes) {
  auto made = GpuBuffer::allocate(static_cast<std::uint64_t>(std::max<std::int64_t>(bytes, 16)));
  if (made.ok()) buffer = std::move(*made);
  return made.status();
}

}  // namespace

GpuAttentionCase::GpuAttentionCase(const AttentionShape& shape, std::int64_t world, std::int64_t rank)
    : shape_(filled(shape)), world_(world), rank_(rank) {
  // Of a rank alone the last query stands where the last key does.
  queries_ = world > 1 ? kernels::held_positions(shape_.sequence, shape_.causal, world, rank)
                       : kernels::Positions{{Range{shape_.keys - shape_.sequence, shape_.keys}, Range{}}};
  own_keys_ = world > 1 ? queries_.size() : shape_.keys;
}

Result<GpuAttentionCase> GpuAttentionCase::make(const AttentionShape& shape, std::int64_t world,
                                                std::int64_t rank, int sets) {
  GpuAttentionCase made(shape, world, rank);
  for (int i = 0; i < sets; ++i) MK_RETURN_IF_ERROR(made.allocate(made.sets_.emplace_back()));
  if (world == 1) return made;
  const AttentionShape& s = made.shape_;
  const std::int64_t whole = s.batch * s.keys * s.kv_heads * s.head_dim * kElementBytes;
  MK_RETURN_IF_ERROR(allocate_operand(made.whole_k_, whole));
  MK_RETURN_IF_ERROR(allocate_operand(made.whole_v_, whole));
  return made;
}

Status GpuAttentionCase::allocate(Set& set) const {
  const std::int64_t query_heads = shape_.batch * queries_.size() * shape_.heads;
  const std::int64_t queries = query_heads * shape_.head_dim * kElementBytes;
  const std::int64_t keys = shape_.batch * own_keys_ * shape_.kv_heads * shape_.head_dim * kElementBytes;
  MK_RETURN_IF_ERROR(allocate_operand(set.q, queries));
  MK_RETURN_IF_ERROR(allocate_operand(set.k, keys));
  MK_RETURN_IF_ERROR(allocate_operand(set.v, keys));
  MK_RETURN_IF_ERROR(allocate_operand(set.out, queries));
  return allocate_operand(set.lse, query_heads * static_cast<std::int64_t>(sizeof(float)));
}

AttentionArguments GpuAttentionCase::arguments(int set) const {
  const Set& s = sets_[static_cast<std::size_t>(set)];
  return {s.q.get(), s.k.get(), s.v.get(), s.out.get(), static_cast<float*>(s.lse.get())};
}

Status GpuAttentionCase::fill(int set, std::uint64_t seed, CUstream_st* stream, float scale) {
  Set& s = sets_[static_cast<std::size_t>(set)];
  s.seed = seed;
  s.scale = scale;
  const std::uint64_t of_queries = seed_of(seed, 0, static_cast<std::uint64_t>(rank_), 1);
  MK_RETURN_IF_ERROR(
      fill_random(s.q.get(), shape_.dtype, s.q.bytes() / kElementBytes, of_queries, stream, scale));
  MK_RETURN_IF_ERROR(make_whole(s, stream));
  made_ = set;
  if (world_ > 1) {
    MK_RETURN_IF_ERROR(take_rows(whole_k_, s.k, stream));
    MK_RETURN_IF_ERROR(take_rows(whole_v_, s.v, stream));
  }
  MK_RETURN_IF_ERROR(poison(s.lse, stream));
  return poison(s.out, stream);
}

Status GpuAttentionCase::make_whole(const Set& set, CUstream_st* stream) {
  const GpuBuffer &k = world_ > 1 ? whole_k_ : set.k, &v = world_ > 1 ? whole_v_ : set.v;
  MK_RETURN_IF_ERROR(fill_random(k.get(), shape_.dtype, k.bytes() / kElementBytes, seed_of(set.seed, 0, 0, 2),
                                 stream, set.scale));
  return fill_random(v.get(), shape_.dtype, v.bytes() / kElementBytes, seed_of(set.seed, 0, 0, 3), stream);
}

Status GpuAttentionCase::take_rows(const GpuBuffer& whole, const GpuBuffer& own, CUstream_st* stream) const {
  const HeldRows rows{.held = queries_,
                      .count = shape_.batch,
                      .sequence = shape_.keys,
                      .row_bytes = shape_.kv_heads * shape_.head_dim * kElementBytes};
  return rows.take(whole.get(), own.get(), stream);
}

Result<ProductCheck> GpuAttentionCase::check(int set, std::int64_t step, CUstream_st* stream) {
  if (queries_.size() == 0) return ProductCheck{};
  AttentionArguments whole = arguments(set);
  if (world_ > 1) {
    if (made_ != set) MK_RETURN_IF_ERROR(make_whole(sets_[static_cast<std::size_t>(set)], stream));
    made_ = set;
    whole.k = whole_k_.get();
    whole.v = whole_v_.get();
  }
  return check_attention(whole, shape_, queries_, step, stream);
}

Result<std::uint64_t> GpuAttentionCase::digest(int set, CUstream_st* stream) const {
  const Set& s = sets_[static_cast<std::size_t>(set)];
  auto out = digest_of(s.out, stream);
  if (!out.ok()) return out;
  auto lse = digest_of(s.lse, stream);
  if (!lse.ok()) return lse;
  return *out + *lse;
}

}  // namespace mkernel::bench
