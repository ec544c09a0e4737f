// Plays the wire of one direction of a link: decides which puts get lost, doubled or overtaken, when each is
// handed to the other end, and when it arrives there.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <random>
#include <vector>

#include "daemon/transport/emulated/emulated.h"
#include "daemon/transport/emulated/message.h"

namespace mkernel::transport::emulated {

/// One put on its way to the socket.
struct Parcel {
  ChannelId channel = 0;
  std::uint64_t sequence = 0;
  PutEntry entry{};
};

/// Bandwidth is serialised over the link, latency comes on top of it, a reordered put waits for a few later
/// ones (of any channel) or at most kHoldTime. Deterministic for a seed. One thread.
///
/// The other end's copy takes its time too. So that this is part of the wire's and does not follow it, a put
/// is handed over when it leaves, or (on a long wire) when its first byte is kHandOver from the other end,
/// and carries the time before which it does not count.
class LinkShaper {
 public:
  LinkShaper(std::uint64_t seed, FaultCounters& counters) : random_(seed), counters_(counters) {}

  void set_shape(const LinkShape& shape) { shape_ = shape; }
  const LinkShape& shape() const { return shape_; }

  /// Puts one parcel on the wire, which says when it arrives; returns how many copies will come out
  /// (0 = dropped, 2 = duplicated).
  std::uint32_t offer(const Parcel& parcel, Time now);
  /// The next parcel that is handed over at `now`, or nullptr. Valid until the next call.
  const Parcel* front(Time now);
  /// Takes front() off the wire.
  void pop();
  /// When the next parcel is handed over; nothing when the wire is empty.
  std::optional<Time> next_release() const;

  void clear();
  void forget(ChannelId channel);

 private:
  struct Timed {
    Parcel parcel;
    Time release;  ///< when it is handed over
  };
  struct Held {
    Parcel parcel;
    Time release;          ///< at the latest
    std::uint32_t behind;  ///< parcels that still have to overtake it
  };
  static constexpr std::chrono::milliseconds kHoldTime{1};
  static constexpr std::chrono::microseconds kHandOver{100};
  static constexpr std::uint32_t kMaxOvertakers = 16;

  bool happens(double probability) { return probability > 0 && chance_(random_) < probability; }
  /// Of a parcel's first byte here, of its last one there.
  struct Passage {
    Time leaves, arrives;
  };
  Passage transmit(std::uint32_t bytes, Time now);
  void enqueue(Parcel parcel, const Passage& passage, bool hold);
  void release_held(Time now);

  LinkShape shape_;
  std::mt19937_64 random_;
  std::uniform_real_distribution<double> chance_{0.0, 1.0};
  FaultCounters& counters_;
  Time wire_free_{};               ///< when the last byte offered so far has been transmitted
  std::int64_t last_arrives_ = 0;  ///< of the last one off the queue: who is overtaken does not arrive before
  std::deque<Timed> queue_;
  std::vector<Held> held_;
  std::deque<Parcel> overtaken_;  ///< were held; leave before the queue
};

}  // namespace mkernel::transport::emulated
