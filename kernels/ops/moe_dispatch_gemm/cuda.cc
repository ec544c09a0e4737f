// The mixture of experts on the cuda executor: the host's side of a launch.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/cuda/launch/operation.h"
#include "kernels/cuda/memory/buffer.h"
#include "kernels/cuda/memory/hopper.h"
#include "kernels/cuda/memory/kernel_types.h"
#include "kernels/cuda/memory/tensor_map.h"
#include "kernels/ops/make.h"
#include "kernels/ops/moe_dispatch_gemm/gpu_plan.h"
#include "kernels/ops/moe_dispatch_gemm/kernel.h"
#include "kernels/ops/moe_dispatch_gemm/matrix_views.h"
#include "kernels/ops/moe_dispatch_gemm/parameters.h"
#include "kernels/plan/expert_table.h"

namespace mkernel::kernels {
namespace {

// What a kernel may be given by value on every driver.
static_assert(sizeof(MoeParameters) <= 4096);

class CudaMoe final : public CudaOperation<MoeArguments> {
 public:
  CudaMoe(MoeGpuPlan plan, std::uint32_t rank)
      : CudaOperation(OpKind::kMoeDispatchGemm, "moe", plan.moe.topology, rank), plan_(std::move(plan)) {}

  std::string signature() const override { return plan_.signature(); }
  Requirements requirements() const override {
    Requirements needs = plan_.moe.requirements();
    needs.gpu = needs.remote_adds = true;
    return needs;
  }
  std::uint64_t wire_bytes() const override { return sent_; }

 private:
  const ExpertExchangePlan& exchange() const { return plan_.moe.exchange; }
  const MoeShape& shape() const { return plan_.moe.shape; }

  /// Everything that is the same in every launch.
  Status attach() override {
    auto scratch = DeviceBuffer::zeroed(moe_scratch_bytes(plan_.moe), "moe: tables");
    if (!scratch.ok()) return scratch.status();
    scratch_ = std::move(*scratch);
    const auto& node = workspace().node;
    parameters_ = moe_parameters(plan_.moe, rank(), node, scratch_.get());
    parameters_.region = workspace().region;
    parameters_.lead = plan_.moe.lead;
    parameters_.foreseen_steps = plan_.foreseen_steps;
    parameters_.summing_ctas = plan_.summing_ctas;
    parameters_.sum_parts = plan_.sum_parts;
    if (plan_.moe.seats != nullptr) {
      auto seats = DeviceBuffer::holding(*plan_.moe.seats, "moe: seats of the ranks");
      if (!seats.ok()) return seats.status();
      seats_ = std::move(*seats);
      const auto* by_rank = static_cast<const std::int32_t*>(seats_.get());
      parameters_.plan.seats = {by_rank, by_rank + topology().world()};
    }
    return encode_pool();
  }

  Status encode(const MatrixView& view, const char* name, TensorMap& map) const {
    auto made = encode_tensor_map(view, name);
    if (made.ok()) map = *made;
    return made.status().with_context("moe");
  }

  /// What a rank or a shape does not have still gets a map, of the pool: the kernel keeps clear of it.
  Status encode_pool() {
    const MoePoolViews views = moe_pool_views(plan_.moe, workspace().mine);
    MoeOperands& experts = parameters_.experts;
    MK_RETURN_IF_ERROR(encode(views.rows, "workspace", experts.rows));
    for (MoeOperands* of : {&experts, &parameters_.shared}) {
      for (TensorMap* map : {&of->rows, &of->w1, &of->w1_up, &of->w2, &of->hidden_a, &of->hidden_c})
        *map = experts.rows;
    }
    if (!plan_.moe.gated()) return {};
    MK_RETURN_IF_ERROR(encode(views.hidden_a, "workspace", experts.hidden_a));
    return encode(views.hidden_c, "workspace", experts.hidden_c);
  }

  /// The maps of weights stay until a launch comes with others.
  Status encode_weights(const MoeArguments& arguments) {
    const std::int64_t experts = plan_.moe.experts(rank()).size();
    const Given given{arguments.w1, arguments.w1_up, arguments.w2};
    if (experts == 0 || given == weights_) return {};
    weights_ = {};
    MK_RETURN_IF_ERROR(
        encode_weights(moe_weight_views(shape(), experts, arguments), "", parameters_.experts));
    weights_ = given;
    return {};
  }

  /// `prefix`: of the names.
  Status encode_weights(const MoeWeightViews& views, const std::string& prefix, MoeOperands& to) const {
    MK_RETURN_IF_ERROR(encode(views.w1, (prefix + "w1").c_str(), to.w1));
    if (plan_.moe.gated()) {
      MK_RETURN_IF_ERROR(encode(views.w1_up, (prefix + "w1_up").c_str(), to.w1_up));
      MK_RETURN_IF_ERROR(encode(views.w2, (prefix + "w2").c_str(), to.w2));
    }
    to.weight_rows1 = views.weight_rows1;
    to.weight_rows2 = views.weight_rows2;
    return {};
  }

  /// Likewise, of the shared expert. Its rows are those of x, as many as there are tokens.
  Status encode_shared(const MoeArguments& arguments) {
    const std::tuple given{arguments.x, arguments.tokens,
                           Given{arguments.shared_w1, arguments.shared_w1_up, arguments.shared_w2}};
    if (!plan_.moe.shared() || arguments.tokens == 0 || given == shared_) return {};
    shared_ = {};
    MoeOperands& shared = parameters_.shared;
    const MoePoolViews views = moe_shared_views(plan_.moe, workspace().mine, arguments.x, arguments.tokens);
    MK_RETURN_IF_ERROR(encode(views.rows, "x", shared.rows));
    MK_RETURN_IF_ERROR(encode(views.hidden_a, "workspace", shared.hidden_a));
    MK_RETURN_IF_ERROR(encode(views.hidden_c, "workspace", shared.hidden_c));
    MK_RETURN_IF_ERROR(encode_weights(moe_shared_weight_views(shape(), arguments), "shared_", shared));
    shared_ = given;
    return {};
  }

  Status check(const MoeArguments& arguments) const override {
    MK_RETURN_IF_ERROR(plan_.moe.check(rank(), arguments));
    for (const auto& [data, name] : {std::pair{arguments.x, "x"},
                                     {arguments.w1, "w1"},
                                     {arguments.w1_up, "w1_up"},
                                     {arguments.w2, "w2"},
                                     {arguments.shared_w1, "shared_w1"},
                                     {arguments.shared_w1_up, "shared_w1_up"},
                                     {arguments.shared_w2, "shared_w2"},
                                     {static_cast<const void*>(arguments.y), "y"}})
      MK_RETURN_IF_ERROR(check_address(data, name).with_context("moe"));
    return {};
  }

  Status launch(const MoeArguments& arguments, std::uint64_t deadline_ns, CUstream_st* stream) override {
    MK_RETURN_IF_ERROR(encode_weights(arguments));
    MK_RETURN_IF_ERROR(encode_shared(arguments));
    MoeParameters p = parameters_;
    p.endpoint = endpoint(deadline_ns);
    p.x = static_cast<const std::byte*>(arguments.x);
    p.routed = {arguments.topk, arguments.weights, static_cast<std::int32_t>(arguments.tokens),
                exchange().topk};
    p.y = static_cast<std::byte*>(arguments.y);
    p.shared_weights = arguments.shared_weights;
    return queue(&p, plan_.ctas, stream);
  }

  Result<LaunchRefusal> last_refusal() override {
    MoeReport report;
    MK_RETURN_IF_ERROR(read(parameters_.scratch.report, report));
    sent_ = report.sent;
    const MoeRefusal& last = report.refusal;
    if (last.launch == 0) return LaunchRefusal{};
    const ExpertOwners& owners = exchange().owners;
    const Status bad = last.problem.to_status(last.rank, owners.experts);
    return LaunchRefusal{last.launch, bad.ok() ? beyond_capacity(owners, last.expert, last.rows, last.padded,
                                                                 exchange().capacity_rows)
                                               : bad};
  }

  const MoeGpuPlan plan_;
  std::uint64_t sent_ = 0;  ///< MoeReport's
  DeviceBuffer scratch_, seats_;
  MoeParameters parameters_{};  ///< without the operands of a launch
  using Given = std::tuple<const void*, const void*, const void*>;
  // What the maps are of.
  Given weights_;
  std::tuple<const void*, std::int64_t, Given> shared_;
};

/// The kernel for the types of a shape.
CooperativeKernel kernel_of(const MoeShape& shape, std::size_t routing_bytes) {
  const bool row_major = shape.w_layout == Layout::kRowMajor;
  return with_kernel_type(shape.dtype, [&]<DataType kType>() {
    return row_major ? moe_kernel_of<kType, Layout::kRowMajor>(routing_bytes)
                     : moe_kernel_of<kType, Layout::kColumnMajor>(routing_bytes);
  });
}

}  // namespace

Result<std::unique_ptr<CudaMoeOperation>> make_cuda_moe(const MoeShape& shape, const Topology& topology,
                                                        std::uint32_t rank, const MoeOptions& options) {
  auto machine = hopper_machine("moe", options.machine, options.sms);
  if (!machine.ok()) return machine.status();
  auto plan = MoeGpuPlan::make(shape, topology, *machine, options);
  if (!plan.ok()) return plan.status();
  const CooperativeKernel kernel = kernel_of(shape, plan->routing_bytes);
  std::unique_ptr<CudaMoeOperation> made = std::make_unique<CudaMoe>(std::move(*plan), rank);
  MK_RETURN_IF_ERROR(made->load(kernel, *machine));
  return made;
}

}  // namespace mkernel::kernels
