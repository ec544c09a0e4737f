#include "daemon/transport/verbs/sender.h"

#include <algorithm>
#include <utility>

namespace mkernel::transport::verbs {
namespace {

Status silent() {
  return {StatusCode::kUnavailable, "the peer's daemon has not answered"};
}

/// A channel that broke so many connections in a row, and got no put through in between, has failed: keys of
/// the peer's and what its device knows do not agree, and the other channels of the connection would never
/// have peace.
constexpr std::uint32_t kMaxRefused = 3;

/// Until the device gives up on a path that carries nothing: 4.096 us x 2^timeout for each attempt.
std::chrono::microseconds detection_time(const VerbsOptions& options) {
  const std::uint64_t attempt = (std::uint64_t{4096} << options.timeout) / 1000;
  return std::chrono::microseconds(attempt * (options.retry_count + 1U));
}

}  // namespace

Sender::Sender(Context& context, PeerId peer, const PeerAddress& remote, Time now)
    : context_(context),
      peer_(peer),
      remote_(remote.identity),
      routes_({static_cast<std::uint32_t>(context.paths.size()), context.options.base.reconnect_interval,
               [&context](std::uint32_t local) { return context.paths[local]->state().ok(); }}) {
  routes_.know_remote(rdma::paths_in(remote.endpoint));
  const std::uint32_t count = context.options.qps_per_peer;
  for (std::uint32_t i = 0; i < count; ++i) {
    slots_.push_back({std::make_unique<Connection>(context, peer, i), now, {}, silent()});
  }
  probe_ = {std::make_unique<Connection>(context, peer, count), std::nullopt, {}, {}};
}

void Sender::close() {
  for (Slot& slot : slots_) slot.connection->lose();
  probe_.connection->lose();
}

// Channels

Result<Outbound*> Sender::add(ChannelId channel, ChannelKey key) {
  Connection& connection = connection_of(key);
  auto& entry = channels_[key];
  if (entry != nullptr) {
    return Status(StatusCode::kAlreadyExists,
                  "outbound channel key " + std::to_string(key) + " is open already");
  }
  entry = std::make_unique<Outbound>(channel, key, connection, context_.options.window, load_);
  connection.add(*entry);
  if (connection.up()) connection.attach(*entry);
  return entry.get();
}

void Sender::remove(Outbound& channel) {
  Connection& connection = channel.connection;
  const bool in_flight = channel.in_flight();
  if (!connection.closed()) {
    context_.say(peer_, ChannelMessage{connection.head(MessageType::kDetach), channel.key});
  }
  connection.remove(channel);
  if (in_flight) {
    connection.lose();
    just_lost_ = true;  // poll() opens it again
  }
  channels_.erase(channel.key);
}

void Sender::quiesce(Outbound& channel) {
  channel.closing = true;
}

bool Sender::holds(const memory::Region& region) const {
  return std::any_of(channels_.begin(), channels_.end(),
                     [&](const auto& entry) { return entry.second->window.reads(region); });
}

// Connections

void Sender::open(Slot& slot, Route route, Time now) {
  if (!is_probe(slot) && !slot.broken_since) {
    slot.broken_since = now;
    slot.last = silent();
  }
  const Status status = slot.connection->open(route, context_.options.base.identity.boot_id, remote_.boot_id);
  if (!status.ok()) broke(slot, status, now);
}

/// The connection is closed; open_what_is_due() opens it again, on this route only after a while.
void Sender::broke(Slot& slot, const Status& why, Time now) {
  if (was_stable(slot, now)) note_that_it_works(slot);
  routes_.failed(slot.connection->route(), now);
  const std::string path = slot.connection->text();
  slot.connection->lose();
  if (is_probe(slot)) return;
  if (std::exchange(whole_, false)) context_.sink->path_changed(peer_, path, why);
  slot.last = why;
  if (!slot.broken_since) slot.broken_since = now;
}

/// The peer has taken memory back that a put was on its way to, as it does at once when a rank dies or a
/// region reaches its limit. The other end has answered, so the route is not to blame: the connection is
/// opened again on it, and the other channels of the connection go on behind what they hold.
void Sender::write_refused(Slot& slot, Outbound* culprit, const Status& why, Time now) {
  if (is_probe(slot)) return broke(slot, why, now);
  if (culprit != nullptr && ++culprit->refused >= kMaxRefused) {
    const std::string times = std::to_string(kMaxRefused) + " times in a row";
    fail_channel(context_, *culprit,
                 Status(StatusCode::kPermissionDenied, why.text())
                     .with_context("node " + remote_.node + " refused its writes " + times));
  }
  if (!slot.broken_since) slot.broken_since = now;
  slot.last = why;
  open(slot, slot.connection->route(), now);
}

void Sender::came_up(Slot& slot, Time now) {
  if (is_probe(slot)) return probed(now);
  slot.up_since = now;
  for (const Outbound* channel : slot.connection->channels()) slot.connection->attach(*channel);
  const bool all_up =
      std::all_of(slots_.begin(), slots_.end(), [](const Slot& each) { return each.connection->up(); });
  if (!all_up || std::exchange(whole_, true)) return;
  if (std::exchange(connected_, true)) {
    context_.sink->path_changed(peer_, slot.connection->text(), {});
  } else {
    context_.sink->peer_connected(peer_);
  }
}

/// A better route works again: the connections move to it.
void Sender::probed(Time now) {
  const Route route = probe_.connection->route();
  context_.say(peer_, probe_.connection->head(MessageType::kClose));
  probe_.connection->lose();
  routes_.answers(route, now);
  for (Slot& slot : slots_) {
    if (slot.connection->closed() || slot.connection->route() == route) continue;
    whole_ = false;
    open(slot, route, now);
  }
}

std::size_t Sender::open_what_is_due(Time now) {
  std::size_t opened = 0;
  for (Slot& slot : slots_) {
    if (!slot.connection->closed()) continue;
    if (const auto route = routes_.pick(now)) {
      open(slot, *route, now);
      ++opened;
    }
  }
  if (!probe_.connection->closed()) return opened;
  for (const Slot& slot : slots_) {
    const auto better = slot.connection->up() ? routes_.better(slot.connection->route(), now) : std::nullopt;
    if (!better) continue;
    open(probe_, *better, now);
    return opened + 1;
  }
  return opened;
}

void Sender::path_changed(std::uint32_t local, Time now) {
  const Path& path = *context_.paths[local];
  routes_.look_again(local);
  const Status why =
      path.state().ok() ? Status(StatusCode::kUnavailable, path.text() + " has changed") : path.state();
  const auto check = [&](Slot& slot) {
    if (slot.connection->path() == &path) broke(slot, why, now);
  };
  for (Slot& slot : slots_) check(slot);
  check(probe_);
  if (path.state().ok()) routes_.look_again(local);  // nothing of it has failed
}

void Sender::queue_broken(std::uint32_t qpn, const Status& why, Time now) {
  for (Slot& slot : slots_) {
    if (slot.connection->has_qpn(qpn)) broke(slot, why, now);
  }
  if (probe_.connection->has_qpn(qpn)) broke(probe_, why, now);
}

/// A connection that takes an empty write and then breaks over puts, again and again, does not work; one that
/// was up for long did, although nothing may have been sent.
bool Sender::was_stable(const Slot& slot, Time now) const {
  return slot.broken_since && slot.connection->up() &&
         now - slot.up_since > 2 * detection_time(context_.options);
}

void Sender::note_that_it_works(Slot& slot) {
  if (!slot.broken_since) return;
  slot.broken_since.reset();
  routes_.carries(slot.connection->route());
}

Status Sender::lost(Time now) const {
  for (const Slot& slot : slots_) {
    if (!slot.broken_since || slot.connection->up()) continue;
    if (now - *slot.broken_since < context_.options.base.peer_timeout) continue;
    const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(now - *slot.broken_since);
    std::string here;
    for (const auto& path : context_.paths) {
      if (!path->state().ok()) here += "; " + path->state().text();
    }
    return {StatusCode::kUnavailable, "no path has worked for " + std::to_string(waited.count()) +
                                          " ms; last tried " + slot.connection->text() + "; " +
                                          slot.last.text() + here};
  }
  return {};
}

// Time

std::size_t Sender::poll(Slot& slot, Time now) {
  if (was_stable(slot, now)) note_that_it_works(slot);
  const Connection::Progress progress = slot.connection->poll();
  if (!progress.status.ok()) {
    if (progress.refused) {
      write_refused(slot, progress.culprit, progress.status, now);
    } else {
      broke(slot, progress.status, now);
    }
    return progress.events + 1;
  }
  if (progress.delivered) note_that_it_works(slot);
  if (progress.proved) came_up(slot, now);
  return progress.events;
}

void Sender::registered() {
  for (Slot& slot : slots_) slot.connection->try_again();
}

void Sender::flow(Time now) {
  for (Slot& slot : slots_) {
    if (const Status status = slot.connection->flow(); !status.ok()) broke(slot, status, now);
  }
}

std::size_t Sender::poll(Time now, Status& why) {
  just_lost_ = false;
  std::size_t events = 0;
  for (Slot& slot : slots_) events += poll(slot, now);
  if (!probe_.connection->closed()) events += poll(probe_, now);
  events += open_what_is_due(now);
  flow(now);
  why = lost(now);
  return events;
}

bool Sender::arm() {
  bool quiet = probe_.connection->arm();
  for (Slot& slot : slots_) quiet = slot.connection->arm() && quiet;
  return quiet;
}

bool Sender::idle() const {
  return !just_lost_ && probe_.connection->idle() &&
         std::all_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.connection->idle(); });
}

Time Sender::deadline(Time now) const {
  Time next = routes_.next(now);
  for (const Slot& slot : slots_) {
    if (slot.broken_since && !slot.connection->up())
      next = std::min(next, *slot.broken_since + context_.options.base.peer_timeout);
  }
  return next;
}

// Messages of the receiver

Sender::Slot* Sender::slot_of(const Message& head) {
  Slot* const slot = head.slot < slots_.size() ? &slots_[head.slot] : &probe_;
  return slot->connection->is(head) && !slot->connection->closed()
             ? slot
             : nullptr;  // else of a connection that is over
}

Status Sender::receive(std::span<const std::byte> bytes, Time now) {
  const auto head = read_as<Message>(bytes);
  Slot* const slot = slot_of(head);
  if (slot == nullptr) return {};
  Connection& connection = *slot->connection;
  switch (head.type) {
    case MessageType::kOpened: return on_opened(*slot, read_as<Opened>(bytes), now);
    case MessageType::kNotOpened:
    case MessageType::kBroken: {
      const auto refused = read_as<Refusal>(bytes);
      if (refused.final != 0) return status_of(refused);
      broke(*slot, status_of(refused).with_context(connection.text()), now);
      return {};
    }
    case MessageType::kHeld: return on_held(connection, read_as<Held>(bytes));
    case MessageType::kResolved: return on_resolved(connection, bytes);
    case MessageType::kRevoke: on_revoke(connection, read_as<RegionMessage>(bytes)); return {};
    case MessageType::kStop: on_stop(connection, read_as<ChannelMessage>(bytes)); return {};
    case MessageType::kWriteRefused: on_write_refused(*slot, read_as<Refusal>(bytes), now); return {};
    case MessageType::kRefused: {
      const auto refused = read_as<Refusal>(bytes);
      Outbound* const channel = find(refused.key);
      if (channel != nullptr) {
        fail_channel(context_, *channel, status_of(refused).with_context("node " + remote_.node));
      }
      return {};
    }
    default: return {StatusCode::kInternal, "not a receiver's message"};
  }
}

Status Sender::on_opened(Slot& slot, const Opened& opened, Time now) {
  if (slot.connection->answered()) return {StatusCode::kInvalidArgument, "it answered an Open twice"};
  if (const Status status = slot.connection->opened(opened); !status.ok()) broke(slot, status, now);
  return {};
}

Status Sender::on_held(Connection& connection, const Held& held) {
  Outbound* const channel = find(held.key);
  if (channel == nullptr || &channel->connection != &connection || channel->failed) return {};
  if (channel->attached || !connection.up())
    return {StatusCode::kInvalidArgument, "it attached a channel twice"};
  const std::uint64_t before = channel->window.acknowledged();
  if (!channel->window.resume(held.count)) {
    fail_channel(
        context_, *channel,
        {StatusCode::kDataLoss, "node " + remote_.node + " says it holds " + std::to_string(held.count) +
                                    " puts, " + std::to_string(before) + " were acknowledged"});
    return {};
  }
  if (held.count > before) context_.sink->completed(channel->id, held.count);
  channel->attached = true;
  channel->word = held.word;
  channel->word_rkey = held.rkey;
  connection.offer(*channel);
  return {};
}

Status Sender::on_resolved(Connection& connection, std::span<const std::byte> bytes) {
  const auto resolved = read_as<Resolved>(bytes);
  Outbound* const channel = find(resolved.key);
  if (channel == nullptr || &channel->connection != &connection || !channel->attached) return {};
  if (resolved.region >= channel->regions.size() ||
      channel->regions[resolved.region].state != RemoteRegion::State::kAsked) {
    return {StatusCode::kInvalidArgument, "it resolved a region that nobody asked for"};
  }
  channel->regions[resolved.region] = {RemoteRegion::State::kKnown, resolved.grant, resolved.bytes,
                                       resolved.chunk_bytes, rdma::chunks_of(bytes)};
  channel->waiting = false;
  connection.offer(*channel);
  return {};
}

void Sender::on_revoke(Connection& connection, const RegionMessage& revoke) {
  Outbound* const channel = find(revoke.key);
  const bool knows =
      channel != nullptr && &channel->connection == &connection && revoke.region < channel->regions.size();
  RemoteRegion* const region = knows ? &channel->regions[revoke.region] : nullptr;
  if (region == nullptr || region->state != RemoteRegion::State::kKnown || region->grant != revoke.grant) {
    // The channel was closed or stopped here, after its last put over this connection: nothing is under way.
    return context_.say(peer_, RegionMessage{connection.head(MessageType::kRevoked), revoke.key,
                                             revoke.region, revoke.grant});
  }
  *region = {};
  channel->revocations.push_back({revoke.region, revoke.grant, channel->window.sent()});
  connection.answer_revocations(*channel);
}

void Sender::on_stop(Connection& connection, const ChannelMessage& stop) {
  Outbound* const channel = find(stop.key);
  if (channel != nullptr && &channel->connection == &connection && channel->attached) {
    channel->stopped = true;
    return connection.answer_stop(*channel);
  }
  context_.say(peer_, ChannelMessage{connection.head(MessageType::kStopped), stop.key});
}

/// The completion that says whose write it was has come before this message, as a rule.
void Sender::on_write_refused(Slot& slot, const Refusal& refusal, Time now) {
  poll(slot, now);
  if (!slot.connection->is(refusal.head) || slot.connection->closed()) return;  // it did
  write_refused(slot, nullptr, status_of(refusal).with_context(slot.connection->text()), now);
}

}  // namespace mkernel::transport::verbs
