// What each rank of a group does, for the errors of the others: this rank writes down what it begins and
// ends, and reads what the daemons have brought together once the group has failed.
#pragma once

#include <cstdint>
#include <string>

#include "client/src/connection.h"
#include "kernels/base/views.h"
#include "proto/abi/region_map.h"
#include "proto/abi/status.h"
#include "proto/base/mutex.h"

namespace mkernel::client {

/// Any thread.
class Whereabouts {
 public:
  /// Once, when the group is joined; `view` outlives this.
  void attach(const kernels::GroupView& view);

  /// A launch of `operation` begins; `queued`: on a stream, so that its end is not seen here. What fails is
  /// not ended: the others read it. An error: another rank has rejected this launch, and why.
  Status begin_launch(const std::string& operation, bool queued);
  /// This rank does not make its next launch. Returns the number that it would have had.
  std::uint64_t reject_launch(const std::string& why);
  void end_launch();
  void begin_call(const std::string& call);
  void end_call();

  /// Nothing that this rank has begun is under way.
  bool idle() const;

  /// Once the group has failed: "rank 0 is in launch 1, ag_gemm m=...; rank 1 is in launch 2, gemm_rs m=...",
  /// of all ranks that their daemons have told of by `deadline`. Empty when there is nothing to compare.
  std::string describe(Deadline deadline) const;

 private:
  void write(abi::RankPhase phase, const std::string& what) MK_REQUIRES(mutex_);
  Status rejection() const MK_REQUIRES(mutex_);
  bool all_known() const;

  const kernels::GroupView* view_ = nullptr;
  mutable Mutex mutex_;
  std::uint64_t launches_ MK_GUARDED_BY(mutex_) = 0;
  std::string operation_ MK_GUARDED_BY(mutex_);                           ///< of the last launch
  abi::RankPhase phase_ MK_GUARDED_BY(mutex_) = abi::RankPhase::kJoined;  ///< but for collective calls
  bool in_call_ MK_GUARDED_BY(mutex_) = false;
  std::uint32_t rejections_ MK_GUARDED_BY(mutex_) = 0;  ///< that were looked at
};

}  // namespace mkernel::client
