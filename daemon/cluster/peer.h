// One peer daemon in one of its lives: who it is, what has been said to it and not yet acknowledged, what it
// has said, how long it has been silent. No streams, no timers.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>

#include "daemon/cluster/peer_bus.h"

namespace mkernel::cluster {

/// How long a peer may be silent; `scale` stretches all of it.
struct PeerTimes {
  explicit PeerTimes(double scale);
  std::chrono::milliseconds keepalive, warn, error, dead;
};

enum class Silence { kAlive, kWarn, kError, kDead };
const char* to_string(Silence silence);

/// Control thread only.
class PeerRecord {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  /// `hello` is what it answered at `address`: without the addresses of its data plane.
  PeerRecord(transport::PeerId id, const v1::Hello& hello, std::string address, std::uint64_t epoch,
             TimePoint now);

  const PeerInfo& info() const { return info_; }
  /// Its data plane, as its own hello says.
  void set_rails(const v1::Hello& hello);
  std::uint64_t boot_id() const { return info_.boot_id; }
  const std::string& node() const { return info_.node; }
  const std::string& address() const { return address_; }
  const std::string& version() const { return version_; }
  /// `node b (boot 00c0ffee...)`.
  std::string describe() const;

  std::uint64_t epoch() const { return epoch_; }
  void set_epoch(std::uint64_t epoch) { epoch_ = epoch; }

  // What we say. Kept until acknowledged.
  /// Numbers the message; false when more is unacknowledged than a living peer would leave.
  bool enqueue(v1::PeerMessage message);
  const std::deque<v1::PeerMessage>& unacknowledged() const { return unacknowledged_; }
  /// The first message after `sequence` that is not acknowledged; null when there is none.
  const v1::PeerMessage* after(std::uint64_t sequence) const;
  /// False for a number that was never sent.
  bool acknowledge(std::uint64_t received);
  std::uint64_t sent() const { return sent_; }

  // What it says.
  enum class Take { kNew, kDuplicate, kGap };
  Take take(std::uint64_t sequence);
  std::uint64_t received() const { return received_; }
  /// Messages taken since the last call of this.
  std::uint64_t take_unreported();
  std::uint64_t unreported() const { return received_ - reported_; }

  void heard(TimePoint now) { last_heard_ = now; }
  /// Time in which this process itself stood still is nobody's silence.
  void forgive(std::chrono::steady_clock::duration pause) { last_heard_ += pause; }
  std::chrono::duration<double> silent_for(TimePoint now) const { return now - last_heard_; }
  Silence silence(TimePoint now, const PeerTimes& times) const;

 private:
  PeerInfo info_;
  std::string address_, version_;
  std::uint64_t epoch_;
  std::deque<v1::PeerMessage> unacknowledged_;
  std::size_t unacknowledged_bytes_ = 0;
  std::uint64_t sent_ = 0, received_ = 0, reported_ = 0;
  TimePoint last_heard_;
};

}  // namespace mkernel::cluster
