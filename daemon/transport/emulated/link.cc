#include "daemon/transport/emulated/link.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

namespace mkernel::transport::emulated {
namespace {

constexpr std::chrono::milliseconds kMaxDialInterval{1000};
constexpr std::chrono::milliseconds kAnswerTimeout{2000};
constexpr std::uint64_t kCopyBudget =
    1U << 20;  ///< bytes per poll and link: other links and rings get their turn
constexpr std::size_t kPacketBudget = 64;
/// Nothing wakes us when a copy engine is through: as often as this it is looked at.
constexpr std::chrono::microseconds kEngineInterval{20};

bool smaller(const Identity& a, const Identity& b) {
  return std::tie(a.node, a.boot_id) < std::tie(b.node, b.boot_id);
}

/// A packet of fixed size; false when it has another.
template <typename T>
bool read_fixed(const ipc::Packet& packet, T& body) {
  if (packet.bytes != sizeof(T)) return false;
  std::memcpy(&body, packet.data, sizeof(T));
  return true;
}

/// A packet of head.count entries that begin at `entries_at`.
template <typename T, typename Entry>
bool read_entries(const ipc::Packet& packet, T& body, std::size_t entries_at, const Entry*) {
  if (packet.bytes < entries_at || packet.bytes > sizeof(T)) return false;
  std::memcpy(&body, packet.data, packet.bytes);
  return packet.bytes == entries_at + body.head.count * sizeof(Entry);
}

}  // namespace

Result<std::unique_ptr<Link>> Link::create(Context& context, Wakeup& wakeup, PeerId id,
                                           const PeerAddress& address, Time now) {
  auto fd = ipc::create_shared_memory("mkernel-fence", kFencePageBytes);
  if (!fd.ok()) return fd.status();
  auto fence = ipc::Mapping::map(fd->get(), 0, kFencePageBytes);
  if (!fence.ok()) return fence.status();
  return std::unique_ptr<Link>(
      new Link(context, wakeup, id, address, std::move(fd).value(), std::move(fence).value(), now));
}

Link::Link(Context& context, Wakeup& wakeup, PeerId id, const PeerAddress& address, ipc::UniqueFd fence_fd,
           ipc::Mapping fence, Time now)
    : context_(context),
      wakeup_(wakeup),
      id_(id),
      address_(address),
      dials_(smaller(context.options.base.identity, address.identity)),
      fence_fd_(std::move(fence_fd)),
      fence_(std::move(fence)),
      sender_(context, describe(address.identity), context.options.seed + 0x9e3779b97f4a7c15ULL * (id + 1),
              *fence_.at<FencePage>(0)),
      receiver_(context, describe(address.identity)),
      wires_(context.options.rail, context.options.rails),
      wire_(context.options.rail),
      last_error_(StatusCode::kUnavailable, dials_ ? "not dialled yet" : "it has not called yet"),
      unreachable_since_(now),
      next_dial_(now),
      dial_interval_(context.options.base.reconnect_interval) {
  wires_.set(context.options.shape);
}

void Link::set_shape(const LinkShape& shape, Time now) {
  const Wires before = wires_;
  wires_.set(shape);
  sender_.set_shape(shape);
  const std::uint32_t preferred = wires_.at(0);
  if (before.carries(wire_) && !wires_.carries(wire_)) {
    lose({StatusCode::kUnavailable, "wire " + std::to_string(wire_) + " of the link was pulled"}, now);
  } else if (state_ == State::kUp && wire_ != preferred && !before.carries(preferred)) {
    move({StatusCode::kUnavailable, "wire " + std::to_string(preferred) + " of the link is back"}, now);
  }
  if (wires_.usable() > before.usable()) {
    attempt_ = 0;
    next_dial_ = now;
  }
}

void Link::start_dialling(Time now) {
  wire_ = wires_.at(attempt_);
  if (++attempt_ < wires_.usable()) {
    next_dial_ = now;  // should this one fail, the next is tried at once
  } else {
    attempt_ = 0;
    next_dial_ = now + dial_interval_;
    dial_interval_ = std::min(dial_interval_ * 2, kMaxDialInterval);
  }
  auto socket = dial(address_.endpoint);
  if (!socket.ok()) {
    last_error_ = socket.status();
    return;
  }
  last_error_ =
      send_hello(socket->get(), context_.options.base.identity, address_.identity, fence_fd_.get(), wire_);
  if (!last_error_.ok()) return;
  socket_ = std::move(socket).value();
  wakeup_.add(socket_.get(), id_);
  state_ = State::kDialling;
  readable_ = false;
  last_error_ = {StatusCode::kUnavailable, "it does not answer the hello"};
  answer_due_ = now + kAnswerTimeout;
}

std::size_t Link::await_answer(Time now) {
  ipc::Packet packet;
  const Status got = ipc::receive_packet(socket_.get(), packet);
  readable_ = false;
  if (got.code() == StatusCode::kNotFound) {
    if (now >= answer_due_) lose({StatusCode::kDeadlineExceeded, "it does not answer the hello"}, now);
    return 0;
  }
  if (!got.ok()) {
    lose(got, now);
    return 1;
  }
  if (type_of(packet) != PacketType::kHello) {
    const Refusal refusal = read_refusal(packet);
    refusal.final ? fail(refusal.why) : lose(refusal.why, now);
    return 1;
  }
  auto greeting = read_hello(packet);
  if (!greeting.ok()) {
    fail(greeting.status().with_context(describe(address_.identity)));
  } else if (!same(greeting->from, address_.identity)) {
    fail({StatusCode::kFailedPrecondition, "emulated: " + describe(greeting->from) + " answers at " +
                                               address_.endpoint + " where " + describe(address_.identity) +
                                               " was expected"});
  } else {
    come_up(std::move(greeting->fence));
  }
  return 1;
}

void Link::adopt(ipc::UniqueFd socket, Greeting greeting, Time now) {
  if (state_ == State::kUp) lose({StatusCode::kUnavailable, "the peer connected anew"}, now);
  socket_ = std::move(socket);
  wire_ = greeting.wire;
  wakeup_.add(socket_.get(), id_);
  const Status greeted =
      send_hello(socket_.get(), context_.options.base.identity, address_.identity, fence_fd_.get(), wire_);
  if (!greeted.ok()) return lose(greeted, now);
  come_up(std::move(greeting.fence));
}

void Link::come_up(ipc::Mapping fence) {
  state_ = State::kUp;
  readable_ = true;
  blocked_ = false;
  attempt_ = 0;
  dial_interval_ = context_.options.base.reconnect_interval;
  ++context_.faults.connections;
  sender_.connected(socket_.get());
  receiver_.connected(socket_.get(), std::move(fence));
  tell_loss();
  if (std::exchange(reported_, true)) {
    context_.sink->path_changed(id_, text(), {});
  } else {
    context_.sink->peer_connected(id_);
  }
}

std::string Link::text() const {
  return "wire " + std::to_string(wire_) + " to " + address_.endpoint;
}

void Link::tell_loss() {
  const std::optional<Loss> loss = std::exchange(untold_, std::nullopt);
  if (loss) context_.sink->path_changed(id_, loss->path, loss->why);
}

void Link::lose(const Status& why, Time now) {
  if (state_ == State::kUp) untold_ = {text(), why};
  move(why, now);
}

void Link::move(const Status& why, Time now) {
  if (state_ == State::kUp) {
    unreachable_since_ = now;
    // The same wire needs a moment; another one may work at once.
    next_dial_ = wires_.usable() > 1 ? now : now + dial_interval_;
  }
  if (state_ != State::kFailed) state_ = State::kWaiting;
  last_error_ = why;
  sender_.lost();
  receiver_.lost();
  socket_.reset();
}

void Link::close() {
  state_ = State::kFailed;
  sender_.lost();
  receiver_.lost();
  socket_.reset();
}

void Link::fail(const Status& why) {
  close();
  tell_loss();
  context_.sink->peer_failed(id_, why);
}

void Link::check_timeout(Time now) {
  const auto limit = context_.options.base.peer_timeout;
  if (now < unreachable_since_ + limit) return;
  fail({StatusCode::kUnavailable, "emulated: " + context_.node() + " could not reach " +
                                      describe(address_.identity) + " at " + address_.endpoint + " for " +
                                      std::to_string(limit.count()) +
                                      " ms (peer_timeout); last: " + last_error_.text()});
}

std::size_t Link::progress(Time now) {
  std::size_t handled = receiver_.collect(now);
  if (state_ == State::kWaiting && dials_ && wires_.usable() > 0 && now >= next_dial_) {
    start_dialling(now);
    ++handled;
  }
  if (state_ == State::kDialling) handled += await_answer(now);
  if (state_ == State::kUp) handled += receive(now);
  if (state_ == State::kUp) flush(now);
  if (state_ == State::kWaiting || state_ == State::kDialling) check_timeout(now);
  tell_loss();
  return handled;
}

std::size_t Link::receive(Time now) {
  std::size_t handled = 0;
  std::uint64_t budget = kCopyBudget;
  handled += receiver_.process(budget, now);
  ipc::Packet packet;
  for (std::size_t i = 0;
       i < kPacketBudget && readable_ && budget > 0 && state_ == State::kUp && !receiver_.busy(); ++i) {
    const Status got = ipc::receive_packet(socket_.get(), packet);
    if (got.code() == StatusCode::kNotFound) {
      readable_ = false;
      break;
    }
    ++handled;
    if (!got.ok()) {
      lose(got, now);
      break;
    }
    const Status done = dispatch(packet, now);
    if (!done.ok()) {
      fail(done);
      break;
    }
    handled += receiver_.process(budget, now);
  }
  // What came in together goes to the engines together; collect() acts on what they say.
  if (receiver_.copying()) static_cast<void>(context_.copier.poll());
  return handled;
}

Status Link::malformed(const ipc::Packet& packet) const {
  return {StatusCode::kInvalidArgument,
          "emulated: " + describe(address_.identity) + " sent a malformed packet: type " +
              std::to_string(static_cast<int>(type_of(packet))) + ", " + std::to_string(packet.bytes) +
              " bytes, " + std::to_string(packet.fds.size()) + " fds"};
}

Status Link::dispatch(const ipc::Packet& packet, Time now) {
  const PacketType type = type_of(packet);
  if (packet.truncated || packet.fds_truncated) return malformed(packet);
  if (type != PacketType::kAnnounce && !packet.fds.empty()) return malformed(packet);
  switch (type) {
    case PacketType::kAnnounce: {
      AnnouncePacket body{};
      if (!read_fixed(packet, body)) return malformed(packet);
      const bool named = static_cast<abi::RegionKind>(body.kind) == abi::RegionKind::kIpc;
      if (packet.fds.size() != (named ? 0 : 1)) return malformed(packet);
      const ipc::UniqueFd none;
      return receiver_.on_announce(body, named ? none : packet.fds.front());
    }
    case PacketType::kWithdraw: {
      WithdrawPacket body{};
      if (!read_fixed(packet, body)) return malformed(packet);
      receiver_.on_withdraw(body);
      return {};
    }
    case PacketType::kPuts: {
      PutsPacket body{};
      if (!read_entries(packet, body, offsetof(PutsPacket, puts), body.puts.data())) return malformed(packet);
      receiver_.on_puts(body);
      return {};
    }
    case PacketType::kAcks:
    case PacketType::kHeld: {
      CountsPacket body{};
      if (!read_entries(packet, body, offsetof(CountsPacket, counts), body.counts.data()))
        return malformed(packet);
      const std::span<const CountEntry> counts(body.counts.data(), body.head.count);
      if (type == PacketType::kAcks) return sender_.on_acks(counts, now);
      sender_.on_held(counts, now);
      return {};
    }
    case PacketType::kNack: {
      NackPacket body{};
      if (!read_fixed(packet, body) || body.code == 0) return malformed(packet);
      sender_.on_nack(body.channel,
                      {static_cast<StatusCode>(body.code), std::string(ipc::text_of(body.text))});
      return {};
    }
    default: return malformed(packet);
  }
}

void Link::flush(Time now) {
  if (state_ != State::kUp) return;
  Status sent = receiver_.flush();
  if (sent.ok()) sent = sender_.flush(now);
  if (!sent.ok() && sent.code() != StatusCode::kResourceExhausted) return lose(sent, now);
  if (blocked_ == !sent.ok()) return;
  blocked_ = !sent.ok();
  wakeup_.want_write(socket_.get(), id_, blocked_);
}

void Link::forget(const memory::Region& region, Time now) {
  sender_.forget(region);
  flush(now);
}

std::optional<Time> Link::next_timer(Time now) const {
  if (untold_) return now;
  const Time give_up = unreachable_since_ + context_.options.base.peer_timeout;
  switch (state_) {
    case State::kWaiting: return dials_ && wires_.usable() > 0 ? std::min(next_dial_, give_up) : give_up;
    case State::kDialling: return std::min(answer_due_, give_up);
    case State::kUp:
      if (readable_ || receiver_.busy()) return now;
      return blocked_ ? std::nullopt : sender_.next_deadline();
    default: return std::nullopt;
  }
}

std::optional<Time> Link::next_deadline(Time now) const {
  const std::optional<Time> due = base::sooner(next_timer(now), receiver_.next_arrival());
  return receiver_.copying() ? base::sooner(due, now + kEngineInterval) : due;
}

}  // namespace mkernel::transport::emulated
