#include "daemon/transport/efa/connection.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace mkernel::transport::efa {
namespace {

constexpr std::chrono::milliseconds kAskAgain{1000};

bool first(const Identity& a, const Identity& b) {
  return std::tie(a.node, a.boot_id) < std::tie(b.node, b.boot_id);
}

/// Any two EFA devices of a subnet reach each other: where the first of one node and the second of the other
/// have died, the two that are left still are a route.
rdma::Routes::Options routes_of(const Context& context) {
  return {static_cast<std::uint32_t>(context.paths.size()), context.options.base.reconnect_interval,
          [&context](std::uint32_t local) { return context.paths[local]->state().ok(); }, true};
}

}  // namespace

Connection::Connection(Context& context, Domains& domains, PeerId peer, const PeerAddress& remote, Time now)
    : context_(context),
      domains_(domains),
      peer_(peer),
      remote_(remote.identity),
      dials_(first(context.options.base.identity, remote.identity)),
      routes_(routes_of(context)),
      scout_(context, peer, remote.identity.boot_id),
      unreachable_since_(now),
      reason_("it has not answered yet") {
  routes_.know_remote(rdma::paths_in(remote.endpoint));
}

// Opening

Status Connection::make_queue() {
  queue_.reset();  // the fence: before anything new is said
  Device& device = *context_.paths[route_.local];
  const auto pd = domains_.on(device);
  if (!pd.ok()) return pd.status();
  const EfaOptions& options = context_.options;
  auto made =
      Queue::make(device, pd.value(),
                  {peer_, options.credit, options.window, options.service_level, rdma::random_bits()});
  if (!made.ok()) return made.status();
  queue_ = std::move(*made);
  return {};
}

Hello Connection::hello(MessageType type) const {
  const Message head{.type = type, .epoch = epoch_};
  return queue_->hello(head, context_.options.base.identity.boot_id, remote_.boot_id, route_.remote);
}

void Connection::dial(Route route, Time now) {
  ++epoch_;
  route_ = route;
  far_end_.reset();
  state_ = State::kGreeting;
  const Status made = make_queue();
  if (!made.ok()) return lose(made, now);
  next_ = now + kAskAgain;
  context_.say(peer_, hello(MessageType::kHello));
}

/// Who speaks is who is meant, and means this node.
Status Connection::greeted(const Hello& message) {
  const Identity& self = context_.options.base.identity;
  MK_RETURN_IF_ERROR(rdma::check_lives(self, remote_, message.to_boot_id, message.from_boot_id));
  const bool asks = message.head.type == MessageType::kHello || message.head.type == MessageType::kTry;
  if (asks && dials_) return {StatusCode::kInvalidArgument, "it opens a connection that this end opens"};
  if (asks && message.path >= context_.paths.size()) {
    return {StatusCode::kInvalidArgument, "it asks for EFA device " + std::to_string(message.path) + " of " +
                                              std::to_string(context_.paths.size()) + " here"};
  }
  return {};
}

Status Connection::on_hello(const Hello& message, Time now) {
  if (message.head.epoch < epoch_) return {};
  if (message.head.epoch > epoch_ || queue_ == nullptr) {
    if (state_ != State::kLost) drop("the peer opened it again", now);  // it moves: no loss
    epoch_ = message.head.epoch;
    route_ = {message.path, 0};
    far_end_ = message;
    state_ = State::kGreeting;
    next_ = kNever;
    Status status = context_.paths[route_.local]->state();
    if (status.ok()) status = make_queue();
    if (status.ok()) status = queue_->meet(message);
    if (!status.ok()) {
      lose(status, now);
      return {};
    }
    peer_credit_ = message.credit;
    peer_window_ = message.window;
  }
  context_.say(peer_, hello(MessageType::kWelcome));
  return {};
}

void Connection::on_welcome(const Hello& message, Time now) {
  if (!dials_ || message.head.epoch != epoch_ || state_ != State::kGreeting) return;
  far_end_ = message;
  const Status met = queue_->meet(message);
  if (!met.ok()) return lose(met, now);
  peer_credit_ = message.credit;
  peer_window_ = message.window;
  context_.say(peer_, Message{.type = MessageType::kReady, .epoch = epoch_});
  greet_by_write(now);
}

/// Messages through the daemons say nothing about the devices: only when a write has got through, the way is
/// open.
void Connection::greet_by_write(Time now) {
  state_ = State::kProbing;
  next_ = now + context_.patience();
  probe(now);
}

void Connection::probe(Time now) {
  const Request request{.id = kProbeId, .immediate = {.channel = kProbe}};
  const auto posted = queue_->post(std::span(&request, 1));
  if (!posted.ok()) return lose(posted.status(), now);
  asking_ = posted.value() == 1;
}

void Connection::ask_again(Time now) {
  if (state_ == State::kUp && !asking_) probe(now);
}

bool Connection::proved(Time now) {
  asking_ = false;
  if (state_ != State::kProbing) return false;
  state_ = State::kUp;
  up_since_ = now;
  next_ = kNever;
  if (std::exchange(was_up_, true)) context_.sink->path_changed(peer_, text(), {});
  return true;
}

Status Connection::receive(std::span<const std::byte> bytes, Time now) {
  const auto head = read_as<Message>(bytes);
  switch (head.type) {
    case MessageType::kHello:
    case MessageType::kWelcome:
    case MessageType::kTry:
    case MessageType::kTried: {
      const auto message = read_as<Hello>(bytes);
      MK_RETURN_IF_ERROR(greeted(message));
      if (head.type == MessageType::kHello) return on_hello(message, now);
      if (head.type == MessageType::kWelcome) on_welcome(message, now);
      if (head.type == MessageType::kTry) scout_.on_try(message);
      if (head.type == MessageType::kTried) scout_.on_tried(message);
      return {};
    }
    case MessageType::kReady:
      if (!dials_ && head.epoch == epoch_ && state_ == State::kGreeting) greet_by_write(now);
      return {};
    case MessageType::kLost:
      if (head.epoch == epoch_) on_lost(status_of(read_as<Refusal>(bytes)).with_context("it says"), now);
      return {};
    case MessageType::kTryLost: scout_.on_lost(read_as<Refusal>(bytes)); return {};
    case MessageType::kTryOver: scout_.on_over(head); return {};
    default: return {};
  }
}

// Time

Status Connection::poll(Time now) {
  just_lost_ = false;
  const auto timeout = context_.options.base.peer_timeout;
  if (!up() && now - unreachable_since_ >= timeout) {
    return {StatusCode::kUnavailable, "unreachable for " + std::to_string(timeout.count()) + " ms: " + why()};
  }
  if (was_stable(now)) note_that_it_works();
  if (state_ == State::kProbing && now >= next_) {
    lose({StatusCode::kUnavailable,
          "a write of no bytes has not come back: is all traffic allowed in the security group, both ways?"},
         now);
  }
  if (!dials_) return {};
  if (state_ == State::kLost) {
    if (const auto route = routes_.pick(now)) dial(*route, now);
  } else if (state_ == State::kGreeting && now >= next_) {
    next_ = now + kAskAgain;
    context_.say(peer_, hello(MessageType::kHello));
  } else if (state_ == State::kUp) {
    look_for_better(now);
  }
  return {};
}

/// A better route than the one in use: tried with a queue pair that carries nothing, and only when that
/// answers the connection moves there, by fence and replay as after a loss.
void Connection::look_for_better(Time now) {
  if (!scout_.out()) {
    if (const auto better = routes_.better(route_, now)) scout_.send(*better, now);
    return;
  }
  const auto back = scout_.poll(now);
  if (back.ok() && !back.value()) return;
  const Route route = scout_.route();
  scout_.end();
  if (!back.ok()) return routes_.failed(route, now);
  routes_.answers(route, now);
  drop("it moves back to a better route", now);
  dial(route, now);
}

/// A connection that takes an empty write and then breaks over puts, again and again, does not work; one that
/// was up for long did, although nothing may have been sent.
bool Connection::was_stable(Time now) const {
  return unreachable_since_ != kNever && up() && now - up_since_ > context_.patience();
}

void Connection::note_that_it_works() {
  unreachable_since_ = kNever;
  if (dials_) routes_.carries(route_);
}

Time Connection::deadline(Time now) const {
  Time due = next_;
  if (!up()) due = std::min(due, unreachable_since_ + context_.options.base.peer_timeout);
  if (!dials_) return due;
  return std::min({due, routes_.next(now), scout_.deadline()});
}

// Losing

void Connection::lose(const Status& why, Time now) {
  if (state_ == State::kLost) return;
  const Status named = why.with_context(text());
  const Message head{.type = MessageType::kLost, .epoch = epoch_};
  broke(why, named.text(), now);
  context_.say(peer_, refusal(head, named));  // now that nothing lands here any more
}

/// The same, for a reason found at the other end.
void Connection::on_lost(const Status& why, Time now) {
  if (state_ != State::kLost) broke(why, why.text(), now);
}

/// `reason`: what why() says from now on.
void Connection::broke(const Status& why, std::string reason, Time now) {
  if (was_stable(now)) note_that_it_works();
  if (dials_) routes_.failed(route_, now);
  if (up()) context_.sink->path_changed(peer_, text(), why);
  drop(std::move(reason), now);
}

void Connection::drop(std::string reason, Time now) {
  queue_.reset();
  scout_.end();
  state_ = State::kLost;
  just_lost_ = true;
  next_ = kNever;
  asking_ = false;
  reason_ = std::move(reason);
  if (unreachable_since_ == kNever) unreachable_since_ = now;
}

void Connection::device_changed(std::uint32_t local, const Device::News& news, Time now) {
  routes_.look_again(local);
  if (scout_.uses(local)) scout_.end();
  if (news.lost.ok()) return;
  if (route_.local == local) lose(news.lost, now);
  if (context_.paths[local]->state().ok()) routes_.look_again(local);  // nothing of it has failed
}

bool Connection::arm() {
  const bool armed = queue_ == nullptr || queue_->arm();
  return scout_.arm() && armed;
}

bool Connection::idle() const {
  return !just_lost_ && (queue_ == nullptr || queue_->idle()) && scout_.idle();
}

void Connection::close() {
  queue_.reset();
  scout_.close();
  state_ = State::kLost;
}

std::string Connection::text() const {
  std::string far = "device " + std::to_string(route_.remote) + " of the peer";
  if (far_end_) far = text_of(*far_end_);
  const Hello near = queue_ != nullptr ? hello(MessageType::kHello) : context_.paths[route_.local]->hello();
  return text_of(near) + " -> " + far;
}

std::string Connection::why() const {
  std::string text = reason_;
  for (const auto& device : context_.paths) {
    if (!device->state().ok()) text += "; " + device->state().text();
  }
  return text;
}

}  // namespace mkernel::transport::efa
