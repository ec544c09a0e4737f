// How the numbers of channels go back to the end that gave them out, and the credit of their puts with them.
//
//   sender                                         receiver
//   leaves the number (closed, or told so)         closes it (closed, or told so)
//   waits for its requests that are under way
//   Released                               ->      has taken all that had arrived by then
//   counts those puts as taken             <-      Taken
//
// Released, and Held with a number that had another channel before, are handled after everything that had
// arrived by then (take_late), so nothing that carries the number in its earlier meaning comes behind them.
#include <algorithm>

#include "daemon/transport/efa/peer.h"

namespace mkernel::transport::efa {

std::uint32_t Peer::new_serial(Outbound& channel) {
  next_serial_ = (next_serial_ + 1) & 0x7fffffff;
  by_serial_[next_serial_] = &channel;
  return next_serial_;
}

/// The channel has no number afterwards. Its requests go on under a serial that is not the channel's any
/// more.
void Peer::leave_number(Outbound& channel) {
  by_serial_.erase(channel.serial);
  if (!channel.index) return;
  by_number_.erase(*channel.index);
  const Departed gone{*channel.index, channel.flying, std::exchange(channel.outstanding, 0)};
  channel.index.reset();
  if (std::exchange(channel.flying, 0) > 0) {
    departed_[channel.serial] = gone;
  } else {
    release(gone);
  }
}

void Peer::release(const Departed& gone) {
  untaken_[gone.number] = gone.outstanding;
  say(NumberMessage{head(MessageType::kReleased), gone.number, 0});
}

/// A request of a channel that has left its number is over.
void Peer::completed_late(std::uint32_t serial) {
  const auto found = departed_.find(serial);
  if (found == departed_.end() || --found->second.flying > 0) return;
  release(found->second);
  departed_.erase(found);
}

void Peer::on_taken(std::uint32_t number) {
  const auto found = untaken_.find(number);
  if (found == untaken_.end()) return;
  outstanding_ -= found->second;
  untaken_.erase(found);
}

/// What still comes with the number is nobody's.
void Peer::close_number(Inbound& channel) {
  if (!channel.index) return;
  numbers_.close(*channel.index);
  channel.index.reset();
  channel.acknowledging = false;
  std::erase(grown_, &channel);
  std::erase(to_acknowledge_, &channel);
}

void Peer::on_released(std::uint32_t number) {
  if (!numbers_.release(number)) return;
  say(NumberMessage{head(MessageType::kTaken), number, 0});
  attach_waiting();
}

/// The completion queue has been found empty after these messages came.
void Peer::take_late() {
  for (const NumberMessage& message : std::exchange(released_, {})) {
    if (message.head.epoch == connection_.epoch()) on_released(message.number);
  }
  for (const Held& message : std::exchange(held_, {})) {
    if (late_status_.ok()) late_status_ = on_held(message);
  }
}

/// Channels that found all numbers taken, as long as there are some again.
void Peer::attach_waiting() {
  while (!unnumbered_.empty() && numbers_.any_free()) {
    const auto [key, serial] = unnumbered_.front();
    unnumbered_.pop_front();
    if (Inbound* const channel = inbound(key)) attach(*channel, serial);
  }
}

}  // namespace mkernel::transport::efa
