// Sessions, groups and regions for tests of the data plane: what the session layer would make, without a
// client process, plus the 20 lines of a ring writer.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/dataplane/proxy.h"
#include "proto/abi/work_request.h"

namespace mkernel::test {

/// Polls `condition` until it holds; false after `limit`. Generous by default: the machine may be loaded.
template <typename Condition>
bool eventually(Condition&& condition, std::chrono::seconds limit = std::chrono::seconds(30));

std::shared_ptr<dataplane::SessionPort> make_session(dataplane::SessionId id, std::uint32_t log2_slots = 8,
                                                     std::uint32_t weight = 1, std::uint32_t rings = 1);

/// How make_group places a rank: on this node as a rank of that session, or on a peer.
struct RankPlace {
  dataplane::SessionId session = 0;  ///< not 0: local, with the same handle
  transport::PeerId peer = 0;
  std::uint32_t local_rank = 0, local_ranks = 1;
  std::uint32_t rails = 0;  ///< dataplane::PeerRank::rails
};

struct GroupShape {
  std::uint32_t handle = 1;
  std::uint32_t rank = 0;
  std::uint32_t lanes = 1;
  std::uint32_t region_capacity = 8;
  std::uint32_t first_channel = 0;
  std::uint64_t instance = 77;
  std::vector<RankPlace> ranks;
};

std::shared_ptr<dataplane::GroupPort> make_group(dataplane::SessionId session, const GroupShape& shape);

/// Host memory of `bytes`, zeroed.
std::shared_ptr<const memory::Region> make_region(std::uint64_t bytes);

std::uint64_t arrivals(const dataplane::GroupPort& group, std::uint32_t source, std::uint32_t lane = 0);
std::uint64_t completed(const dataplane::GroupPort& group, std::uint32_t target, std::uint32_t lane = 0);

abi::WorkRequest put_request(std::uint32_t channel, std::uint32_t peer, std::uint32_t length,
                             std::uint64_t local_offset = 0, std::uint64_t remote_offset = 0,
                             std::uint16_t local_region = 0, std::uint16_t remote_region = 0);

/// A client's side of one ring, of its threads or its GPU. write() may be called by several threads at once.
class RingWriter {
 public:
  explicit RingWriter(std::shared_ptr<dataplane::SessionPort> session, std::uint32_t ring = 0,
                      abi::RingWriter writer = abi::RingWriter::kThreads);

  /// Waits for room, then writes; the slot itself is any 32 bytes.
  void write(const abi::WorkRequest& request);
  /// All of them become visible to the reader at once. They must fit the ring; no other thread writes.
  void write_together(const std::vector<abi::WorkRequest>& requests);
  void write_raw(const abi::WorkSlot& slot);  ///< its lap bits are replaced by the right ones
  /// Writes where no honest writer would, without looking at the tail.
  void scribble(std::uint64_t position, const abi::WorkSlot& slot);

  std::uint64_t tail() const;
  std::uint64_t head() const { return head_.load(std::memory_order_relaxed); }
  std::uint64_t slots() const { return std::uint64_t{1} << log2_slots_; }
  void set_active(std::uint32_t active);
  void ring_doorbell();

 private:
  std::uint64_t claim();
  void store(std::uint64_t position, const abi::WorkSlot& slot);

  std::shared_ptr<dataplane::SessionPort> session_;
  std::uint32_t ring_;
  std::uint32_t log2_slots_;
  abi::WorkSlot* slots_;
  std::uint64_t* tail_;
  std::atomic<std::uint64_t> head_{0};
};

/// Notes what a proxy tells the control path. Any thread may look.
class RecordingSink final : public dataplane::ControlSink {
 public:
  struct GroupEnd {
    dataplane::GroupKey group;
    std::int32_t culprit;
    Status why;
  };

  void session_failed(dataplane::SessionId session, const Status& why) override;
  void group_failed(const dataplane::GroupKey& group, std::int32_t culprit, const Status& why) override;
  void peer_connected(std::uint32_t rail, transport::PeerId peer) override;
  void peer_failed(transport::PeerId peer, const Status& why) override;
  void path_changed(std::uint32_t rail, transport::PeerId peer, const std::string& path,
                    const Status& lost) override;
  void message_to_peer(std::uint32_t rail, transport::PeerId peer, std::vector<std::byte> message) override;

  /// As "rail 0 to peer 4: text".
  std::vector<std::string> messages() const;
  /// As "rail 0 to peer 4: PATH lost: why", "rail 0 to peer 4: PATH".
  std::vector<std::string> paths() const;
  std::vector<std::pair<dataplane::SessionId, Status>> sessions() const;
  std::vector<GroupEnd> groups() const;
  std::vector<std::pair<transport::PeerId, Status>> peers() const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::pair<dataplane::SessionId, Status>> sessions_;
  std::vector<GroupEnd> groups_;
  std::vector<std::pair<transport::PeerId, Status>> peers_;
  std::vector<std::string> messages_;
  std::vector<std::string> paths_;
};

/// Calls of the control thread, each waited for.
Status open_group(dataplane::Proxy& proxy, std::shared_ptr<dataplane::GroupPort> group);
void set_region(dataplane::Proxy& proxy, const dataplane::GroupKey& group, std::uint32_t index,
                std::shared_ptr<const memory::Region> region);
Status clear_region(dataplane::Proxy& proxy, const dataplane::GroupKey& group, std::uint32_t index,
                    std::chrono::milliseconds limit);
bool close_group(dataplane::Proxy& proxy, const dataplane::GroupKey& group, std::chrono::milliseconds limit);
bool detach_session(dataplane::Proxy& proxy, dataplane::SessionId session, std::chrono::milliseconds limit);

template <typename Condition>
bool eventually(Condition&& condition, std::chrono::seconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return condition();
    sched_yield();
  }
  return true;
}

}  // namespace mkernel::test
