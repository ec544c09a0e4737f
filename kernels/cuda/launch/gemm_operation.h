// What the GEMM operations of the cuda executor have in common: a shape, its operands, its signature.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "kernels/cuda/comm/paced_links_of.h"
#include "kernels/cuda/launch/operation.h"
#include "kernels/cuda/memory/buffer.h"
#include "kernels/plan/gemm_shape.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

class CudaGemmOperation : public CudaOperation<GemmArguments> {
 public:
  std::string signature() const final {
    std::string text = signature_of(kind(), shape_) + " cuda " + machine();
    if (overrides_.comm_ctas != 0) text += " comm_ctas=" + std::to_string(overrides_.comm_ctas);
    if (overrides_.nic_gbytes != 0) text += " nic_gbytes=" + std::to_string(overrides_.nic_gbytes);
    if (overrides_.link_gbytes != 0) text += " link_gbytes=" + std::to_string(overrides_.link_gbytes);
    return text;
  }
  /// What the plan was made with, for the signature: ranks with other plans would wait for each other.
  void tell_overrides(const GemmPlanOptions& plan) { overrides_ = plan; }

 protected:
  CudaGemmOperation(OpKind kind, const GemmShape& shape, Topology topology, std::uint32_t rank)
      : CudaOperation(kind, name_of(kind), std::move(topology), rank), shape_(shape) {}

  Status check(const GemmArguments& arguments) const final {
    return check_operands(kind(), shape_, arguments, rank(), topology().world());
  }
  const GemmShape& shape() const { return shape_; }
  /// Of attach(): makes what links() needs on the device, where `machine` paces its links.
  Status pace_links(const Machine& machine) {
    if (machine.paced_links == 0) return {};
    auto clock = DeviceBuffer::zeroed(sizeof(std::uint64_t), "clock of the links");
    if (!clock.ok()) return clock.status();
    links_clock_ = std::move(clock).value();
    links_ = paced_links_of(machine, static_cast<std::uint64_t*>(links_clock_.get()));
    return {};
  }
  const PacedLinks& links() const { return links_; }

 private:
  const GemmShape shape_;
  GemmPlanOptions overrides_;
  DeviceBuffer links_clock_;  ///< PacedLinks::free_ns
  PacedLinks links_{};
};

}  // namespace mkernel::kernels
