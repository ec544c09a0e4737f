// The connection to one peer: opened, proved, lost, opened again. Both ends destroy what they had before they
// tell the other what they have now, so nothing of an older epoch lands once the peer has answered.
#pragma once

#include <string>

#include "daemon/transport/efa/context.h"
#include "daemon/transport/efa/queue.h"

namespace mkernel::transport::efa {

/// Proxy thread.
class Connection {
 public:
  Connection(Context& context, PeerId peer, const Identity& remote, Time now);

  /// A message about the connection. An error is for good: the peer cannot be talked to.
  Status receive(std::span<const std::byte> message, Time now);
  /// Dials again, repeats what was not answered. An error: unreachable for too long, for good.
  Status poll(Time now);
  /// A probe has completed. True when puts may flow from now on.
  bool proved();
  /// Nothing has been heard for a while although an answer is due: a probe fails where the peer is gone.
  void ask_again(Time now);
  /// This epoch is over; `tell`: the other end does not know.
  void lose(const Status& why, Time now, bool tell);
  void close();

  bool up() const { return state_ == State::kUp; }
  /// Up, or about to be: what arrives is for this epoch.
  Queue* queue() { return queue_.get(); }
  std::uint32_t epoch() const { return epoch_; }
  std::uint32_t peer_credit() const { return peer_credit_; }
  Time deadline() const;

  /// The completion of the probe carries this.
  static constexpr std::uint64_t kProbeId = ~std::uint64_t{0};

 private:
  enum class State { kLost, kGreeting, kProbing, kUp };

  Status make_queue();
  void dial(Time now);
  Status greeted(const Hello& hello);
  Hello hello(MessageType type) const;
  Status on_hello(const Hello& message, Time now);
  Status on_welcome(const Hello& message, Time now);
  void greet_by_write(Time now);
  void probe(Time now);

  Context& context_;
  const PeerId peer_;
  const Identity remote_;
  const bool dials_;
  State state_ = State::kLost;
  std::uint32_t epoch_ = 0;
  std::uint32_t peer_credit_ = 0;
  std::unique_ptr<Queue> queue_;
  Time next_;               ///< dialling end: when to dial, or to ask again
  Time unreachable_since_;  ///< kNever while it is up
  std::chrono::milliseconds pause_;
  bool asking_ = false;  ///< a probe is under way
  bool was_up_ = false;  ///< once
  std::string reason_ = "it has not answered yet";
};

}  // namespace mkernel::transport::efa
