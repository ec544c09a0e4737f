#include "tools/mkbench/gpu_gemm_case.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "tools/mkbench/random.h"

namespace mkernel::bench {
namespace {

/// A rank may have no rows; memory of 0 bytes has no address.
Status allocate_elements(GpuBuffer& buffer, std::int64_t elements) {
  auto memory = GpuBuffer::allocate(static_cast<std::uint64_t>(std::max<std::int64_t>(elements, 8)) * 2);
  if (!memory.ok()) return memory.status();
  buffer = std::move(*memory);
  return {};
}

}  // namespace

Result<GpuGemmCase> GpuGemmCase::make(OpKind kind, const GemmShape& shape, std::uint32_t world,
                                      std::uint32_t ranks_per_node, std::uint32_t rank, int sets,
                                      CUstream_st* stream) {
  GpuGemmCase made;
  made.kind_ = kind;
  made.shape_ = shape;
  made.world_ = world;
  made.ranks_per_node_ = ranks_per_node;
  made.rank_ = rank;
  made.stream_ = stream;
  MK_RETURN_IF_ERROR(made.allocate(sets));
  return Result<GpuGemmCase>(std::move(made));
}

Status GpuGemmCase::allocate(int sets) {
  const bool gathers = kind_ == OpKind::kAgGemm;
  const std::int64_t c_rows =
      kind_ == OpKind::kGemmRs ? block_range(shape_.m, world_, rank_).size() : shape_.m;
  for (int i = 0; i < sets; ++i) {
    Set& set = sets_.emplace_back();
    MK_RETURN_IF_ERROR(allocate_elements(set.a, a_rows(rank_) * shape_.k));
    MK_RETURN_IF_ERROR(allocate_elements(set.b, shape_.k * shape_.n));
    MK_RETURN_IF_ERROR(allocate_elements(set.c, c_rows * shape_.n));
  }
  for (std::uint32_t i = 0; i < (gathers ? 1 : world_); ++i) {
    MK_RETURN_IF_ERROR(allocate_elements(scratch_.a.emplace_back(), shape_.m * shape_.k));
    if (!gathers) MK_RETURN_IF_ERROR(allocate_elements(scratch_.b.emplace_back(), shape_.k * shape_.n));
  }
  return {};
}

std::int64_t GpuGemmCase::a_rows(std::uint32_t rank) const {
  return kind_ == OpKind::kAgGemm ? block_range(shape_.m, world_, rank).size() : shape_.m;
}

Range GpuGemmCase::checked_rows() const {
  return kind_ == OpKind::kAgGemm ? Range{0, shape_.m} : block_range(shape_.m, world_, rank_);
}

GemmArguments GpuGemmCase::arguments(int set) const {
  return {sets_[set].a.get(), sets_[set].b.get(), sets_[set].c.get()};
}

Status GpuGemmCase::fill_operand(void* data, std::uint64_t iteration, std::uint32_t rank,
                                 Operand which) const {
  const std::int64_t elements = which == kA ? a_rows(rank) * shape_.k : shape_.k * shape_.n;
  return fill_random(data, shape_.dtype, static_cast<std::uint64_t>(elements),
                     seed_of(static_cast<std::uint64_t>(kind_), iteration, rank, which), stream_);
}

Status GpuGemmCase::fill(int set, std::uint64_t iteration) {
  Set& s = sets_[set];
  s.iteration = iteration;
  MK_RETURN_IF_ERROR(fill_operand(s.a.get(), iteration, rank_, kA));
  MK_RETURN_IF_ERROR(fill_operand(s.b.get(), iteration, rank_, kB));
  return poison(s.c, stream_);
}

Result<ProductCheck> GpuGemmCase::check_gathered(const Set& set) {
  auto* rows = static_cast<std::byte*>(scratch_.a[0].get());
  for (std::uint32_t rank = 0; rank < world_; ++rank) {
    const std::int64_t first = block_range(shape_.m, world_, rank).begin;
    MK_RETURN_IF_ERROR(fill_operand(rows + first * shape_.k * 2, set.iteration, rank, kA));
  }
  return check_product({rows, set.b.get(), set.c.get()}, shape_, stream_);
}

Result<ProductCheck> GpuGemmCase::check_reduced(const Set& set) {
  std::vector<GemmArguments> partials;
  for (std::uint32_t rank = 0; rank < world_; ++rank) {
    MK_RETURN_IF_ERROR(fill_operand(scratch_.a[rank].get(), set.iteration, rank, kA));
    MK_RETURN_IF_ERROR(fill_operand(scratch_.b[rank].get(), set.iteration, rank, kB));
    partials.push_back({scratch_.a[rank].get(), scratch_.b[rank].get(), nullptr});
  }
  const std::int64_t skipped = kind_ == OpKind::kGemmAr ? checked_rows().begin : 0;
  const auto* rows = static_cast<const std::byte*>(set.c.get()) + skipped * shape_.n * 2;
  return check_reduced_product(partials, ranks_per_node_, rows, shape_, checked_rows(), stream_);
}

Result<ProductCheck> GpuGemmCase::verify(int set) {
  return kind_ == OpKind::kAgGemm ? check_gathered(sets_[set]) : check_reduced(sets_[set]);
}

Result<std::uint64_t> GpuGemmCase::digest(int set) const {
  return digest_of(sets_[set].c, stream_);
}

}  // namespace mkernel::bench
