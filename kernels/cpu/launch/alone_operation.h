// An operation of a rank alone on the cpu executor: nothing is communicated, and all threads compute.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "kernels/cpu/launch/binding.h"
#include "kernels/plan/gemm_shape.h"
#include "kernels/plan/topology.h"

namespace mkernel::kernels {

/// `Roles`: one launch, made of (plan, arguments, launch), which outlive it;
///   static Status refuse(plan, arguments);  // what its operands hold that a launch must not be made with
///   Status compute();                       // what each thread does
template <class Arguments, class Plan, class Roles>
class CpuAloneOperation final : public Operation<Arguments> {
 public:
  CpuAloneOperation(OpKind kind, Plan plan, Topology topology)
      : kind_(kind), plan_(std::move(plan)), topology_(std::move(topology)), binding_(name_of(kind)) {}

  OpKind kind() const override { return kind_; }
  Executor executor() const override { return Executor::kCpu; }
  std::string signature() const override { return plan_.signature(); }
  Requirements requirements() const override { return {}; }
  std::uint64_t wire_bytes() const override { return 0; }
  bool refused() const override { return refused_; }

  Status bind(const GroupView& group, const SymmetricView& workspace, const SymmetricView& lent,
              std::uint32_t first_lane) override {
    return binding_.bind(requirements(), topology_, group, workspace, lent, first_lane);
  }

  Status run(const Arguments& arguments, const ExecutorOptions& options) override {
    refused_ = false;
    MK_RETURN_IF_ERROR(binding_.ready());
    MK_RETURN_IF_ERROR(plan_.check(arguments));
    const Status refusal = Roles::refuse(plan_, arguments);
    refused_ = !refusal.ok();
    MK_RETURN_IF_ERROR(refusal);
    return binding_.launch(topology_, options, [&](Launch& launch) {
      Roles roles(plan_, arguments, launch);
      for (int thread = 0; thread < launch.compute_threads; ++thread)
        launch.roles.start("compute", [&roles] { return roles.compute(); });
      (void)launch.roles.join();
    });
  }

 private:
  const OpKind kind_;
  const Plan plan_;
  const Topology topology_;
  Binding binding_;
  std::atomic<bool> refused_ = false;
};

}  // namespace mkernel::kernels
