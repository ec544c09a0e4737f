// What operations over sequences of different lengths have in common on the cuda executor: the memory where
// their kernels list tasks, and why a launch was refused.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "kernels/cuda/launch/operation.h"
#include "kernels/cuda/memory/buffer.h"
#include "kernels/ops/ring_attention/attention/varlen_parameters.h"
#include "kernels/plan/attention_sequences.h"
#include "kernels/plan/gemm_shape.h"

namespace mkernel::kernels {

/// `Base`: a CudaOperation, whose lists have slots of type `Slot`. The operation calls allocate_list() in
/// attach().
template <class Base, class Slot>
class CudaVarlenOperation : public Base {
 protected:
  using Scratch = VarlenScratch<Slot>;
  using Base::Base;

  /// For launches of `ctas` CTAs over at most `sequences` sequences.
  Status allocate_list(std::int32_t ctas, std::int32_t sequences) {
    const std::string name = std::string(name_of(this->kind())) + ": list of tasks";
    auto memory = DeviceBuffer::zeroed(Scratch::bytes(ctas, sequences), name.c_str());
    if (!memory.ok()) return memory.status();
    list_ = std::move(*memory);
    return {};
  }
  Scratch* scratch() const { return static_cast<Scratch*>(list_.get()); }
  /// What the plan says of a bad length.
  virtual Status refuse(const BadLength& why) const = 0;

 private:
  Result<LaunchRefusal> last_refusal() final {
    VarlenRefusal last;
    MK_RETURN_IF_ERROR(this->read(&scratch()->refusal, last));
    return LaunchRefusal{last.launch, refuse(last.why)};
  }

  DeviceBuffer list_;
};

}  // namespace mkernel::kernels
