// What an operation of the cpu executor holds between its launches: the group and workspace it is bound to,
// its endpoint, its epoch and whether it still may run; and with how many threads it computes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "kernels/base/lent_workspace.h"
#include "kernels/base/views.h"
#include "kernels/cpu/comm/endpoint.h"
#include "kernels/cpu/sync/launch.h"
#include "kernels/plan/topology.h"
#include "mkernel/ops.h"
#include "proto/base/mutex.h"

namespace mkernel::kernels {

/// Not thread-safe, but for one promise: of two launches at a time the second is rejected, and does not touch
/// the first. Must not move once bound.
class Binding {
 public:
  explicit Binding(std::string name) : name_(std::move(name)) {}

  /// kFailedPrecondition when bound already, kInvalidArgument when the workspaces or the group's lanes do not
  /// hold what `needs` asks for.
  Status bind(const Requirements& needs, const Topology& topology, const GroupView& group,
              const SymmetricView& workspace, const SymmetricView& lent, std::uint32_t first_lane);

  /// OK when a launch may be tried: bound, and no launch failed. After a failed one the counts of the ranks
  /// no longer agree.
  Status ready() const;

  /// One launch: `start` starts the roles, which are joined here. Ends when nothing of it is under way.
  /// kFailedPrecondition while another launch of this operation, or with the same shared workspace, runs.
  Status launch(const Topology& topology, const ExecutorOptions& options,
                const std::function<void(Launch&)>& start);

  const GroupView& group() const { return *group_; }
  const SymmetricView& workspace() const { return workspace_; }
  const SymmetricView& lent() const { return lent_; }
  Endpoint& endpoint() { return *endpoint_; }
  std::uint64_t wire_bytes() const { return wire_bytes_; }

 private:
  /// Of the lent workspace, when there is one.
  LentControl& lent_control() const { return *reinterpret_cast<LentControl*>(lent_.mine); }
  /// Takes operation and shared workspace for one launch, or says that another launch has them.
  Status take();
  /// Gives them back after that launch, which ended with `outcome`.
  void give_back(const Status& outcome);
  Status run(const Topology& topology, const ExecutorOptions& options,
             const std::function<void(Launch&)>& start);

  std::string name_;
  const GroupView* group_ = nullptr;
  SymmetricView workspace_, lent_;
  std::optional<Endpoint> endpoint_;
  std::uint64_t epoch_ = 0;
  std::uint64_t wire_bytes_ = 0;
  mutable Mutex mutex_;
  bool running_ MK_GUARDED_BY(mutex_) = false;
  Status failed_ MK_GUARDED_BY(mutex_);
};

/// What the caller asked for, else this rank's share of the node's hardware threads; at least 1.
inline int compute_threads(const ExecutorOptions& options, const Topology& topology) {
  if (options.compute_threads > 0) return options.compute_threads;
  const unsigned share = std::thread::hardware_concurrency() / topology.ranks_per_node();
  return static_cast<int>(std::max(1U, share));
}

}  // namespace mkernel::kernels
