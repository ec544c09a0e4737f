// The sending end of one channel: a ring of the puts that are submitted and not yet acknowledged, with a
// cursor that says which of them the current path has been given. Replay is moving the cursor back.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "daemon/transport/transport.h"
#include "daemon/transport/window/peer_load.h"
#include "daemon/transport/window/receive_window.h"

namespace mkernel::transport {

/// One thread. Never allocates after construction. Puts are numbered 1, 2, 3, ... in submission order:
///
///   1 .. acknowledged()   the receiver has published them; forgotten here
///   .. sent()             given to the current path (the cursor)
///   .. submitted()        waiting for the path
class SendWindow {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// Holds up to `capacity` (1..kMaxWindow) puts. `load`: what all channels to the peer have under way,
  /// counted here; not null.
  explicit SendWindow(std::uint32_t capacity, std::shared_ptr<PeerLoad> load = std::make_shared<PeerLoad>());
  ~SendWindow();
  SendWindow(const SendWindow&) = delete;
  SendWindow& operator=(const SendWindow&) = delete;

  std::uint32_t capacity() const { return capacity_; }
  std::uint64_t acknowledged() const { return acknowledged_; }
  std::uint64_t sent() const { return sent_; }
  std::uint64_t submitted() const { return submitted_; }
  std::uint64_t in_flight() const { return submitted_ - acknowledged_; }
  bool empty() const { return submitted_ == acknowledged_; }
  /// No further put is taken for now: the window is full, or the peer has its load and this channel a part of
  /// it.
  bool full() const { return in_flight() == capacity_ || (load_->full() && submitted_ != acknowledged_); }
  /// The number that the next pushed put must carry in `sequence`.
  std::uint64_t next_sequence() const { return submitted_ + 1; }

  /// Takes the next put, whatever the peer's load. False, nothing changed, when `capacity` puts are in flight
  /// or `put.sequence` is not the next.
  bool push(const Put& put, Time now);

  /// Why push() refused a put that full() had room for.
  [[gnu::cold]] Status out_of_order(const Put& put) const;

  /// The first put that the current path has not been given; null when there is none.
  const Put* unsent() const { return sent_ < submitted_ ? &at(sent_ + 1) : nullptr; }
  /// The path has been given unsent(), which is not null.
  void mark_sent();

  /// A put in flight: acknowledged() < number <= submitted().
  const Put& at(std::uint64_t number) const { return entry(number).put; }

  /// A put in flight has its source there.
  bool reads(const memory::Region& region) const;

  /// The receiver has published the first `count` puts. False, nothing changed, for a count that goes back or
  /// beyond what any path was given: the peer is then confused or hostile.
  bool acknowledge(std::uint64_t count);

  /// A new path: the receiver holds the first `held` puts and has fenced the old path. Acknowledges them and
  /// moves the cursor there, so unsent() replays from put held + 1. False as for acknowledge().
  bool resume(std::uint64_t held);

  /// When the oldest unacknowledged put was pushed; none when the window is empty.
  std::optional<Time> oldest() const;

 private:
  struct Entry {
    Put put;
    Time pushed;
    std::uint64_t bytes = 0;  ///< PeerLoad's, of this put and all before it
  };

  // The mask keeps every number within the ring: data() saves the check of each index.
  const Entry& entry(std::uint64_t number) const { return ring_.data()[number & mask_]; }

  std::uint32_t capacity_;
  std::uint64_t mask_;
  std::uint64_t acknowledged_ = 0;
  std::uint64_t sent_ = 0;
  std::uint64_t ever_sent_ = 0;  ///< highest that any path was given: the limit of a believable count
  std::uint64_t submitted_ = 0;
  std::uint64_t bytes_submitted_ = 0;
  std::uint64_t bytes_acknowledged_ = 0;
  std::vector<Entry> ring_;
  const std::shared_ptr<PeerLoad> load_;
};

}  // namespace mkernel::transport
