// The connection to one peer: opened, proved, lost, opened again, on the best route there is. Both ends
// destroy what they had before they tell the other what they have now, so nothing of an older epoch lands
// once the peer has answered.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "daemon/transport/efa/context.h"
#include "daemon/transport/efa/domains.h"
#include "daemon/transport/efa/queue.h"
#include "daemon/transport/efa/scout.h"

namespace mkernel::transport::efa {

/// Proxy thread. One end dials: it counts the epochs and chooses the route of each. The other one takes the
/// device that it is asked for, or says why it cannot.
class Connection {
 public:
  /// `domains`: of the peer; they outlive this.
  Connection(Context& context, Domains& domains, PeerId peer, const PeerAddress& remote, Time now);

  /// A message about the connection. An error is for good: the peer cannot be talked to.
  Status receive(std::span<const std::byte> message, Time now);
  /// Dials, repeats what was not answered, moves to a better route that works again. An error: unreachable
  /// for too long, for good.
  Status poll(Time now);
  /// A probe has completed. True when puts may flow from now on.
  bool proved(Time now);
  /// A put has gone through, one way or the other: the route works.
  void carried() {
    if (unreachable_since_ != kNever && up()) note_that_it_works();
  }
  /// Nothing has been heard for a while although an answer is due: a probe fails where the peer is gone.
  void ask_again(Time now);
  /// This epoch is over, for a reason found here; the other end is told.
  void lose(const Status& why, Time now);
  /// Something has happened to the device at this position.
  void device_changed(std::uint32_t local, const Device::News& news, Time now);
  /// Completions are notified. False when they were not before, and some may have come meanwhile.
  bool arm();
  /// Nothing of its own is under way.
  bool idle() const;
  void close();

  bool up() const { return state_ == State::kUp; }
  /// Up, or about to be: what arrives is for this epoch.
  Queue* queue() { return queue_.get(); }
  std::uint32_t epoch() const { return epoch_; }
  /// Changes whenever what belongs to the connection is over.
  std::pair<std::uint32_t, bool> life() const { return {epoch_, queue_ != nullptr}; }
  /// Puts that may be on their way to the peer, of all channels and of one.
  std::uint32_t peer_credit() const { return peer_credit_; }
  std::uint32_t peer_window() const { return peer_window_; }
  Time deadline(Time now) const;
  /// Both ends and the cause of the last loss, and which devices of this node cannot be used.
  std::string why() const;

  /// The completion of the probe carries this.
  static constexpr std::uint64_t kProbeId = ~std::uint64_t{0};

 private:
  enum class State { kLost, kGreeting, kProbing, kUp };

  Status make_queue();
  void dial(Route route, Time now);
  void broke(const Status& why, std::string reason, Time now);
  void drop(std::string reason, Time now);
  Status greeted(const Hello& hello);
  Hello hello(MessageType type) const;
  Status on_hello(const Hello& message, Time now);
  void on_welcome(const Hello& message, Time now);
  void on_lost(const Status& why, Time now);
  void greet_by_write(Time now);
  void probe(Time now);
  void look_for_better(Time now);
  bool was_stable(Time now) const;
  void note_that_it_works();
  std::string text() const;

  Context& context_;
  Domains& domains_;
  const PeerId peer_;
  const Identity remote_;
  const bool dials_;
  State state_ = State::kLost;
  std::uint32_t epoch_ = 0;
  std::uint32_t peer_credit_ = 0, peer_window_ = 0;
  Route route_{};  ///< at the end that answers only `local` is known
  rdma::Routes routes_;
  std::optional<Hello> far_end_;  ///< of the last connection, once it is known
  std::unique_ptr<Queue> queue_;
  Scout scout_;
  Time next_ = kNever;  ///< greeting: when to ask again; probing: when to give up
  Time up_since_{};     ///< while it is up
  /// Until puts have gone over it again, or it was up for long. kNever then, until it is lost.
  Time unreachable_since_;
  bool asking_ = false;     ///< a probe is under way
  bool was_up_ = false;     ///< once
  bool just_lost_ = false;  ///< no poll has looked for a route since
  std::string reason_;
};

}  // namespace mkernel::transport::efa
