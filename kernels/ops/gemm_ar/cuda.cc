// GEMM+AR on the cuda executor: the host's side of a launch.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "kernels/cuda/memory/buffer.h"
#include "kernels/cuda/memory/hopper.h"
#include "kernels/cuda/reduce/tile_reduce_operation.h"
#include "kernels/ops/gemm_ar/parameters.h"
#include "kernels/ops/gemm_ar/plan.h"
#include "kernels/ops/gemm_rs/sums_into_c.h"
#include "kernels/ops/make.h"

namespace mkernel::kernels {
namespace {

class CudaGemmAr final : public TileReduceOperation {
 public:
  CudaGemmAr(const GemmArPlan& plan, const GemmShape& shape, Topology topology, std::uint32_t rank)
      : TileReduceOperation(OpKind::kGemmAr, plan.product, shape, std::move(topology), rank), plan_(plan) {}

  Requirements requirements() const override {
    return {.workspace_bytes = plan_.kernel_word_bytes(),
            .lent_bytes = plan_.kernel_data_bytes(),
            .lanes = plan_.lanes(),
            .gpu = true};
  }
  std::uint64_t wire_bytes() const override { return plan_.wire_bytes(); }

 private:
  Status attach() override {
    MK_RETURN_IF_ERROR(TileReduceOperation::attach());
    if (marks_sums()) MK_RETURN_IF_ERROR(mark(plan_.sums.marked_offset(0), plan_.sums.marked_end()));
    auto counts = DeviceBuffer::zeroed((2 + plan_.product.most_chunks()) * sizeof(std::uint64_t),
                                       "counts of copies, forwards and finished units");
    if (!counts.ok()) return counts.status();
    counts_ = std::move(counts).value();
    return {};
  }

  Status launch(const GemmArguments& arguments, std::uint64_t deadline_ns, CUstream_st* stream) override {
    GemmArParameters p{};
    MK_RETURN_IF_ERROR(describe(arguments, deadline_ns, p));
    p.c = static_cast<std::byte*>(arguments.c);
    p.own_c = p.c + plan_.product.reduce.first_row(plan_.product.rank()) * shape().n * 2;
    p.copied = static_cast<std::uint64_t*>(counts_.get());
    p.forwarded = p.copied + 1;
    p.finished = p.copied + 2;
    describe_sums(p);
    return queue(&p, ctas(), stream);
  }

  bool marks_sums() const { return plan_.product.marks_sums(); }

  /// An owner's sums at a rank; but for marked ones this counts from the half that a launch uses.
  std::byte* sums_of(std::int32_t owner, std::byte* workspace_at, std::byte* lent_at) const {
    return marks_sums() ? workspace_at + plan_.sums.marked_offset(owner)
                        : lent_at + plan_.sums.sums_offset(owner);
  }
  void describe_sums(GemmArParameters& p) const {
    const PushSumsPlan& sums = plan_.sums;
    const std::int32_t me = plan_.product.rank();
    for (std::int32_t near = 0; near < plan_.product.tiles.node_turns - 1; ++near) {
      const std::uint32_t there = reducer_of(plan_.product.tiles.far_turns + near);
      p.sums_there[near] = sums_of(me, workspace().node[there], lent().node[there]);
      p.summed_there[near] =
          reinterpret_cast<std::uint64_t*>(workspace().node[there] + sums.summed_offset(me));
    }
    p.sums_at = sums.sums_offset(0);
    p.sums_here = sums_of(0, workspace().mine, lent().mine);
    p.marks_sums = marks_sums();
    p.summed = reinterpret_cast<const std::uint64_t*>(workspace().mine + sums.summed_offset(0));
    p.sums_owner_bytes = sums.sums_offset(1) - sums.sums_offset(0);
  }

  const GemmArPlan plan_;
  DeviceBuffer counts_;  ///< GemmArParameters::copied, forwarded, finished
};

}  // namespace

Result<std::unique_ptr<CudaGemmOperation>> make_cuda_gemm_ar(const GemmShape& shape, Topology topology,
                                                             std::uint32_t rank,
                                                             const TileReduceOptions& options) {
  auto machine = hopper_machine("gemm_ar", options.machine, options.sms);
  if (!machine.ok()) return machine.status();
  auto plan = GemmArPlan::make(shape, topology, rank, *machine, options);
  if (!plan.ok()) return plan.status();
  if (plan->product.reduce.to_all)
    return make_cuda_sums_into_c(OpKind::kGemmAr, plan->product, shape, std::move(topology));
  CooperativeKernel kernel;
  MK_RETURN_IF_ERROR(with_tile_of(plan->product, "gemm_ar", [&]<Sm90Tile kTile, bool kShared>() -> Status {
    kernel = gemm_ar_kernel_of<kTile, kShared>(shape);
    return {};
  }));
  std::unique_ptr<CudaGemmOperation> made =
      std::make_unique<CudaGemmAr>(*plan, shape, std::move(topology), rank);
  MK_RETURN_IF_ERROR(made->load(kernel, *machine));
  return made;
}

}  // namespace mkernel::kernels
