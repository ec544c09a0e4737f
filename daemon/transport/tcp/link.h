// One of the connections to a peer: a slot that is filled, lost and filled again.
//
//   down -> dialling -> greeting -> proving -> up   at the end that dials, once it has the secret
//   down ------------------------------------> up   at the end that listens (after the acceptor's handshake)
//
// Whatever goes wrong leads back to down, with the socket closed and everything about the stream forgotten:
// that is the fence of the delivery contract. Only after it does this end dial or answer again, and say what
// it holds.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "daemon/transport/tcp/channel.h"
#include "daemon/transport/tcp/context.h"
#include "daemon/transport/tcp/handshake.h"
#include "daemon/transport/tcp/message.h"
#include "daemon/transport/tcp/stream_reader.h"
#include "daemon/transport/tcp/stream_writer.h"
#include "daemon/transport/tcp/unloader.h"
#include "proto/ipc/fd.h"

namespace mkernel::transport::tcp {

class Link final : public Served, private FrameHandler, private LandingSink {
 public:
  Link(Context& context, Peer& peer, std::uint32_t number);
  ~Link() override;

  bool up() const { return state_ == State::kUp; }
  /// Of the present connection, or the last one: "10.0.0.1:41234 -> 10.0.0.2:7600, connection 0 of 2".
  const std::string& ends() const { return ends_; }

  /// Begins to be wanted: the time it may stay down runs from now.
  void start(Clock::time_point now);
  /// The secret is complete: the end that dials may.
  void secret_known(Clock::time_point now);
  /// Listening end: takes over a connection whose handshake is done.
  void adopt(ipc::UniqueFd socket);
  /// Closes the connection at once; what was queued in it does not reach the peer.
  void lose(const Status& why);
  /// Closes the connection for good, after what is queued in it.
  void close();

  void ask(Outbound& channel);
  void answer(Inbound& channel);
  void offer(Outbound& channel);
  void withdraw(Outbound& channel) { writer_.withdraw(channel); }
  void forget(Outbound& channel);
  void forget(Inbound& channel);
  /// True while a put that is read, or an engine, uses the region.
  bool uses(const memory::Region& region) const {
    return reader_.lands_in(region) || unloader_.lands_in(region) || writer_.reads(region);
  }

  Clock::time_point deadline() const;
  void expire(Clock::time_point now);

  void on_events(std::uint32_t events) override;
  std::size_t receive(std::size_t& left) override;
  std::size_t send(std::size_t& left) override;
  bool has_work() const override;

 private:
  enum class State : std::uint8_t { kDown, kDialling, kGreeting, kProving, kUp };

  Status on_put(const PutFrame& frame, Landing& landing) override;
  void on_received(const Landing& landing) override;
  Status on_open(const OpenFrame& frame) override;
  Status on_closed(const ClosedFrame& frame) override;
  Status on_held(const HeldFrame& frame) override;
  Status on_refused(const RefusedFrame& frame) override;
  void on_landed(Inbound& channel, std::uint64_t number) override;
  void on_landing_failed(Inbound& channel, const Status& why) override;
  Status check_size(const PutFrame& frame) const;
  void begin(const PutFrame& frame, std::uint64_t number, Inbound& channel, Landing& landing);
  void land(const PutFrame& frame, Inbound& channel, Landing& landing);
  void refuse(Inbound& channel, const Status& why);

  void dial(Clock::time_point now);
  Status say_hello();
  Status go_on_greeting();
  Status read_welcome();
  std::size_t finish_dial();
  void go_up();
  std::size_t receive_bytes(std::size_t& left);
  std::size_t receive_frames(std::size_t& left);
  std::string describe() const;
  Clock::time_point give_up_at() const;

  Context& context_;
  Peer& peer_;
  const std::uint32_t number_;

  State state_ = State::kDown;
  bool wanted_ = false;
  ipc::UniqueFd socket_;
  std::string ends_;
  bool readable_ = false;
  bool writable_ = false;
  bool ending_ = false;  ///< the peer has closed its side: read to the end
  bool error_ = false;   ///< the socket has an error or a zero-copy report
  DialHandshake handshake_;
  Challenge challenge_{};
  Welcome welcome_{};
  std::size_t answer_bytes_ = 0;  ///< of the one that is awaited

  Clock::time_point down_since_{};
  Clock::time_point retry_at_{};
  Clock::time_point handshake_until_{};
  std::chrono::milliseconds backoff_{0};
  Status last_error_;

  Unloader unloader_;
  StreamReader reader_;
  StreamWriter writer_;
};

}  // namespace mkernel::transport::tcp
