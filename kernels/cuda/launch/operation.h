// An operation of the cuda executor: a binding, and launches of one kernel with operands of one type.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "kernels/base/lent_workspace.h"
#include "kernels/cuda/launch/binding.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

/// A launch that every rank refused with the same words, so that the group goes on.
struct LaunchRefusal {
  std::uint64_t launch = 0;  ///< counted from 1; 0: there was none
  Status why;
};

/// An operation adds its plan (requirements(), signature()), what refers to the workspace (attach()), what it
/// refuses (check()) and the parameters of its kernel (launch()); one whose launches may be refused on the
/// GPU says which was (last_refusal()).
template <class Arguments>
class CudaOperation : public Operation<Arguments> {
 public:
  OpKind kind() const final { return kind_; }
  Executor executor() const final { return Executor::kCuda; }
  Status load(const CooperativeKernel& kernel, const Machine& machine) {
    return binding_.load(kernel, machine);
  }
  void use_rings(std::shared_ptr<RingsOnDevice> rings) { binding_.use_rings(std::move(rings)); }
  Status bind(const GroupView& group, const SymmetricView& workspace, const SymmetricView& lent,
              std::uint32_t first_lane) final {
    return binding_.bind(this->requirements(), group, workspace, lent, first_lane,
                         [this] { return attach(); });
  }
  /// An operation that puts says how many.
  std::uint64_t wire_bytes() const override { return 0; }
  bool refused() const final { return refused_; }

  Status run(const Arguments& arguments, const ExecutorOptions& options) final {
    MK_RETURN_IF_ERROR(accept(arguments));
    MK_RETURN_IF_ERROR(binding_.run(options, [&](std::uint64_t deadline, CUstream_st* stream) {
      return launch(arguments, deadline, stream);
    }));
    return tell_refusal(binding_.launches());
  }
  Status enqueue(const Arguments& arguments, const ExecutorOptions& options, CUstream_st* stream) final {
    MK_RETURN_IF_ERROR(accept(arguments));
    return binding_.enqueue(options, stream, [&](std::uint64_t deadline, CUstream_st* on) {
      return launch(arguments, deadline, on);
    });
  }
  Status status() final {
    refused_ = false;
    MK_RETURN_IF_ERROR(binding_.status());
    return tell_refusal(told_ + 1);
  }

 protected:
  CudaOperation(OpKind kind, std::string name, Topology topology, std::uint32_t rank)
      : kind_(kind), binding_(std::move(name), std::move(topology), rank) {}

  /// Makes what refers to workspace() and lent(), which are there now.
  virtual Status attach() { return {}; }
  /// Operands that are refused before anything is queued.
  virtual Status check(const Arguments& arguments) const = 0;
  virtual Status launch(const Arguments& arguments, std::uint64_t deadline_ns, CUstream_st* stream) = 0;
  /// Once the stream is done: reads what launches have left for the host.
  virtual Result<LaunchRefusal> last_refusal() { return LaunchRefusal{}; }

  /// Queues the kernel with its parameters.
  Status queue(const void* parameters, std::int32_t ctas, CUstream_st* stream) const {
    return binding_.queue(parameters, ctas, stream);
  }
  /// What a launch has left in device memory.
  template <class State>
  Status read(const State* on_device, State& state) const {
    static_assert(sizeof(State) <= LaunchStateReader::kMostBytes);
    return binding_.read(on_device, &state, sizeof(state));
  }
  device::Endpoint endpoint(std::uint64_t deadline_ns) const { return binding_.endpoint(deadline_ns); }
  const Topology& topology() const { return binding_.topology(); }
  std::uint32_t rank() const { return binding_.rank(); }
  const SymmetricView& workspace() const { return binding_.workspace(); }
  const SymmetricView& lent() const { return binding_.lent(); }
  /// Of a half of the lent workspace.
  std::uint64_t half_bytes() const { return lent_half_bytes(lent().bytes); }
  const std::string& machine() const { return binding_.machine(); }

 private:
  Status accept(const Arguments& arguments) {
    refused_ = false;
    MK_RETURN_IF_ERROR(binding_.ready());
    return check(arguments);
  }
  /// The last refusal, when it is of launch number `first` or a later one.
  Status tell_refusal(std::uint64_t first) {
    const auto last = last_refusal();
    if (!last.ok()) return last.status();
    if (last.value().launch < first) return {};
    told_ = last.value().launch;
    refused_ = true;
    return last.value().why;
  }

  const OpKind kind_;
  CudaBinding binding_;
  bool refused_ = false;
  std::uint64_t told_ = 0;  ///< last launch whose refusal was told
};

}  // namespace mkernel::kernels
