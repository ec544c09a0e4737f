#include "tools/mkbench/gpu_moe_case.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>

#include "kernels/cuda/memory/error.h"
#include "tools/mkbench/random.h"

namespace mkernel::bench {
namespace {

/// A rank may have no experts; memory of 0 bytes has no address.
Status allocate_bytes(GpuBuffer& buffer, std::int64_t bytes) {
  auto memory = GpuBuffer::allocate(static_cast<std::uint64_t>(bytes) + 16);
  if (memory.ok()) buffer = std::move(*memory);
  return memory.status();
}

template <typename T>
Status upload(const GpuBuffer& to, const std::vector<T>& from, CUstream_st* stream) {
  return kernels::cuda_status(
      cudaMemcpyAsync(to.get(), from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice, stream),
      "routing");
}

}  // namespace

Result<GpuMoeCase> GpuMoeCase::make(const MoeShape& shape, std::uint32_t world, std::uint32_t rank, int sets,
                                    CUstream_st* stream) {
  GpuMoeCase made;
  made.shape_ = shape;
  made.world_ = world;
  made.rank_ = rank;
  made.stream_ = stream;
  MK_RETURN_IF_ERROR(made.allocate(sets));
  const Range own = block_range(shape.experts, world, rank);
  for (std::int64_t expert = own.begin; expert < own.end; ++expert) {
    for (const auto& [weights, which] : {std::pair{&made.w1_, kW1}, {&made.w2_, kW2}}) {
      auto* to = static_cast<std::byte*>(weights->get()) + (expert - own.begin) * made.elements(which) * 2;
      MK_RETURN_IF_ERROR(made.fill_matrix(to, expert, which));
    }
  }
  MK_RETURN_IF_ERROR(made.fill_matrix(made.shared_w1_.get(), 0, kSharedW1));
  MK_RETURN_IF_ERROR(made.fill_matrix(made.shared_w2_.get(), 0, kSharedW2));
  auto reference = GpuMoeReference::make(shape, stream);
  if (!reference.ok()) return reference.status();
  made.reference_ = std::move(*reference);
  return Result<GpuMoeCase>(std::move(made));
}

Status GpuMoeCase::allocate(int sets) {
  const std::int64_t mine = block_range(shape_.experts, world_, rank_).size();
  MK_RETURN_IF_ERROR(allocate_bytes(w1_, mine * elements(kW1) * 2));
  MK_RETURN_IF_ERROR(allocate_bytes(w2_, mine * elements(kW2) * 2));
  MK_RETURN_IF_ERROR(allocate_bytes(expert_w1_, elements(kW1) * 2));
  MK_RETURN_IF_ERROR(allocate_bytes(expert_w2_, elements(kW2) * 2));
  MK_RETURN_IF_ERROR(allocate_bytes(shared_w1_, elements(kSharedW1) * 2));
  MK_RETURN_IF_ERROR(allocate_bytes(shared_w2_, elements(kSharedW2) * 2));
  for (int i = 0; i < sets; ++i) {
    Set& set = sets_.emplace_back();
    MK_RETURN_IF_ERROR(allocate_bytes(set.x, shape_.max_tokens * shape_.hidden * 2));
    MK_RETURN_IF_ERROR(allocate_bytes(set.topk, shape_.max_tokens * shape_.topk * 4));
    MK_RETURN_IF_ERROR(allocate_bytes(set.weights, shape_.max_tokens * shape_.topk * 4));
    MK_RETURN_IF_ERROR(allocate_bytes(set.y, shape_.max_tokens * shape_.n * 2));
  }
  return {};
}

std::uint64_t GpuMoeCase::seed(std::uint64_t iteration, std::uint64_t index, Operand which) const {
  return seed_of(static_cast<std::uint64_t>(OpKind::kMoeDispatchGemm), iteration, index, which);
}

std::int64_t GpuMoeCase::rows(Operand which) const {
  if (which == kW1 || which == kSharedW1) return shape_.hidden;
  return which == kW2 ? shape_.intermediate : shape_.shared_intermediate;
}

std::int64_t GpuMoeCase::elements(Operand which) const {
  const std::int64_t inner = shape_.intermediate;
  if (which == kW1) return rows(which) * (inner > 0 ? 2 * inner : shape_.n);
  return rows(which) * (which == kSharedW1 ? 2 * shape_.shared_intermediate : shape_.n);
}

Status GpuMoeCase::fill_matrix(void* to, std::int64_t expert, Operand which) const {
  if (elements(which) == 0) return {};
  return fill_random(to, shape_.dtype, static_cast<std::uint64_t>(elements(which)),
                     seed(0, static_cast<std::uint64_t>(expert), which), stream_, weight_scale(rows(which)));
}

MoeArguments GpuMoeCase::arguments(int set) const {
  const Set& s = sets_[static_cast<std::size_t>(set)];
  const bool shared = shape_.shared_intermediate > 0;
  return {.tokens = shape_.max_tokens,
          .x = s.x.get(),
          .topk = static_cast<const std::int32_t*>(s.topk.get()),
          .weights = static_cast<const float*>(s.weights.get()),
          .w1 = w1_.get(),
          .w2 = shape_.intermediate > 0 ? w2_.get() : nullptr,
          .y = s.y.get(),
          .shared_w1 = shared ? shared_w1_.get() : nullptr,
          .shared_w2 = shared ? shared_w2_.get() : nullptr};
}

Status GpuMoeCase::fill(int set, std::uint64_t iteration) {
  Set& s = sets_[static_cast<std::size_t>(set)];
  const auto count = static_cast<std::uint64_t>(shape_.max_tokens * shape_.hidden);
  MK_RETURN_IF_ERROR(fill_random(s.x.get(), shape_.dtype, count, seed(iteration, rank_, kX), stream_));
  s.routing = random_routing(shape_, seed(iteration, rank_, kRouting));
  MK_RETURN_IF_ERROR(upload(s.topk, s.routing.topk, stream_));
  MK_RETURN_IF_ERROR(upload(s.weights, s.routing.weights, stream_));
  return poison(s.y, stream_);
}

Result<ProductCheck> GpuMoeCase::verify(int set) {
  const Set& s = sets_[static_cast<std::size_t>(set)];
  MK_RETURN_IF_ERROR(reference_->begin(s.routing));
  for (std::int64_t expert = 0; expert < shape_.experts; ++expert) {
    MK_RETURN_IF_ERROR(fill_matrix(expert_w1_.get(), expert, kW1));
    MK_RETURN_IF_ERROR(fill_matrix(expert_w2_.get(), expert, kW2));
    MK_RETURN_IF_ERROR(
        reference_->add(static_cast<std::int32_t>(expert), s.x.get(), expert_w1_.get(), expert_w2_.get()));
  }
  MK_RETURN_IF_ERROR(reference_->add_shared(s.x.get(), shared_w1_.get(), shared_w2_.get()));
  return reference_->compare(s.y.get());
}

}  // namespace mkernel::bench
