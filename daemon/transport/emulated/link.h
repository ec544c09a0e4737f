// One peer: its connection (dialled, greeted, lost, made again) and the two halves that use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "daemon/transport/emulated/context.h"
#include "daemon/transport/emulated/handshake.h"
#include "daemon/transport/emulated/receiver.h"
#include "daemon/transport/emulated/sender.h"
#include "daemon/transport/emulated/socket.h"
#include "daemon/transport/emulated/wires.h"

namespace mkernel::transport::emulated {

/// One thread.
///
///   waiting --dial--> dialling --hello back--> up        (the end with the smaller identity)
///   waiting --hello of the peer, adopt()--> up           (the other end)
///   up, dialling --lost, or wire pulled--> waiting       any state --peer_timeout, final refusal--> failed
///
/// With several wires the dialling end tries one after the other, its rail's own first, before it waits; the
/// other end does not answer on one that is pulled on its side. Either end drops a connection when a wire
/// that its rail prefers is plugged in again.
class Link {
 public:
  static Result<std::unique_ptr<Link>> create(Context& context, Wakeup& wakeup, PeerId id,
                                              const PeerAddress& address, Time now);

  PeerId id() const { return id_; }
  const Identity& identity() const { return address_.identity; }
  bool failed() const { return state_ == State::kFailed; }
  const Wires& wires() const { return wires_; }
  Sender& sender() { return sender_; }
  Receiver& receiver() { return receiver_; }

  void set_shape(const LinkShape& shape, Time now);
  /// Takes the connection of the peer, whose greeting was checked; an older connection is fenced first.
  void adopt(ipc::UniqueFd socket, Greeting greeting, Time now);
  /// Ends it without a word: neither peer nor sink hear of it.
  void close();
  /// The socket has something to read.
  void wake() { readable_ = true; }
  /// Receives, copies, publishes, sends, dials: whatever is due. Returns the number of events handled.
  std::size_t progress(Time now);
  /// Sends what may leave by now.
  void flush(Time now);
  /// When progress() has something to do again, as far as timers go.
  std::optional<Time> next_deadline(Time now) const;
  /// See Transport::forget().
  void forget(const memory::Region& region, Time now);

 private:
  enum class State { kWaiting, kDialling, kUp, kFailed };

  Link(Context& context, Wakeup& wakeup, PeerId id, const PeerAddress& address, ipc::UniqueFd fence_fd,
       ipc::Mapping fence, Time now);

  void start_dialling(Time now);
  std::size_t await_answer(Time now);
  std::size_t receive(Time now);
  Status dispatch(const ipc::Packet& packet, Time now);
  Status malformed(const ipc::Packet& packet) const;
  void come_up(ipc::Mapping fence);
  void lose(const Status& why, Time now);
  /// lose(), but to take another wire: the sink hears of that one alone.
  void move(const Status& why, Time now);
  void tell_loss();
  void fail(const Status& why);
  void check_timeout(Time now);
  /// "wire 1 to @mkernel-b-2-0".
  std::string text() const;
  /// As next_deadline(), the engines left out.
  std::optional<Time> next_timer(Time now) const;

  Context& context_;
  Wakeup& wakeup_;
  const PeerId id_;
  const PeerAddress address_;
  const bool dials_;  ///< this end does
  ipc::UniqueFd fence_fd_;
  ipc::Mapping fence_;  ///< ours: the peer's receiver looks at it
  Sender sender_;
  Receiver receiver_;
  Wires wires_;
  std::uint32_t wire_;         ///< that the connection plays, or the last one did
  std::uint32_t attempt_ = 0;  ///< usable wires tried since the last connection or wait

  State state_ = State::kWaiting;
  ipc::UniqueFd socket_;
  bool readable_ = false;
  bool blocked_ = false;   ///< the socket was full; waiting to write
  bool reported_ = false;  ///< peer_connected
  struct Loss {
    std::string path;
    Status why;
  };
  std::optional<Loss> untold_;  ///< the sink hears of it in progress(): a wire is pulled outside of poll()
  Status last_error_;
  Time unreachable_since_;
  Time next_dial_;
  Time answer_due_{};
  std::chrono::milliseconds dial_interval_;
};

}  // namespace mkernel::transport::emulated
