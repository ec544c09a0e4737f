// The grouped GEMM on the cuda executor: the host's side of a launch.
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "kernels/cuda/gemm/with_tile.h"
#include "kernels/cuda/launch/operation.h"
#include "kernels/cuda/memory/buffer.h"
#include "kernels/cuda/memory/hopper.h"
#include "kernels/cuda/memory/tensor_map.h"
#include "kernels/ops/grouped_gemm/kernel.h"
#include "kernels/ops/grouped_gemm/parameters.h"
#include "kernels/ops/grouped_gemm/plan.h"
#include "kernels/ops/make.h"
#include "kernels/plan/gemm_shape.h"

namespace mkernel::kernels {
namespace {

// What a kernel may be given by value on every driver.
static_assert(sizeof(GroupedGemmParameters) <= 4096);

class CudaGroupedGemm final : public CudaOperation<GroupedGemmArguments> {
 public:
  CudaGroupedGemm(GroupedGemmPlan plan, std::int32_t ctas, const Topology& topology, std::uint32_t rank)
      : CudaOperation(OpKind::kGroupedGemm, name_of(OpKind::kGroupedGemm), topology, rank),
        plan_(std::move(plan)),
        ctas_(ctas) {}

  std::string signature() const override { return plan_.signature() + " cuda " + machine(); }
  Requirements requirements() const override { return {.gpu = true}; }

 private:
  Status attach() override {
    auto scratch = DeviceBuffer::zeroed(sizeof(GroupedGemmScratch), "grouped_gemm: counters");
    if (!scratch.ok()) return scratch.status();
    scratch_ = std::move(*scratch);
    parameters_ = grouped_gemm_parameters(plan_, static_cast<GroupedGemmScratch*>(scratch_.get()));
    return {};
  }

  static Status encode(const MatrixView& view, const char* name, TensorMap& map) {
    auto made = encode_tensor_map(view, name);
    if (made.ok()) map = *made;
    return made.status().with_context(name_of(OpKind::kGroupedGemm));
  }

  /// The maps stay until a launch comes with other matrices.
  Status encode_matrices(const GroupedGemmArguments& arguments) {
    const std::tuple given{arguments.a, arguments.b};
    if (given == matrices_) return {};
    matrices_ = {};
    MK_RETURN_IF_ERROR(encode(grouped_gemm_a_view(plan_, arguments.a), "a", parameters_.a));
    MK_RETURN_IF_ERROR(encode(grouped_gemm_low_a_view(plan_, arguments.a), "a", parameters_.low_a));
    MK_RETURN_IF_ERROR(encode(grouped_gemm_b_view(plan_, arguments.b), "b", parameters_.b));
    matrices_ = given;
    return {};
  }

  Status check(const GroupedGemmArguments& arguments) const override {
    MK_RETURN_IF_ERROR(plan_.check(arguments));
    for (const auto& [data, name] :
         {std::pair{arguments.a, "a"}, {arguments.b, "b"}, {static_cast<const void*>(arguments.c), "c"}})
      MK_RETURN_IF_ERROR(check_address(data, name).with_context(name_of(OpKind::kGroupedGemm)));
    return {};
  }

  Status launch(const GroupedGemmArguments& arguments, std::uint64_t deadline_ns,
                CUstream_st* stream) override {
    MK_RETURN_IF_ERROR(encode_matrices(arguments));
    GroupedGemmParameters p = parameters_;
    p.endpoint = endpoint(deadline_ns);
    p.ends = arguments.ends;
    p.c = static_cast<std::byte*>(arguments.c);
    return queue(&p, ctas_, stream);
  }

  Result<LaunchRefusal> last_refusal() override {
    GroupedGemmRefusal last;
    MK_RETURN_IF_ERROR(read(&parameters_.scratch->refusal, last));
    return LaunchRefusal{last.launch, plan_.refuse(last.why)};
  }

  const GroupedGemmPlan plan_;
  const std::int32_t ctas_;
  DeviceBuffer scratch_;
  GroupedGemmParameters parameters_{};             ///< without the operands of a launch
  std::tuple<const void*, const void*> matrices_;  ///< that the maps are of
};

}  // namespace

Result<std::unique_ptr<CudaGroupedGemmOperation>> make_cuda_grouped_gemm(const GroupedGemmShape& shape,
                                                                         const Topology& topology,
                                                                         std::uint32_t rank,
                                                                         const GroupedGemmOptions& options) {
  auto machine = hopper_machine(name_of(OpKind::kGroupedGemm), options.machine, options.sms);
  if (!machine.ok()) return machine.status();
  auto plan = GroupedGemmPlan::make(shape);
  if (!plan.ok()) return plan.status();
  MK_RETURN_IF_ERROR(plan->check_on_gpu(machine->sms));
  const CooperativeKernel kernel = with_types(plan->product(), [&]<DataType kType, Layout kLayoutB>() {
    return grouped_gemm_kernel_of<kType, kLayoutB>();
  });
  const std::int32_t ctas = machine->sms / kGroupedGemmCluster * kGroupedGemmCluster;
  std::unique_ptr<CudaGroupedGemmOperation> made =
      std::make_unique<CudaGroupedGemm>(std::move(*plan), ctas, topology, rank);
  MK_RETURN_IF_ERROR(made->load(kernel, *machine));
  return made;
}

}  // namespace mkernel::kernels
