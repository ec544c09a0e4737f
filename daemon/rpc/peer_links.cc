// Addresses, time and death. What comes on the streams is in peer_links_streams.cc.
#include "daemon/rpc/peer_links.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

namespace mkernel::rpc {
namespace {

/// gRPC needs some time to connect on a busy machine, however small the scale.
constexpr std::chrono::milliseconds kShortestDial{2000};

}  // namespace

std::int64_t wall_time() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

Result<std::unique_ptr<PeerLinks>> PeerLinks::start(boost::asio::io_context& io, PeerLinksOptions options,
                                                    PeerEvents& events) {
  std::unique_ptr<PeerLinks> links(new PeerLinks(io, std::move(options), events));
  auto wire = make_grpc_wire(io, links->options_.tls, std::max(links->times_.error, kShortestDial));
  if (!wire.ok()) return wire.status();
  links->wire_ = std::move(wire).value();
  auto listening = links->wire_->listen(
      links->options_.listen,
      [self = links.get()](std::shared_ptr<PeerStream> s) { self->accept(std::move(s)); });
  if (!listening.ok()) return listening.status();
  links->address_ = links->options_.advertise.empty() ? listening.value() : links->options_.advertise;
  links->set_static_peers(links->options_.peers);
  boost::asio::post(io, [self = links.get(), alive = std::weak_ptr(links->life_)] {
    if (alive.expired()) return;
    self->last_tick_ = Clock::now();
    self->resolve();
    self->tick();
  });
  return links;
}

PeerLinks::PeerLinks(boost::asio::io_context& io, PeerLinksOptions options, PeerEvents& events)
    : io_(io),
      options_(std::move(options)),
      times_(options_.time_scale),
      events_(events),
      timer_(io),
      dns_timer_(io),
      resolver_(io) {}

PeerLinks::~PeerLinks() {
  const Status stopping(StatusCode::kUnavailable, "mkerneld on node " + options_.node + " is stopping");
  v1::PeerMessage goodbye;
  goodbye.mutable_goodbye()->set_reason(stopping.text());
  for (const auto& [boot_id, peer] : peers_) {
    if (peer->out == nullptr) continue;
    peer->out->stream->send(goodbye);
    peer->out->stream->finish(stopping);
  }
  for (const auto& [address, target] : targets_) {
    if (target->stream) target->stream->finish(stopping);
  }
  for (const InboundPtr& inbound : inbounds_) inbound->stream->close(stopping);
  wire_.reset();
}

// ---- PeerBus

void PeerLinks::send(transport::PeerId id, v1::PeerMessage message) {
  Peer* peer = find_id(id);
  if (peer == nullptr || !peer->up) return;
  if (!peer->record.enqueue(std::move(message))) {
    return drop(id, {StatusCode::kResourceExhausted, std::to_string(peer->record.unacknowledged().size()) +
                                                         " messages are not acknowledged"});
  }
  if (peer->out) peer->out->stream->send(peer->record.unacknowledged().back());
  judge_congestion(*peer, peer->record.unacknowledged().size());
}

void PeerLinks::drop(transport::PeerId id, const Status& why) {
  boost::asio::post(io_, [this, alive = std::weak_ptr(life_), id, why] {
    if (alive.expired()) return;
    if (const Peer* peer = find_id(id)) die(peer->record.boot_id(), why);
  });
}

void PeerLinks::judge_congestion(Peer& peer, std::size_t unacknowledged) {
  const bool congested = unacknowledged > (peer.congested ? kCongestedBelow : kCongestedAbove);
  if (congested == std::exchange(peer.congested, congested)) return;
  if (congested) {
    ++congested_peers_;
    return;
  }
  if (--congested_peers_ != 0) return;
  boost::asio::post(io_, [this, alive = std::weak_ptr(life_)] {
    if (!alive.expired() && !this->congested()) events_.congestion_cleared();
  });
}

std::vector<std::string> PeerLinks::unreachable() const {
  std::vector<std::string> list;
  for (const auto& [address, target] : targets_) {
    if (!target->configured || target->self) continue;
    const Peer* peer = find(target->boot_id);
    if (peer != nullptr && peer->up) continue;
    list.push_back(address + (target->reason.empty() ? "" : " (" + target->reason + ")"));
  }
  return list;
}

// ---- addresses

void PeerLinks::set_static_peers(const std::vector<std::string>& peers) {
  static_ = {peers.begin(), peers.end()};
  update_targets();
}

void PeerLinks::update_targets() {
  for (const auto* addresses : {&static_, &resolved_}) {
    for (const std::string& address : *addresses) add_target(address, true);
  }
  std::erase_if(targets_, [this](const auto& entry) {
    Target& target = *entry.second;
    if (static_.count(entry.first) != 0 || resolved_.count(entry.first) != 0) return false;
    if (!target.configured) return false;  // it came by itself; watch() forgets it
    target.configured = false;
    return find(target.boot_id) == nullptr;
  });
}

PeerLinks::TargetPtr PeerLinks::add_target(const std::string& address, bool configured) {
  TargetPtr& target = targets_[address];
  if (target == nullptr) {
    target = std::make_shared<Target>();
    target->address = address;
    // One that dialled us may be a configured one under another name: let that answer first.
    if (!configured) target->next_dial = Clock::now() + times_.keepalive / 2;
  }
  target->configured = target->configured || configured;
  return target;
}

void PeerLinks::resolve() {
  const auto colon = options_.dns.rfind(':');
  if (colon == std::string::npos) return;
  resolver_.async_resolve(
      options_.dns.substr(0, colon), options_.dns.substr(colon + 1),
      [this, alive = std::weak_ptr(life_)](const boost::system::error_code& error, const auto& found) {
        if (alive.expired()) return;
        if (error) {
          spdlog::warn("peers.dns {}: {}; the peers known so far stay", options_.dns, error.message());
        } else {
          resolved_.clear();
          for (const auto& entry : found) {
            const auto address = entry.endpoint().address();
            const std::string host = address.is_v6() ? "[" + address.to_string() + "]" : address.to_string();
            resolved_.insert(host + ":" + std::to_string(entry.endpoint().port()));
          }
          update_targets();
        }
        dns_timer_.expires_after(options_.dns_refresh);
        dns_timer_.async_wait([this, alive](const boost::system::error_code& cancelled) {
          if (!cancelled && !alive.expired()) resolve();
        });
      });
}

// ---- time

void PeerLinks::tick() {
  const auto now = Clock::now();
  // Where this process itself was stopped or starved, nobody else was silent.
  const auto pause = now - last_tick_ - times_.keepalive;
  last_tick_ = now;
  if (pause > times_.keepalive) {
    for (const auto& [boot_id, peer] : peers_) peer->record.forgive(pause);
    for (const auto& [address, target] : targets_) {
      if (target->refused_since) *target->refused_since += pause;
    }
  }
  watch(now);
  dial_targets(now);
  for (const auto& [boot_id, peer] : peers_) say_alive(*peer);

  timer_.expires_after(times_.keepalive);
  timer_.async_wait([this, alive = std::weak_ptr(life_)](const boost::system::error_code& error) {
    if (!error && !alive.expired()) tick();
  });
}

void PeerLinks::watch(Clock::time_point now) {
  std::vector<std::pair<std::uint64_t, Status>> dead;
  for (const auto& [boot_id, peer] : peers_) {
    const Silence silence = peer->record.silence(now, times_);
    const auto seconds = peer->record.silent_for(now).count();
    if (silence == Silence::kDead) {
      dead.emplace_back(boot_id,
                        Status(StatusCode::kUnavailable, peer->record.describe() + " has been silent for " +
                                                             std::to_string(seconds) + " s"));
    } else if (const Target* target = refused_for_long(*peer, now)) {
      dead.emplace_back(
          boot_id, Status(StatusCode::kUnavailable, peer->record.describe() + " is gone, nobody answers at " +
                                                        target->address + ": " + target->reason));
    } else if (silence != peer->told) {
      peer->told = silence;
      const auto level = silence == Silence::kAlive  ? spdlog::level::info
                         : silence == Silence::kWarn ? spdlog::level::warn
                                                     : spdlog::level::err;
      spdlog::log(level, "peer {}: {}, silent for {:.1f} s", peer->record.describe(), to_string(silence),
                  seconds);
    }
  }
  for (const auto& [boot_id, why] : dead) die(boot_id, why);

  const std::set<InboundPtr> inbounds = inbounds_;
  for (const InboundPtr& inbound : inbounds) {
    if (!inbound->started && now - inbound->since > std::max(times_.error, kShortestDial)) {
      refuse(inbound, {StatusCode::kDeadlineExceeded, "the peer did not introduce itself"});
    }
  }
  std::erase_if(targets_, [this, now](const auto& entry) {
    const Target& target = *entry.second;
    return !target.configured && !target.stream && find(target.boot_id) == nullptr && target.refused_since &&
           *target.refused_since + times_.dead < now;
  });
}

/// An address of the peer, when both streams are closed and nobody has answered there for the "warn" time.
const PeerLinks::Target* PeerLinks::refused_for_long(const Peer& peer, Clock::time_point now) const {
  if (peer.in != nullptr || peer.out != nullptr) return nullptr;
  const Target* refused = nullptr;
  for (const auto& [address, target] : targets_) {
    if (target->boot_id != peer.record.boot_id()) continue;
    if (!target->refused_since || *target->refused_since + times_.warn > now) return nullptr;
    refused = target.get();
  }
  return refused;
}

void PeerLinks::dial_targets(Clock::time_point now) {
  const auto targets = targets_;
  for (const auto& [address, target] : targets) {
    const Peer* peer = find(target->boot_id);
    if (target->self || (peer != nullptr && peer->out != nullptr)) continue;
    if (target->stream && now - target->dialled > std::max(times_.error, kShortestDial)) {
      target->stream->close({});
      on_dial_closed(target, {StatusCode::kDeadlineExceeded, "no answer"});
    }
    if (!target->stream && now >= target->next_dial) dial(target);
  }
}

void PeerLinks::dial(const TargetPtr& target) {
  target->dialled = Clock::now();
  target->stream = wire_->dial(target->address);
  const std::weak_ptr<Target> weak = target;
  target->stream->start({[this, weak](const v1::PeerMessage& message) {
                           if (const TargetPtr alive = weak.lock()) on_dialled(alive, message);
                         },
                         [this, weak](const Status& why) {
                           if (const TargetPtr alive = weak.lock()) on_dial_closed(alive, why);
                         }});
  target->stream->send(hello());
  target->stream->read();
}

// ---- death

void PeerLinks::die(std::uint64_t boot_id, const Status& why) {
  const auto found = peers_.extract(boot_id);
  if (found.empty()) return;
  Peer& peer = *found.mapped();
  spdlog::error("peer {} is given up: {}", peer.record.describe(), why.text());
  epochs_[boot_id] = peer.record.epoch() + 1;
  if (peer.in) {
    peer.in->stream->close(
        {StatusCode::kAborted, "node " + options_.node + " gave this link up: " + why.text()});
    inbounds_.erase(peer.in);
  }
  const auto now = Clock::now();
  for (const auto& [address, target] : targets_) {
    if (target->boot_id != boot_id) continue;
    if (target->stream) target->stream->close(why);
    target->stream.reset();
    target->boot_id = 0;
    target->reason = why.text();
    target->next_dial = now + times_.keepalive;
    target->last = snapshot(peer, now);
    target->last.state = "dead";
  }
  judge_congestion(peer, 0);
  if (peer.up) events_.peer_down(peer.record.info().id, why);
}

// ---- what others see

PeerSnapshot PeerLinks::snapshot(const Peer& peer, Clock::time_point now) const {
  PeerSnapshot seen;
  const PeerRecord& record = peer.record;
  seen.node = record.node();
  seen.boot_id = record.boot_id();
  seen.version = record.version();
  seen.state = peer.up ? to_string(record.silence(now, times_)) : "connecting";
  seen.silent_seconds = record.silent_for(now).count();
  seen.sent_total = record.sent();
  seen.received_total = record.received();
  seen.unacknowledged = record.unacknowledged().size();
  seen.transport = rails_text(record.info().rails.size(), options_.transport);  // of one kind, or refused
  seen.ports = peer.ports;
  seen.clock = peer.clock.estimate();
  return seen;
}

std::vector<PeerSnapshot> PeerLinks::peers() const {
  std::vector<PeerSnapshot> list;
  const auto now = Clock::now();
  for (const auto& [address, target] : targets_) {
    if (target->self) continue;
    const Peer* peer = find(target->boot_id);
    if (peer != nullptr && peer->out != nullptr && peer->out != target)
      continue;  // the same under another name
    PeerSnapshot seen = peer != nullptr ? snapshot(*peer, now) : target->last;
    if (seen.state.empty()) seen.state = "connecting";
    seen.address = address;
    seen.configured = target->configured;
    if (seen.state != "alive") seen.reason = target->reason;
    list.push_back(std::move(seen));
  }
  return list;
}

PeerLinks::Peer* PeerLinks::find(std::uint64_t boot_id) {
  const auto peer = peers_.find(boot_id);
  return peer == peers_.end() ? nullptr : peer->second.get();
}

const PeerLinks::Peer* PeerLinks::find(std::uint64_t boot_id) const {
  const auto peer = peers_.find(boot_id);
  return peer == peers_.end() ? nullptr : peer->second.get();
}

PeerLinks::Peer* PeerLinks::find_id(transport::PeerId id) {
  for (const auto& [boot_id, peer] : peers_) {
    if (peer->record.info().id == id) return peer.get();
  }
  return nullptr;
}

}  // namespace mkernel::rpc
