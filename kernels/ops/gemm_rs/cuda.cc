// GEMM+RS on the cuda executor: the host's side of a launch.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "kernels/cuda/memory/hopper.h"
#include "kernels/cuda/reduce/tile_reduce_operation.h"
#include "kernels/ops/gemm_rs/parameters.h"
#include "kernels/ops/gemm_rs/sums_into_c.h"
#include "kernels/ops/make.h"

namespace mkernel::kernels {
namespace {

class CudaSumsIntoC final : public TileReduceOperation {
 public:
  using TileReduceOperation::TileReduceOperation;

  Requirements requirements() const override {
    return {.workspace_bytes = plan().kernel_word_bytes(),
            .lent_bytes = plan().kernel_data_bytes(),
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

Result<std::unique_ptr<CudaGemmOperation>> make_cuda_sums_into_c(OpKind kind, const TileReducePlan& plan,
                                                                 const GemmShape& shape, Topology topology) {
  CooperativeKernel kernel;
  MK_RETURN_IF_ERROR(with_tile_of(plan, name_of(kind), [&]<Sm90Tile kTile, bool kShared>() -> Status {
    kernel = gemm_rs_kernel_of<kTile, kShared>(shape);
    return {};
  }));
  const auto rank = static_cast<std::uint32_t>(plan.rank());
  std::unique_ptr<CudaGemmOperation> made =
      std::make_unique<CudaSumsIntoC>(kind, plan, shape, std::move(topology), rank);
  MK_RETURN_IF_ERROR(made->load(kernel, plan.machine));
  return made;
}

Result<std::unique_ptr<CudaGemmOperation>> make_cuda_gemm_rs(const GemmShape& shape, Topology topology,
                                                             std::uint32_t rank,
                                                             const TileReduceOptions& options) {
  auto machine = hopper_machine("gemm_rs", options.machine, options.sms);
  if (!machine.ok()) return machine.status();
  auto plan = TileReducePlan::make(OpKind::kGemmRs, shape, topology, rank, *machine, options);
  if (!plan.ok()) return plan.status();
  return make_cuda_sums_into_c(OpKind::kGemmRs, *plan, shape, std::move(topology));
}

}  // namespace mkernel::kernels
