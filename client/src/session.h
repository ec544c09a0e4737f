// The session as all its handles share it: connection, rings, the watcher's reach into groups.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "client/src/connection.h"
#include "client/src/home.h"
#include "client/src/memory.h"
#include "kernels/base/views.h"
#include "kernels/cuda/launch/endpoint.h"
#include "mkernel/client.h"
#include "proto/abi/region_map.h"
#include "proto/base/mutex.h"
#include "proto/ipc/fd.h"

namespace mkernel::client {

class SessionCore {
 public:
  static Result<std::shared_ptr<SessionCore>> connect(const SessionOptions& options);

  Connection& connection() { return *connection_; }
  const Home& home() const { return home_; }
  std::uint64_t id() const { return id_; }
  const std::string& node_name() const { return node_name_; }
  std::uint32_t max_lanes() const { return max_lanes_; }
  /// When a small request that starts now must be answered.
  Deadline request_deadline() const { return Clock::now() + timeout_; }
  /// OK, or why the session is over.
  Status status() const;

  abi::SessionSegment* segment() const { return segment_.at<abi::SessionSegment>(0); }
  /// The memory of the GPU that the session named; opened at the first call. Errors: kFailedPrecondition when
  /// it named none, those of open_gpu_memory(). Any thread.
  Result<std::shared_ptr<MemorySource>> gpu_memory();
  /// The device that the session named, or kFailedPrecondition when it named none: host memory only.
  Result<int> gpu() const;
  /// Makes the session's segment readable for kernels of that device. Any thread.
  Status pin_segment();

  /// The producer's side of every ring that threads write.
  std::vector<kernels::RingView> rings();
  /// The rings that kernels of the session's GPU write; made at the first call, which also pins the segment.
  /// Any thread.
  Result<std::shared_ptr<kernels::RingsOnDevice>> rings_on_gpu();

  /// Raises and lowers the count of operations in flight. Both ring every doorbell: the first because proxies
  /// also sleep when a session that says it is active has long written nothing, and kernels cannot ring; the
  /// last so that they look once more. Any thread.
  void begin_activity();
  void end_activity();
  /// Raise what mkctl shows of this session. Any thread.
  void count_launch();
  void count_fallback();
  /// Wakes the proxy that drains `ring`, if it may be asleep. Call after a slot of it was published. Any
  /// thread.
  void published(std::uint32_t ring);

  /// Keeps a memfd that this session has registered mappable until the session ends. Any thread.
  void keep(std::shared_ptr<const ipc::WriteHold> memfd);

  /// While watched, a group segment gets a failure record and its abort word when the session is lost. At
  /// once if it is lost already.
  void watch(abi::GroupSegment* group);
  void unwatch(abi::GroupSegment* group);

 private:
  explicit SessionCore(const SessionOptions& options);
  Status hello(const SessionOptions& options);
  Status adopt_segment(const abi::HelloReply& reply, std::vector<ipc::UniqueFd> fds);
  void lost(const Status& why);
  void ring_doorbell(std::uint32_t ring);
  void ring_doorbells();

  const Home home_;
  const std::chrono::milliseconds timeout_;
  const int device_;
  std::uint64_t id_ = 0;
  std::string node_name_;
  std::uint32_t max_lanes_ = abi::kMaxLanes;
  ipc::Mapping segment_;
  std::vector<ipc::UniqueFd> doorbells_;
  std::array<std::atomic<std::uint64_t>, abi::kMaxRings> heads_{};
  /// When each ring's bell rang last: steady clock, nanoseconds.
  std::array<std::atomic<std::int64_t>, abi::kMaxRings> last_bell_{};

  Mutex kept_mutex_;
  std::set<std::shared_ptr<const ipc::WriteHold>> kept_ MK_GUARDED_BY(kept_mutex_);

  Mutex gpu_mutex_;
  std::shared_ptr<MemorySource> gpu_ MK_GUARDED_BY(gpu_mutex_);
  std::shared_ptr<const void> pinned_ MK_GUARDED_BY(gpu_mutex_);  ///< segment_, for the GPU
  std::shared_ptr<kernels::RingsOnDevice> rings_on_gpu_ MK_GUARDED_BY(gpu_mutex_);

  Mutex watched_mutex_;  ///< also held while failure records are written
  Status lost_ MK_GUARDED_BY(watched_mutex_);
  std::set<abi::GroupSegment*> watched_ MK_GUARDED_BY(watched_mutex_);
  bool adopted_ MK_GUARDED_BY(watched_mutex_) = false;  ///< segment_ is there

  std::unique_ptr<Connection> connection_;  ///< last: its watcher uses everything above until it is joined
};

}  // namespace mkernel::client
