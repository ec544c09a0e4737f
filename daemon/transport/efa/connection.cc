#include "daemon/transport/efa/connection.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

namespace mkernel::transport::efa {
namespace {

constexpr std::chrono::milliseconds kLongestPause{1000};

bool first(const Identity& a, const Identity& b) {
  return std::tie(a.node, a.boot_id) < std::tie(b.node, b.boot_id);
}

Status other_life(const std::string& whose, std::uint64_t is, std::uint64_t expected) {
  return {StatusCode::kFailedPrecondition, whose + " has boot id " + std::to_string(is) + ", not " +
                                               std::to_string(expected) + ": the node was restarted"};
}

}  // namespace

Connection::Connection(Context& context, PeerId peer, const Identity& remote, Time now)
    : context_(context),
      peer_(peer),
      remote_(remote),
      dials_(first(context.options.base.identity, remote)),
      next_(dials_ ? now : kNever),
      unreachable_since_(now),
      pause_(context.options.base.reconnect_interval) {}

Status Connection::make_queue() {
  queue_.reset();  // the fence: before anything new is said
  auto made = Queue::make(*context_.device, context_.options.credit, context_.options.service_level,
                          static_cast<std::uint32_t>(context_.random()));
  if (!made.ok()) return made.status();
  queue_ = std::move(*made);
  return {};
}

Hello Connection::hello(MessageType type) const {
  Hello message{{.type = type, .epoch = epoch_}, context_.options.base.identity.boot_id, remote_.boot_id};
  std::memcpy(message.gid, context_.device->gid().raw, sizeof(message.gid));
  message.qpn = queue_->qpn();
  message.qkey = queue_->qkey();
  message.credit = context_.options.credit;
  return message;
}

void Connection::dial(Time now) {
  ++epoch_;
  state_ = State::kGreeting;
  const Status made = make_queue();
  if (!made.ok()) return lose(made, now, false);
  next_ = now + kLongestPause;
  context_.say(peer_, bytes_of(hello(MessageType::kHello)));
}

/// Who speaks is who is meant, and means this node.
Status Connection::greeted(const Hello& message) {
  if (message.from_boot_id != remote_.boot_id) {
    return other_life("node " + remote_.node, message.from_boot_id, remote_.boot_id);
  }
  const Identity& self = context_.options.base.identity;
  if (message.to_boot_id != self.boot_id) {
    return other_life("node " + self.node, self.boot_id, message.to_boot_id);
  }
  return {};
}

Status Connection::on_hello(const Hello& message, Time now) {
  if (dials_) return {StatusCode::kInvalidArgument, "it opens a connection that this end opens"};
  if (message.head.epoch < epoch_) return {};
  if (message.head.epoch > epoch_ || queue_ == nullptr) {
    if (state_ != State::kLost) lose({StatusCode::kUnavailable, "the peer opened it again"}, now, false);
    epoch_ = message.head.epoch;
    state_ = State::kGreeting;
    Status status = make_queue();
    if (status.ok()) status = queue_->meet(message);
    if (!status.ok()) {
      lose(status, now, true);
      return {};
    }
    peer_credit_ = message.credit;
  }
  context_.say(peer_, bytes_of(hello(MessageType::kWelcome)));
  return {};
}

Status Connection::on_welcome(const Hello& message, Time now) {
  if (!dials_ || message.head.epoch != epoch_ || state_ != State::kGreeting) return {};
  const Status met = queue_->meet(message);
  if (!met.ok()) {
    lose(met, now, true);
    return {};
  }
  peer_credit_ = message.credit;
  context_.say(peer_, bytes_of(Message{.type = MessageType::kReady, .epoch = epoch_}));
  greet_by_write(now);
  return {};
}

/// Messages through the daemons say nothing about the devices: only when a write has got through, the way is
/// open.
void Connection::greet_by_write(Time now) {
  state_ = State::kProbing;
  next_ = kNever;
  probe(now);
}

void Connection::probe(Time now) {
  const Request request{.id = kProbeId, .immediate = {.channel = kProbe}};
  const auto posted = queue_->post(std::span(&request, 1));
  if (!posted.ok()) return lose(posted.status(), now, true);
  asking_ = posted.value() == 1;
}

void Connection::ask_again(Time now) {
  if (state_ == State::kUp && !asking_) probe(now);
}

bool Connection::proved() {
  asking_ = false;
  if (state_ != State::kProbing) return false;
  state_ = State::kUp;
  unreachable_since_ = kNever;
  pause_ = context_.options.base.reconnect_interval;
  if (std::exchange(was_up_, true)) context_.sink->path_changed(peer_, queue_->text(), {});
  return true;
}

Status Connection::receive(std::span<const std::byte> bytes, Time now) {
  const auto head = read_as<Message>(bytes);
  switch (head.type) {
    case MessageType::kHello:
    case MessageType::kWelcome: {
      const auto message = read_as<Hello>(bytes);
      MK_RETURN_IF_ERROR(greeted(message));
      return head.type == MessageType::kHello ? on_hello(message, now) : on_welcome(message, now);
    }
    case MessageType::kReady:
      if (!dials_ && head.epoch == epoch_ && state_ == State::kGreeting) greet_by_write(now);
      return {};
    case MessageType::kLost:
      if (head.epoch == epoch_) lose(status_of(read_as<Refusal>(bytes)), now, false);
      return {};
    default: return {};
  }
}

Status Connection::poll(Time now) {
  if (unreachable_since_ != kNever && now - unreachable_since_ >= context_.options.base.peer_timeout) {
    return {StatusCode::kUnavailable, "unreachable for " +
                                          std::to_string(context_.options.base.peer_timeout.count()) +
                                          " ms over " + context_.device->name() + ": " + reason_};
  }
  if (now < next_) return {};
  if (state_ == State::kLost) {
    dial(now);
  } else {
    next_ = now + kLongestPause;
    context_.say(peer_, bytes_of(hello(MessageType::kHello)));
  }
  return {};
}

void Connection::lose(const Status& why, Time now, bool tell) {
  if (state_ == State::kLost) return;
  if (state_ == State::kUp) context_.sink->path_changed(peer_, queue_->text(), why);
  queue_.reset();
  state_ = State::kLost;
  asking_ = false;
  reason_ = why.text();
  if (unreachable_since_ == kNever) unreachable_since_ = now;
  if (tell) {
    const Message head{.type = MessageType::kLost, .epoch = epoch_};
    context_.say(peer_, bytes_of(refusal(head, why)));
  }
  if (!dials_) return;
  next_ = now + pause_;
  pause_ = std::min(2 * pause_, kLongestPause);
}

void Connection::close() {
  queue_.reset();
  state_ = State::kLost;
  next_ = unreachable_since_ = kNever;
}

Time Connection::deadline() const {
  if (unreachable_since_ == kNever) return next_;
  return std::min(next_, unreachable_since_ + context_.options.base.peer_timeout);
}

}  // namespace mkernel::transport::efa
