#include "kernels/plan/gather_plan.h"

#include <utility>

#include "proto/abi/region_map.h"

namespace mkernel::kernels {

GatherPlan::GatherPlan(std::vector<std::vector<std::uint64_t>> bounds, std::uint64_t base)
    : bounds_(std::move(bounds)), base_(base) {
  slabs_ = abi::align64(base_ + sources() * sizeof(SignalWord));
  for (const auto& stream : bounds_) {
    begin_.push_back(slab_bytes_);
    slab_bytes_ += abi::align64(stream.back());
  }
}

GatherPlan::Chunk GatherPlan::chunk(std::uint32_t source, std::uint64_t index) const {
  const auto& stream = bounds_[source];
  return {begin_[source] + stream[index], stream[index + 1] - stream[index]};
}

}  // namespace mkernel::kernels
