// A proxy thread: drains the rings of all sessions into one transport, publishes counts. Rail r's proxy reads
// ring r of every session and owns the lanes of every group that go over it (abi::RingShare).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "daemon/base/slice_meter.h"
#include "daemon/dataplane/ports.h"
#include "daemon/memory/sleep_watch.h"
#include "daemon/transport/transport.h"

namespace mkernel::dataplane {

/// What a proxy tells the control path. Called on the proxy thread; the implementation posts and returns at
/// once.
class ControlSink {
 public:
  virtual ~ControlSink() = default;
  /// A bad slot: the session must end with this status. The proxy reads its ring no more.
  virtual void session_failed(SessionId session, const Status& why) = 0;
  /// A channel of the group failed (the peer refused a put, replay impossible); `culprit` is the rank at
  /// fault or -1.
  virtual void group_failed(const GroupKey& group, std::int32_t culprit, const Status& why) = 0;
  virtual void peer_connected(std::uint32_t rail, transport::PeerId peer) = 0;
  virtual void peer_failed(transport::PeerId peer, const Status& why) = 0;
  /// As TransportSink::path_changed(), of the transport of `rail`.
  virtual void path_changed(std::uint32_t rail, transport::PeerId peer, const std::string& path,
                            const Status& lost) = 0;
  /// The transport of `rail` has something to say to the peer's transport of the same rail.
  virtual void message_to_peer(std::uint32_t rail, transport::PeerId peer,
                               std::vector<std::byte> message) = 0;
};

struct ProxyOptions {
  std::uint32_t index = 0;             ///< rail number = ring number
  std::uint32_t count = 1;             ///< proxies of this daemon = rings per session
  std::chrono::microseconds spin{50};  ///< polls this long after the last work before it yields and naps
  std::chrono::microseconds nap{50};   ///< longest nap while a session has operations in flight
  std::chrono::seconds idle_after{
      120};  ///< a session that says "active" but writes nothing this long is idle
  std::uint64_t quantum_bytes = 256 * 1024;  ///< deficit round robin: bytes per turn and unit of weight
  std::uint32_t quantum_requests = 64;       ///< and requests per turn
  std::vector<std::uint32_t> cpus;  ///< that the thread stays on; empty = wherever the kernel puts it
  std::function<void(const Status&)> not_pinned;  ///< called on the proxy thread when it cannot stay there
  memory::SleepWatch* sleep_watch = nullptr;      ///< watches the thread; outlives the proxy
};

/// Thread rule: every call below is made by the control thread and returns at once; effects happen on the
/// proxy thread in the order of the calls. `done` runs on the proxy thread (post it where it belongs).
class Proxy {
 public:
  using Done = std::function<void()>;

  Proxy(const ProxyOptions& options, std::unique_ptr<transport::Transport> transport, ControlSink& sink);
  ~Proxy();  ///< stops and joins

  void start();
  /// Stops reading rings, waits until in-flight puts are completed or `limit` has passed, closes the
  /// transport, joins.
  void stop(std::chrono::milliseconds limit);

  const transport::Capabilities& capabilities() const;
  std::string local_endpoint() const;

  void attach_session(std::shared_ptr<SessionPort> session);
  /// Reads its ring no more. `drained` once in-flight puts are completed or `limit` has passed; then closes
  /// its groups, drops every reference to its memory, then `done`.
  void detach_session(SessionId session, std::chrono::milliseconds limit, Done drained, Done done);

  /// Opens all channels of this rail, a few in each round. `done(status)` when they are open (the transport
  /// may still be connecting).
  void open_group(std::shared_ptr<GroupPort> group, std::function<void(Status)> done);
  /// Drains (as detach_session) and closes the channels.
  void close_group(const GroupKey& group, std::chrono::milliseconds limit, Done done);

  void set_region(const GroupKey& group, std::uint32_t index, std::shared_ptr<const memory::Region> region,
                  Done done);
  /// Waits for the puts that were written before, refuses new ones, and drops the reference when no put and
  /// no transport uses the region any more: from `done` on nothing is written there or read. At `limit` the
  /// group fails instead and its channels are closed first: `done` then says kDeadlineExceeded, and the same
  /// holds.
  void clear_region(const GroupKey& group, std::uint32_t index, std::chrono::milliseconds limit,
                    std::function<void(Status)> done);
  /// What `rank` (on another node or this one) registered; bytes 0 = gone. Bounds of remote offsets are
  /// checked here.
  void set_remote_region(const GroupKey& group, std::uint32_t rank, std::uint32_t index, std::uint64_t bytes);
  /// `rank`, on another node, has left the group or is lost: puts to it are dropped and count as completed.
  void rank_left(const GroupKey& group, std::uint32_t rank);
  /// `done` once all calls before this one have taken effect: rings that are read from then on are checked
  /// against them.
  void settle(Done done);

  void connect_peer(transport::PeerId peer, transport::PeerAddress address);
  void disconnect_peer(transport::PeerId peer);
  /// What the peer's transport of this rail said by ControlSink::message_to_peer() there. Untrusted.
  void receive_from_peer(transport::PeerId peer, std::vector<std::byte> message);
  void set_link(transport::PeerId peer, const transport::LinkShape& shape, std::function<void(Status)> done);

  /// How long the proxy thread was busy with one thing: commands of one round, or the round. Any thread.
  base::SliceTimes slices() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mkernel::dataplane
