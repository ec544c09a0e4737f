#include "daemon/transport/verbs/sender.h"

#include <algorithm>
#include <utility>

namespace mkernel::transport::verbs {
namespace {

Status silent() {
  return {StatusCode::kUnavailable, "the peer's daemon has not answered"};
}

/// A channel that broke so many connections in a row, and got no put through in between, has failed: keys of
/// the peer's and what its device knows do not agree, and the other channels of the link would never have
/// peace.
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
  const std::uint32_t links = context.options.qps_per_peer;
  for (std::uint32_t slot = 0; slot < links; ++slot) {
    connections_.push_back({std::make_unique<SendLink>(context, peer, slot), now, {}, silent()});
  }
  probe_ = {std::make_unique<SendLink>(context, peer, links), std::nullopt, {}, {}};
}

void Sender::close() {
  for (Connection& connection : connections_) connection.link->lose();
  probe_.link->lose();
}

// Channels

Status Sender::add(ChannelId channel, ChannelKey key) {
  SendLink& link = link_of(key);
  auto& entry = channels_[key];
  if (entry != nullptr) {
    return {StatusCode::kAlreadyExists, "outbound channel key " + std::to_string(key) + " is open already"};
  }
  entry = std::make_unique<Outbound>(channel, key, link, context_.options.window, load_);
  link.add(*entry);
  if (link.up()) link.attach(*entry);
  return {};
}

Outbound* Sender::find(ChannelKey key) {
  const auto found = channels_.find(key);
  return found == channels_.end() ? nullptr : found->second.get();
}

void Sender::remove(Outbound& channel) {
  SendLink& link = channel.link;
  const bool in_flight = channel.in_flight();
  if (!link.closed()) {
    const ChannelMessage gone{link.head(MessageType::kDetach), channel.key};
    context_.say(peer_, bytes_of(gone));
  }
  link.remove(channel);
  if (in_flight) link.lose();  // poll() opens it again
  channels_.erase(channel.key);
}

void Sender::quiesce(Outbound& channel) {
  channel.closing = true;
}

bool Sender::holds(const memory::Region& region) const {
  for (const auto& [key, channel] : channels_) {
    const SendWindow& window = channel->window;
    for (std::uint64_t n = window.acknowledged() + 1; n <= window.submitted(); ++n) {
      if (window.at(n).source == &region) return true;
    }
  }
  return false;
}

// Links

void Sender::open(Connection& connection, Route route, Time now) {
  if (!is_probe(connection) && !connection.broken_since) {
    connection.broken_since = now;
    connection.last = silent();
  }
  const Status status = connection.link->open(route, context_.options.base.identity.boot_id, remote_.boot_id);
  if (!status.ok()) broke(connection, status, now);
}

/// The link is closed; open_what_is_due() opens it again, on this route only after a while.
void Sender::broke(Connection& connection, const Status& why, Time now) {
  if (was_stable(connection, now)) note_that_it_works(connection);
  routes_.failed(connection.link->route(), now);
  const std::string path = connection.link->text();
  connection.link->lose();
  if (is_probe(connection)) return;
  if (std::exchange(whole_, false)) context_.sink->path_changed(peer_, path, why);
  connection.last = why;
  if (!connection.broken_since) connection.broken_since = now;
}

/// The peer has taken memory back that a put was on its way to, as it does at once when a rank dies or a
/// region reaches its limit. The other end has answered, so the route is not to blame: the link is opened
/// again on it, and the other channels of the link go on behind what they hold.
void Sender::write_refused(Connection& connection, Outbound* culprit, const Status& why, Time now) {
  if (is_probe(connection)) return broke(connection, why, now);
  if (culprit != nullptr && ++culprit->refused >= kMaxRefused) {
    const std::string times = std::to_string(kMaxRefused) + " times in a row";
    fail_channel(context_, *culprit,
                 Status(StatusCode::kPermissionDenied, why.text())
                     .with_context("node " + remote_.node + " refused its writes " + times));
  }
  if (!connection.broken_since) connection.broken_since = now;
  connection.last = why;
  open(connection, connection.link->route(), now);
}

void Sender::came_up(Connection& connection, Time now) {
  if (is_probe(connection)) return probed(now);
  connection.up_since = now;
  for (const Outbound* channel : connection.link->channels()) connection.link->attach(*channel);
  const bool all_up = std::all_of(connections_.begin(), connections_.end(),
                                  [](const Connection& each) { return each.link->up(); });
  if (!all_up || std::exchange(whole_, true)) return;
  if (std::exchange(connected_, true)) {
    context_.sink->path_changed(peer_, connection.link->text(), {});
  } else {
    context_.sink->peer_connected(peer_);
  }
}

/// A better route works again: the links move to it.
void Sender::probed(Time now) {
  const Route route = probe_.link->route();
  context_.say(peer_, bytes_of(probe_.link->head(MessageType::kClose)));
  probe_.link->lose();
  routes_.answers(route, now);
  for (Connection& connection : connections_) {
    if (connection.link->closed() || connection.link->route() == route) continue;
    whole_ = false;
    open(connection, route, now);
  }
}

std::size_t Sender::open_what_is_due(Time now) {
  std::size_t opened = 0;
  for (Connection& connection : connections_) {
    if (!connection.link->closed()) continue;
    if (const auto route = routes_.pick(now)) {
      open(connection, *route, now);
      ++opened;
    }
  }
  if (!probe_.link->closed()) return opened;
  for (const Connection& connection : connections_) {
    const auto better = connection.link->up() ? routes_.better(connection.link->route(), now) : std::nullopt;
    if (!better) continue;
    open(probe_, *better, now);
    return opened + 1;
  }
  return opened;
}

void Sender::path_changed(const Path& path, Time now) {
  for (std::uint32_t i = 0; i < context_.paths.size(); ++i) {
    if (context_.paths[i].get() == &path) routes_.look_again(i);
  }
  const Status why =
      path.state().ok() ? Status(StatusCode::kUnavailable, path.text() + " has changed") : path.state();
  const auto check = [&](Connection& connection) {
    if (connection.link->path() == &path) broke(connection, why, now);
  };
  for (Connection& connection : connections_) check(connection);
  check(probe_);
  if (!path.state().ok()) return;
  for (std::uint32_t i = 0; i < context_.paths.size(); ++i) {
    if (context_.paths[i].get() == &path) routes_.look_again(i);  // nothing of it has failed
  }
}

void Sender::queue_broken(std::uint32_t qpn, const Status& why, Time now) {
  for (Connection& connection : connections_) {
    if (connection.link->has_qpn(qpn)) broke(connection, why, now);
  }
  if (probe_.link->has_qpn(qpn)) broke(probe_, why, now);
}

/// A connection that takes an empty write and then breaks over puts, again and again, does not work; one that
/// was up for long did, although nothing may have been sent.
bool Sender::was_stable(const Connection& connection, Time now) const {
  return connection.broken_since && connection.link->up() &&
         now - connection.up_since > 2 * detection_time(context_.options);
}

void Sender::note_that_it_works(Connection& connection) {
  if (!connection.broken_since) return;
  connection.broken_since.reset();
  routes_.carries(connection.link->route());
}

Status Sender::lost(Time now) const {
  for (const Connection& connection : connections_) {
    if (!connection.broken_since || connection.link->up()) continue;
    if (now - *connection.broken_since < context_.options.base.peer_timeout) continue;
    const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(now - *connection.broken_since);
    std::string here;
    for (const auto& path : context_.paths) {
      if (!path->state().ok()) here += "; " + path->state().text();
    }
    return {StatusCode::kUnavailable, "no path has worked for " + std::to_string(waited.count()) +
                                          " ms; last tried " + connection.link->text() + "; " +
                                          connection.last.text() + here};
  }
  return {};
}

// Time

std::size_t Sender::poll(Connection& connection, Time now) {
  if (was_stable(connection, now)) note_that_it_works(connection);
  const SendLink::Progress progress = connection.link->poll();
  if (!progress.status.ok()) {
    if (progress.refused) {
      write_refused(connection, progress.culprit, progress.status, now);
    } else {
      broke(connection, progress.status, now);
    }
    return progress.events + 1;
  }
  if (progress.delivered) note_that_it_works(connection);
  if (progress.proved) came_up(connection, now);
  return progress.events;
}

void Sender::registered() {
  for (Connection& connection : connections_) connection.link->try_again();
}

void Sender::flow(Time now) {
  for (Connection& connection : connections_) {
    if (const Status status = connection.link->flow(); !status.ok()) broke(connection, status, now);
  }
}

std::size_t Sender::poll(Time now, Status& why) {
  std::size_t events = 0;
  for (Connection& connection : connections_) events += poll(connection, now);
  if (!probe_.link->closed()) events += poll(probe_, now);
  events += open_what_is_due(now);
  flow(now);
  why = lost(now);
  return events;
}

bool Sender::arm() {
  bool quiet = probe_.link->arm();
  for (Connection& connection : connections_) quiet = connection.link->arm() && quiet;
  return quiet;
}

Time Sender::deadline(Time now) const {
  Time next = routes_.next(now);
  for (const Connection& connection : connections_) {
    if (connection.broken_since && !connection.link->up())
      next = std::min(next, *connection.broken_since + context_.options.base.peer_timeout);
  }
  return next;
}

// Messages of the receiver

Sender::Connection* Sender::connection_of(const Message& head) {
  Connection* const connection = head.slot < connections_.size() ? &connections_[head.slot] : &probe_;
  return connection->link->is(head) && !connection->link->closed()
             ? connection
             : nullptr;  // else of a connection that is over
}

Status Sender::receive(std::span<const std::byte> bytes, Time now) {
  const auto head = read_as<Message>(bytes);
  Connection* const connection = connection_of(head);
  if (connection == nullptr) return {};
  SendLink& link = *connection->link;
  switch (head.type) {
    case MessageType::kOpened: return on_opened(*connection, read_as<Opened>(bytes), now);
    case MessageType::kNotOpened:
    case MessageType::kBroken: {
      const auto refused = read_as<Refusal>(bytes);
      if (refused.final != 0) return status_of(refused);
      broke(*connection, status_of(refused).with_context(link.text()), now);
      return {};
    }
    case MessageType::kAttached: return on_attached(link, read_as<Attached>(bytes));
    case MessageType::kResolved: return on_resolved(link, bytes);
    case MessageType::kRevoke: on_revoke(link, read_as<RegionMessage>(bytes)); return {};
    case MessageType::kStop: on_stop(link, read_as<ChannelMessage>(bytes)); return {};
    case MessageType::kWriteRefused: on_write_refused(*connection, read_as<Refusal>(bytes), now); return {};
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

Status Sender::on_opened(Connection& connection, const Opened& opened, Time now) {
  if (connection.link->answered()) return {StatusCode::kInvalidArgument, "it answered an Open twice"};
  if (const Status status = connection.link->opened(opened); !status.ok()) broke(connection, status, now);
  return {};
}

Status Sender::on_attached(SendLink& link, const Attached& attached) {
  Outbound* const channel = find(attached.key);
  if (channel == nullptr || &channel->link != &link || channel->failed) return {};
  if (channel->attached || !link.up()) return {StatusCode::kInvalidArgument, "it attached a channel twice"};
  const std::uint64_t before = channel->window.acknowledged();
  if (!channel->window.resume(attached.held)) {
    fail_channel(
        context_, *channel,
        {StatusCode::kDataLoss, "node " + remote_.node + " says it holds " + std::to_string(attached.held) +
                                    " puts, " + std::to_string(before) + " were acknowledged"});
    return {};
  }
  if (attached.held > before) context_.sink->completed(channel->id, attached.held);
  channel->attached = true;
  channel->word = attached.word;
  channel->word_rkey = attached.rkey;
  link.offer(*channel);
  return {};
}

Status Sender::on_resolved(SendLink& link, std::span<const std::byte> bytes) {
  const auto resolved = read_as<Resolved>(bytes);
  Outbound* const channel = find(resolved.key);
  if (channel == nullptr || &channel->link != &link || !channel->attached) return {};
  if (resolved.region >= channel->regions.size() ||
      channel->regions[resolved.region].state != RemoteRegion::State::kAsked) {
    return {StatusCode::kInvalidArgument, "it resolved a region that nobody asked for"};
  }
  channel->regions[resolved.region] = {RemoteRegion::State::kKnown, resolved.grant, resolved.bytes,
                                       resolved.chunk_bytes, chunks_of(bytes)};
  channel->waiting = false;
  link.offer(*channel);
  return {};
}

void Sender::on_revoke(SendLink& link, const RegionMessage& revoke) {
  Outbound* const channel = find(revoke.key);
  const bool knows = channel != nullptr && &channel->link == &link && revoke.region < channel->regions.size();
  RemoteRegion* const region = knows ? &channel->regions[revoke.region] : nullptr;
  if (region == nullptr || region->state != RemoteRegion::State::kKnown || region->grant != revoke.grant) {
    // The channel was closed or stopped here, after its last put over this connection: nothing is under way.
    const RegionMessage gone{link.head(MessageType::kRevoked), revoke.key, revoke.region, revoke.grant};
    return context_.say(peer_, bytes_of(gone));
  }
  *region = {};
  channel->revocations.push_back({revoke.region, revoke.grant, channel->window.sent()});
  link.answer_revocations(*channel);
}

void Sender::on_stop(SendLink& link, const ChannelMessage& stop) {
  Outbound* const channel = find(stop.key);
  if (channel != nullptr && &channel->link == &link && channel->attached) {
    channel->stopped = true;
    return link.answer_stop(*channel);
  }
  const ChannelMessage over{link.head(MessageType::kStopped), stop.key};
  context_.say(peer_, bytes_of(over));
}

/// The completion that says whose write it was has come before this message, as a rule.
void Sender::on_write_refused(Connection& connection, const Refusal& refusal, Time now) {
  poll(connection, now);
  if (!connection.link->is(refusal.head) || connection.link->closed()) return;  // it did
  write_refused(connection, nullptr, status_of(refusal).with_context(connection.link->text()), now);
}

}  // namespace mkernel::transport::verbs
