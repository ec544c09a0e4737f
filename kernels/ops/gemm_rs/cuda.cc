// GEMM+RS on the cuda executor: the host's side of a launch.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "kernels/cuda/gemm/with_tile.h"
#include "kernels/cuda/memory/hopper.h"
#include "kernels/cuda/reduce/tile_reduce_operation.h"
#include "kernels/ops/gemm_rs/parameters.h"
#include "kernels/ops/make.h"

namespace mkernel::kernels {
namespace {

class CudaGemmRs final : public TileReduceOperation {
 public:
  CudaGemmRs(const TileReducePlan& plan, const GemmShape& shape, Topology topology, std::uint32_t rank)
      : TileReduceOperation(OpKind::kGemmRs, plan, shape, std::move(topology), rank) {}

  Requirements requirements() const override {
    return {.workspace_bytes = plan().word_bytes(),
            .lent_bytes = plan().data_bytes(),
            .lanes = plan().lanes(),
            .gpu = true};
  }
  std::uint64_t wire_bytes() const override { return plan().wire_bytes(); }

 private:
  Status launch(const GemmArguments& arguments, std::uint64_t deadline_ns, CUstream_st* stream) override {
    TileReduceParameters p{};
    MK_RETURN_IF_ERROR(describe(arguments, deadline_ns, p));
    p.own_c = static_cast<std::byte*>(arguments.c);
    return queue(&p, ctas(), stream);
  }
};

}  // namespace

Result<std::unique_ptr<CudaGemmOperation>> make_cuda_gemm_rs(const GemmShape& shape, Topology topology,
                                                             std::uint32_t rank,
                                                             const TileReduceOptions& options) {
  auto machine = hopper_machine("gemm_rs", options.machine, options.sms);
  if (!machine.ok()) return machine.status();
  auto plan = TileReducePlan::make(OpKind::kGemmRs, shape, topology, rank, *machine, options);
  if (!plan.ok()) return plan.status();
  CooperativeKernel kernel;
  MK_RETURN_IF_ERROR(with_tile(plan->tile, "gemm_rs", [&]<Sm90Tile kTile>() -> Status {
    kernel = gemm_rs_kernel_of<kTile>(shape);
    return {};
  }));
  std::unique_ptr<CudaGemmOperation> made =
      std::make_unique<CudaGemmRs>(*plan, shape, std::move(topology), rank);
  MK_RETURN_IF_ERROR(made->load(kernel, *machine));
  return made;
}

}  // namespace mkernel::kernels
