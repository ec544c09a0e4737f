// A planned operation with its workspaces and lanes, and a launch on its way.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "client/src/buffer.h"
#include "client/src/group.h"
#include "mkernel/client.h"
#include "mkernel/ops.h"
#include "proto/base/mutex.h"

namespace mkernel::client {

/// Shared by a launch and the Pending handles of it.
struct PendingState {
  const Home home{};
  Mutex mutex;
  ConditionVariable over;
  bool done MK_GUARDED_BY(mutex) = false;
  Status status MK_GUARDED_BY(mutex);

  void finish(Status outcome);
};

class OperationState {
 public:
  /// **Collective**. `made`: this rank's plan, or why it has none. In order: ranks compare signatures, find
  /// or make a workspace to take turns with, make the operation's own, take lanes, bind, and agree that all
  /// of them did.
  static Result<std::unique_ptr<OperationState>> create(std::shared_ptr<GroupCore> group,
                                                        Result<std::unique_ptr<OperationBase>> made);
  /// Waits for its launches, gives back workspaces and lanes.
  ~OperationState();

  const Home& home() const { return group_->home(); }
  const OperationBase& operation() const { return *operation_; }
  /// Queues `run` (which calls the operation's run()) on the group's worker.
  Result<Pending> launch(std::function<Status(OperationBase&)> run);
  /// Calls `run` (which calls the operation's enqueue()) in this thread; an error fails the group, as that of
  /// a launch does. kFailedPrecondition while a launch() is not over: both would run at the same time.
  Status enqueue(const std::function<Status(OperationBase&)>& run);
  /// The same for `run` that launches nothing.
  Status at_once(const std::function<Status(OperationBase&)>& run);
  std::uint64_t wire_bytes() const;

 private:
  OperationState(std::shared_ptr<GroupCore> group, std::unique_ptr<OperationBase> operation);
  Status bind(const BufferState& workspace);
  Status begin(bool queued);
  /// `alike`: the error concerns no other rank, or all of them have it.
  Status settle(const Status& outcome, bool alike);
  void one_less();
  Status run_one(const std::function<Status(OperationBase&)>& run);

  const std::shared_ptr<GroupCore> group_;
  const std::string signature_;
  const std::string in_group_;  ///< the signature, and which of the group's operations it is
  std::unique_ptr<OperationBase> operation_;
  std::unique_ptr<BufferState> workspace_;
  std::shared_ptr<BufferState> lent_;  ///< null: the operation needs none
  std::uint32_t first_lane_ = 0;
  std::uint32_t lanes_ = 0;

  mutable Mutex mutex_;
  ConditionVariable idle_;
  int in_flight_ MK_GUARDED_BY(mutex_) = 0;
  int unfinished_ MK_GUARDED_BY(mutex_) = 0;  ///< of these the ones that may still run
  std::uint64_t wire_bytes_ MK_GUARDED_BY(mutex_) = 0;
};

}  // namespace mkernel::client
