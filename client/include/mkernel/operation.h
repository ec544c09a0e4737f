// The handles of planned operations and of their launches. Group (mkernel/client.h, which includes this file)
// makes them; what is said there of ownership, errors and threads holds here.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "mkernel/export.h"
#include "mkernel/ops.h"
#include "proto/abi/status.h"

namespace mkernel {
namespace client {
struct PendingState;
class OperationState;
}  // namespace client

template <class Arguments>
class Launchable;
using Gemm = Launchable<GemmArguments>;
using Moe = Launchable<MoeArguments>;
using Attention = Launchable<AttentionArguments>;
using RingAttention = Attention;
using AttentionBackward = Launchable<AttentionBackwardArguments>;
using RingAttentionBackward = AttentionBackward;
using GroupedGemm = Launchable<GroupedGemmArguments>;

class Group;

/// A launched operation. Destroying it does not stop the operation.
class MK_API Pending {
 public:
  Pending(Pending&&) noexcept;
  Pending& operator=(Pending&&) noexcept;
  ~Pending();

  bool done() const;
  /// Blocks until the launch is over: OK, or why it failed (this rank's own error, or the culprit rank, its
  /// node and what happened there). Bounded by ExecutorOptions::deadline. Any thread, any number of times.
  Status wait() const;
  /// As wait(), but gives up after `limit` with kDeadlineExceeded; the operation goes on.
  Status wait_for(std::chrono::milliseconds limit) const;

 private:
  friend class client::OperationState;
  explicit Pending(std::shared_ptr<client::PendingState> state);
  std::shared_ptr<client::PendingState> state_;
};

/// What the operations have in common. Launches of one group run one after the other, in the order of the
/// calls, on a thread of the library. An error of one fails the group, but for a launch that is refused
/// (MoeShape, GroupedGemmShape and AttentionShape say when). Destroying an operation waits for its launches
/// and gives back its workspace and lanes at the group's next collective call; destroy on every rank in the
/// same order with those. `mkctl sessions` counts launches as they begin; one that a CUDA graph captures
/// counts once.
class MK_API Planned {
 public:
  Planned(Planned&&) noexcept;
  Planned& operator=(Planned&&) noexcept;
  ~Planned();

  std::string signature() const;          ///< "ag_gemm m=4096 ...": operation and shape
  std::uint64_t wire_bytes() const;       ///< sent to other nodes by the last launch that is over
  std::uint64_t workspace_bytes() const;  ///< own, and the least of the one that the group's operations share
  Executor executor() const;
  double expected_seconds() const;  ///< Operation::expected_seconds(); 0 = unknown
  /// Once the stream is done (cuda executor): Operation::status(). After a failure the group is over for all.
  Status status();

 protected:
  explicit Planned(std::unique_ptr<client::OperationState> state);
  std::unique_ptr<client::OperationState> state_;
};

/// An operation whose operands are `Arguments`: a Gemm, a Moe, an Attention, its backward pass, a
/// GroupedGemm.
template <class Arguments>
class MK_API Launchable : public Planned {
 public:
  /// Returns at once and waits for no stream; operands stay until it is over. Errors: why the group failed.
  Result<Pending> launch(const Arguments& arguments, const ExecutorOptions& options = {});

  /// cuda executor: Operation::enqueue() (mkernel/ops.h) on a stream of the session's GPU, from the calling
  /// thread. The operands must stay until the stream is done. Over several nodes the kernel puts: keep an
  /// Activity (Group::keep_active()) from before a launch or a series of replays until its stream is done.
  /// Not together with launch(). Errors, which fail the group: Operation::enqueue()'s, why it has failed.
  Status enqueue(const Arguments& arguments, CUstream_st* stream, const ExecutorOptions& options = {});

 private:
  friend class Group;
  using Planned::Planned;
};
extern template class Launchable<GemmArguments>;
extern template class Launchable<MoeArguments>;
extern template class Launchable<AttentionArguments>;
extern template class Launchable<AttentionBackwardArguments>;
extern template class Launchable<GroupedGemmArguments>;

}  // namespace mkernel
