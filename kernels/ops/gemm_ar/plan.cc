#include "kernels/ops/gemm_ar/plan.h"

#include <utility>
#include <vector>

#include "kernels/cpu/memory/convert.h"
#include "kernels/plan/gemm_shape.h"

namespace mkernel::kernels {

Result<GemmArPlan> GemmArPlan::make(const GemmShape& shape, const Topology& topology,
                                    const ReduceOptions& options) {
  if (Status status = check_shape(OpKind::kGemmAr, shape); !status.ok()) return status;
  return GemmArPlan(shape, topology, options);
}

GemmArPlan::GemmArPlan(const GemmShape& shape, const Topology& topology, const ReduceOptions& options)
    : m_(shape.m), reduce_(topology, shape.m, shape.n, options, 0) {
  std::vector<std::vector<std::uint64_t>> bounds(topology.world());
  for (std::uint32_t owner = 0; owner < topology.world(); ++owner) {
    const ChunkSplit split = reduce_.chunks(owner);
    const auto bytes_before = [&](std::int64_t tile) {
      return static_cast<std::uint64_t>(reduce_.grid(owner).packed_offset(tile)) * element_bytes(shape.dtype);
    };
    for (std::int64_t chunk = 0; chunk < split.chunks(); ++chunk) {
      bounds[owner].push_back(bytes_before(split.chunk(chunk).begin));
    }
    bounds[owner].push_back(bytes_before(split.items));
  }
  gather_ = GatherPlan(std::move(bounds), reduce_.end());
}

}  // namespace mkernel::kernels
