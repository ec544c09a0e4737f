// Start and end, the bus, time and death. Streams are in peer_links_dial.cc and peer_links_accept.cc.
#include "daemon/cluster/peer_links.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "daemon/base/hex.h"

namespace mkernel::cluster {
namespace {

/// A stream without a hello is closed after this time.
constexpr std::chrono::milliseconds kHelloTime{2000};
/// Lines in the log about refused streams: an honest host has one cause or two.
constexpr base::LineLimit::Rates kRefusalLines{.each = 1, .all = 8};

}  // namespace

Result<std::unique_ptr<PeerLinks>> PeerLinks::start(boost::asio::io_context& io, PeerLinksOptions options,
                                                    PeerEvents& events, std::unique_ptr<PeerWire> wire) {
  std::unique_ptr<PeerLinks> links(new PeerLinks(io, std::move(options), events));
  links->wire_ = std::move(wire);
  MK_RETURN_IF_ERROR(links->set_static_peers(links->options_.peers));
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
      resolver_(io, "looking up peers.dns " + options_.dns),
      refusal_lines_(kRefusalLines) {}

/// Who is not configured, not vouched for and not asked in needs no port to knock at.
Status PeerLinks::listen_as_needed() {
  const bool needed = options_.admits_all() || !static_.empty() || !options_.dns.empty();
  if (needed == !address_.empty()) return {};
  if (!needed) {
    wire_->stop_listening();
    address_.clear();
    return {};
  }
  auto listening = wire_->listen(options_.listen,
                                 [this](std::shared_ptr<PeerStream> stream) { accept(std::move(stream)); });
  if (!listening.ok()) return listening.status();
  address_ = options_.advertise.empty() ? listening.value() : options_.advertise;
  return {};
}

Status PeerLinks::set_static_peers(const std::vector<std::string>& peers) {
  static_ = {peers.begin(), peers.end()};
  update_targets();
  for (const auto& [boot_id, peer] : peers_) {
    if (options_.admits_all() || is_configured(*peer)) continue;
    drop(peer->record.info().id,
         {StatusCode::kUnavailable,
          peer->record.describe() + " is no longer in peers.list of node " + options_.node});
  }
  return listen_as_needed();
}

bool PeerLinks::is_configured(const Peer& peer) const {
  return std::any_of(targets_.begin(), targets_.end(), [&](const auto& entry) {
    return entry.second->configured && entry.second->boot_id == peer.record.boot_id();
  });
}

std::set<std::string> PeerLinks::unlisted() const {
  std::set<std::string> names;
  for (const auto& [boot_id, peer] : peers_) {
    if (peer->up && !is_configured(*peer)) {
      names.insert("node " + peer->record.node() + " at " + peer->record.address());
    }
  }
  return names;
}

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
    for (const auto& stream : {target->stream, target->probe}) {
      if (stream) stream->finish(stopping);
    }
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
  say_more(*peer);
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
    for (const InboundPtr& inbound : inbounds_) inbound->since += pause;
  }
  watch(now);
  watch_inbounds(now);
  dial_targets(now);
  settle_all();
  for (const auto& missing : refusal_lines_.take_left_out(now)) {
    spdlog::warn("{} more lines about refused peers of one host were left out", missing.lines);
  }
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

  std::erase_if(targets_, [this, now](const auto& entry) {
    const Target& target = *entry.second;
    if (target.configured || find(target.boot_id) != nullptr) return false;
    if (!options_.admits_all()) return true;  // it was taken out of the list
    return !target.stream && target.refused_since && *target.refused_since + times_.dead < now;
  });
}

void PeerLinks::watch_inbounds(Clock::time_point now) {
  const std::list<InboundPtr> inbounds = inbounds_;
  for (const InboundPtr& inbound : inbounds) {
    const auto waited = now - inbound->since;
    if (inbound->boot_id == 0 && waited > kHelloTime) {
      refuse(inbound, {StatusCode::kDeadlineExceeded, "the peer did not introduce itself"});
    } else if (!inbound->started && waited > options_.patience()) {
      refuse(inbound, {StatusCode::kDeadlineExceeded,
                       "node " + inbound->hello.node() + " (boot " + base::hex(inbound->boot_id) +
                           ") does not answer at an address where node " + options_.node + " dials it"});
    }
  }
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
    peer.in->gone = true;
    inbounds_.remove(peer.in);
  }
  const auto now = Clock::now();
  for (const auto& [address, target] : targets_) {
    if (target->boot_id != boot_id) continue;
    for (auto* stream : {&target->stream, &target->probe}) {
      if (*stream) (*stream)->close(why);
      stream->reset();
    }
    target->answer.reset();
    target->boot_id = 0;
    target->reason = why.text();
    target->next_dial = now + times_.keepalive;
    target->last = snapshot(peer, now);
    target->last.state = "dead";
  }
  judge_congestion(peer, 0);
  settle_all();
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

PeerLinks::Peer* PeerLinks::find_namesake(const v1::Hello& hello) {
  for (const auto& [boot_id, peer] : peers_) {
    if (boot_id != hello.boot_id() && peer->record.node() == hello.node()) return peer.get();
  }
  return nullptr;
}

PeerLinks::Peer* PeerLinks::find_id(transport::PeerId id) {
  for (const auto& [boot_id, peer] : peers_) {
    if (peer->record.info().id == id) return peer.get();
  }
  return nullptr;
}

}  // namespace mkernel::cluster
