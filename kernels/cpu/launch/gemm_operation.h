// What AG+GEMM, GEMM+RS and GEMM+AR on the cpu executor have in common: their operands around a binding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/signal.h"
#include "kernels/base/views.h"
#include "kernels/cpu/comm/endpoint.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/launch/binding.h"
#include "kernels/cpu/sync/launch.h"
#include "kernels/plan/topology.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

/// b in fp32 for one launch: every compute thread widens its part, then waits for the others'.
class OperandB {
 public:
  OperandB(CpuGemm& gemm, const void* b) : gemm_(gemm), b_(b) {}
  Status widen_part(const Launch& launch, int thread);
  /// Waits until all of them have.
  Status wait(const Launch& launch) const;

 private:
  CpuGemm& gemm_;
  const void* b_;
  SignalWord parts_{};
};

/// An operation adds its plan (requirements()), what it needs once bound (attach()) and its roles (launch()).
class CpuGemmOperation : public GemmOperation {
 public:
  OpKind kind() const override { return kind_; }
  Executor executor() const override { return Executor::kCpu; }
  std::string signature() const override;
  Status bind(const GroupView& group, const SymmetricView& workspace, const SymmetricView& lent,
              std::uint32_t first_lane) override;
  std::uint64_t wire_bytes() const override { return binding_.wire_bytes(); }
  /// After a failed launch the counts of the ranks no longer agree: every later one is refused.
  Status run(const GemmArguments& arguments, const ExecutorOptions& options) override;

 protected:
  CpuGemmOperation(OpKind kind, const GemmShape& shape, Topology topology);

  /// Makes what refers to group(), workspace() and endpoint(), which are there now.
  virtual void attach() = 0;
  /// Starts the roles and joins them; their state may live on its stack.
  virtual void launch(const GemmArguments& arguments, Launch& launch) = 0;

  const GemmShape& shape() const { return shape_; }
  const Topology& topology() const { return topology_; }
  const GroupView& group() const { return binding_.group(); }
  const SymmetricView& workspace() const { return binding_.workspace(); }
  const SymmetricView& lent() const { return binding_.lent(); }
  Endpoint& endpoint() { return binding_.endpoint(); }
  /// Of b, or of a further one.
  CpuGemm& gemm(int product = 0) const { return *gemms_[static_cast<std::size_t>(product)]; }

 private:
  const OpKind kind_;
  const GemmShape shape_;
  const Topology topology_;
  Binding binding_;
  std::vector<std::unique_ptr<CpuGemm>> gemms_;  ///< made by the first launch
};

}  // namespace mkernel::kernels
