// What comes on the streams: hellos, the begin of a link, messages. All of it came over a wire and is
// checked.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "daemon/rpc/peer_links.h"
#include "proto/abi/version.h"

namespace mkernel::rpc {
namespace {

/// Messages taken before they are acknowledged without waiting for the next keepalive.
constexpr std::uint64_t kAcknowledgeEvery = 256;
/// Streams that have not yet begun.
constexpr std::size_t kMaxInbounds = 4096;

/// Ports that a peer may tell of: more are none of ours.
constexpr int kMaxPorts = 64;

std::string kind_of(const v1::Hello& hello) {
  return hello.endpoints_size() == 0 ? "none" : hello.endpoints(0).kind();
}

/// A peer that listens on every address does not know under which one it is seen.
std::string dialable(const std::string& address, const std::string& seen_host) {
  const auto colon = address.rfind(':');
  const std::string host = address.substr(0, colon);
  const bool wildcard = host == "0.0.0.0" || host == "[::]" || host.empty();
  return wildcard && !seen_host.empty() && colon != std::string::npos ? seen_host + address.substr(colon)
                                                                      : address;
}

}  // namespace

// ---- hello

v1::PeerMessage PeerLinks::hello() const {
  v1::PeerMessage message;
  v1::Hello& hello = *message.mutable_hello();
  hello.set_node(options_.node);
  hello.set_boot_id(options_.boot_id);
  hello.set_abi_version(abi::kVersion);
  hello.set_software_version(options_.software_version);
  hello.set_address(address_);
  for (const std::string& address : options_.endpoints) {
    v1::Endpoint& endpoint = *hello.add_endpoints();
    endpoint.set_kind(options_.transport);
    endpoint.set_address(address);
  }
  return message;
}

Status PeerLinks::check(const v1::Hello& hello) const {
  const std::string& name = hello.node();
  if (name.empty() || name.size() >= abi::kNameBytes || hello.boot_id() == 0 || hello.address().empty()) {
    return violation("hello of node \"" + name.substr(0, abi::kNameBytes) +
                     "\" without a name, boot id or address");
  }
  const std::string who = "node " + name + " at " + hello.address();
  if (hello.abi_version() != abi::kVersion) {
    return {StatusCode::kFailedPrecondition, who + " has ABI version " + std::to_string(hello.abi_version()) +
                                                 ", node " + options_.node + " has " +
                                                 std::to_string(abi::kVersion)};
  }
  if (name == options_.node) {
    return {StatusCode::kAlreadyExists,
            who + " has the name of the node at " + address_ + ": names must differ"};
  }
  const auto count = static_cast<std::size_t>(hello.endpoints_size());
  const bool uniform =
      std::all_of(hello.endpoints().begin(), hello.endpoints().end(),
                  [&](const v1::Endpoint& endpoint) { return endpoint.kind() == options_.transport; });
  if (uniform && count == options_.endpoints.size()) return {};
  return {StatusCode::kFailedPrecondition,
          who + " has rails " + rails_text(count, kind_of(hello)) + ", node " + options_.node + " has " +
              rails_text(options_.endpoints.size(), options_.transport) + ": all nodes need the same"};
}

Result<PeerLinks::Peer*> PeerLinks::admit(const v1::Hello& hello, const std::string& address) {
  MK_RETURN_IF_ERROR(check(hello));
  if (Peer* known = find(hello.boot_id())) return known;
  const auto now = Clock::now();
  const auto namesake = std::find_if(peers_.begin(), peers_.end(), [&](const auto& entry) {
    return entry.second->record.node() == hello.node();
  });
  if (namesake != peers_.end()) {
    const Peer& old = *namesake->second;
    const bool lives = old.in != nullptr && old.record.silence(now, times_) == Silence::kAlive;
    if (lives && old.record.address() != address) {
      return Status(StatusCode::kAlreadyExists, "node " + hello.node() + " at " + address +
                                                    " has the name of the node at " + old.record.address() +
                                                    ": names must differ");
    }
    die(namesake->first, {StatusCode::kUnavailable, old.record.describe() + " died and was started anew"});
  }
  const auto epoch = epochs_.find(hello.boot_id());
  auto peer = std::make_unique<Peer>(
      PeerRecord(++last_id_, hello, address, epoch == epochs_.end() ? 1 : epoch->second, now));
  return (peers_[hello.boot_id()] = std::move(peer)).get();
}

/// The peer counts further than we do: it has given us up since. False when this peer is no more.
bool PeerLinks::settle_epoch(Peer& peer, std::uint64_t epoch) {
  if (epoch <= peer.record.epoch()) return true;
  if (peer.up) {
    die(peer.record.boot_id(),
        {StatusCode::kUnavailable, peer.record.describe() + " had given this node up"});
    return false;
  }
  peer.record.set_epoch(epoch);
  return true;
}

// ---- streams that we dialled

void PeerLinks::on_dialled(const TargetPtr& target, const v1::PeerMessage& message) {
  const auto give_up = [&](const Status& why) {
    target->stream->close(why);
    on_dial_closed(target, why);
  };
  const Peer* begun = find(target->boot_id);
  if (!message.has_hello() || (begun != nullptr && begun->out == target)) {
    return give_up(violation("the answering side has nothing to say but its hello"));
  }
  const v1::Hello& hello = message.hello();
  if (hello.boot_id() == options_.boot_id) {
    target->self = true;
    target->stream->close({});
    target->stream.reset();
    return;
  }
  const Result<Peer*> peer =
      admit(hello, dialable(hello.address(), target->address.substr(0, target->address.rfind(':'))));
  if (!peer.ok()) return give_up(peer.status());
  if (target->boot_id != 0 && target->boot_id != hello.boot_id()) {
    die(target->boot_id, {StatusCode::kUnavailable, "another daemon answers at " + target->address});
  }
  target->boot_id = hello.boot_id();
  target->refused_since.reset();
  begin_outbound(target, *peer.value(), hello);
}

void PeerLinks::begin_outbound(const TargetPtr& target, Peer& peer, const v1::Hello& hello) {
  if (peer.out != nullptr && (peer.out->configured || !target->configured)) {
    // A second address of the same daemon; one link is enough.
    target->stream->close({});
    target->stream.reset();
    if (!target->configured) targets_.erase(std::string(target->address));
    return;
  }
  if (peer.out != nullptr) {
    peer.out->stream->close({});
    peer.out->stream.reset();
    targets_.erase(std::string(peer.out->address));
    peer.out.reset();
  }
  if (!settle_epoch(peer, hello.epoch())) return;  // dialled again, as a new peer
  const bool same_epoch = hello.epoch() == peer.record.epoch();
  if (same_epoch && !peer.record.acknowledge(hello.received())) {
    return die(peer.record.boot_id(), violation("it acknowledges what was never said"));
  }
  judge_congestion(peer, peer.record.unacknowledged().size());
  v1::PeerMessage start;
  start.mutable_start()->set_epoch(peer.record.epoch());
  target->stream->send(start);
  for (const v1::PeerMessage& message : peer.record.unacknowledged()) target->stream->send(message);
  target->reason.clear();
  target->stream->read();  // nothing comes, but the end of the stream is seen
  peer.out = target;
  peer.record.heard(Clock::now());
  check_up(peer);
}

void PeerLinks::on_dial_closed(const TargetPtr& target, const Status& why) {
  const auto now = Clock::now();
  target->stream.reset();
  target->reason = why.text();
  target->next_dial = now + times_.keepalive;
  Peer* peer = find(target->boot_id);
  if (peer != nullptr && peer->out == target) {
    peer->out.reset();
    target->next_dial = now;
    spdlog::warn("peer {}: lost the connection to {}: {}", peer->record.describe(), target->address,
                 why.text());
  } else if (!target->refused_since) {
    target->refused_since = now;
    spdlog::info("no link to {} yet: {}", target->address, why.text());
  }
}

// ---- streams that peers dialled

void PeerLinks::accept(std::shared_ptr<PeerStream> stream) {
  if (inbounds_.size() >= kMaxInbounds)
    return stream->close({StatusCode::kResourceExhausted, "too many streams"});
  const auto inbound = std::make_shared<Inbound>();
  inbound->stream = std::move(stream);
  inbound->since = Clock::now();
  inbounds_.insert(inbound);
  const std::weak_ptr<Inbound> weak = inbound;
  inbound->stream->start({[this, weak](const v1::PeerMessage& message) {
                            if (const InboundPtr alive = weak.lock()) on_accepted(alive, message);
                          },
                          [this, weak](const Status&) {
                            const InboundPtr alive = weak.lock();
                            if (alive == nullptr) return;
                            Peer* peer = find(alive->boot_id);
                            if (peer != nullptr && peer->in == alive) peer->in.reset();
                            inbounds_.erase(alive);
                          }});
  inbound->stream->read();
}

void PeerLinks::on_accepted(const InboundPtr& inbound, const v1::PeerMessage& message) {
  if (inbound->boot_id == 0) {
    const Status status = on_inbound_hello(*inbound, message);
    return status.ok() ? inbound->stream->read() : refuse(inbound, status);
  }
  if (!inbound->started) {
    const Status status = on_inbound_start(inbound, message);
    return status.ok() ? void() : refuse(inbound, status);
  }
  const Status status = on_inbound_message(inbound, message);
  if (!status.ok()) die(inbound->boot_id, status);
}

Status PeerLinks::on_inbound_hello(Inbound& inbound, const v1::PeerMessage& message) {
  if (!message.has_hello()) return violation("a stream begins with a hello");
  const v1::Hello& theirs = message.hello();
  v1::PeerMessage answer = hello();
  if (theirs.boot_id() == options_.boot_id) {
    inbound.stream->send(answer);
    return {StatusCode::kAlreadyExists, "this node has dialled itself"};
  }
  const std::string address = dialable(theirs.address(), inbound.stream->remote_host());
  const Result<Peer*> admitted = admit(theirs, address);
  if (!admitted.ok()) {
    if (admitted.status().code() == StatusCode::kFailedPrecondition) note_refused(theirs, address);
    return admitted.status();
  }
  const Peer& peer = *admitted.value();
  inbound.boot_id = theirs.boot_id();
  if (peer.out == nullptr) {
    const TargetPtr target = add_target(address, false);
    if (target->boot_id == 0) target->boot_id = theirs.boot_id();
  }
  answer.mutable_hello()->set_epoch(peer.record.epoch());
  answer.mutable_hello()->set_received(peer.record.received());
  inbound.stream->send(answer);
  return {};
}

Status PeerLinks::on_inbound_start(const InboundPtr& inbound, const v1::PeerMessage& message) {
  if (!message.has_start()) return violation("after the hellos comes a start");
  Peer* peer = find(inbound->boot_id);
  const Status stale(StatusCode::kAborted, "node " + options_.node + " has given this link up meanwhile");
  if (peer == nullptr || message.start().epoch() < peer->record.epoch()) return stale;
  if (!settle_epoch(*peer, message.start().epoch())) return stale;
  if (peer->in != nullptr) {
    peer->in->stream->close({StatusCode::kAborted, "a newer stream took the place of this one"});
    inbounds_.erase(peer->in);
  }
  inbound->started = true;
  peer->in = inbound;
  peer->reading = false;
  peer->record.heard(Clock::now());
  if (peer->up) {
    read_more(*peer);
  } else {
    check_up(*peer);
  }
  return {};
}

Status PeerLinks::on_inbound_message(const InboundPtr& inbound, const v1::PeerMessage& message) {
  Peer* peer = find(inbound->boot_id);
  if (peer == nullptr || peer->in != inbound) return {};
  peer->reading = false;
  peer->record.heard(Clock::now());
  if (message.has_keepalive()) {
    if (!peer->record.acknowledge(message.keepalive().received())) {
      return violation("it acknowledges what was never said");
    }
    judge_congestion(*peer, peer->record.unacknowledged().size());
    peer->clock.hear(message.keepalive(), options_.wall_clock());
    const auto& ports = message.keepalive().ports();
    peer->ports.assign(ports.begin(), ports.begin() + std::min(ports.size(), kMaxPorts));
  } else if (message.has_goodbye()) {
    return {StatusCode::kUnavailable, message.goodbye().reason()};
  } else {
    const PeerRecord::Take take = peer->record.take(message.sequence());
    if (take == PeerRecord::Take::kGap) {
      return violation("message " + std::to_string(message.sequence()) + " came after " +
                       std::to_string(peer->record.received()));
    }
    if (take == PeerRecord::Take::kNew) events_.received(peer->record.info().id, message);
    if (peer->record.unreported() >= kAcknowledgeEvery) say_alive(*peer);
  }
  read_more(*peer);
  return {};
}

/// Who it is that we refuse, for mkctl: it refuses us as well, and says no more than why.
void PeerLinks::note_refused(const v1::Hello& hello, const std::string& address) {
  const auto target = targets_.find(address);
  if (target == targets_.end() || find(target->second->boot_id) != nullptr) return;
  PeerSnapshot& last = target->second->last;
  last.node = hello.node();
  last.boot_id = hello.boot_id();
  last.version = hello.software_version();
  last.transport = rails_text(static_cast<std::size_t>(hello.endpoints_size()), kind_of(hello));
}

void PeerLinks::refuse(const InboundPtr& inbound, const Status& why) {
  const std::string text = inbound->stream->remote_host() + ": " + why.text();
  // It dials again and again: one line is enough.
  if (text != std::exchange(last_refusal_, text)) spdlog::warn("refused a peer from {}", text);
  inbound->stream->finish(why);
  inbounds_.erase(inbound);
}

// ---- the link

void PeerLinks::check_up(Peer& peer) {
  if (peer.up || peer.in == nullptr || peer.out == nullptr) return;
  peer.up = true;
  peer.told = Silence::kAlive;
  spdlog::info("peer {} at {} is up", peer.record.describe(), peer.out->address);
  events_.peer_up(peer.record.info());
  read_more(peer);
}

void PeerLinks::read_more(Peer& peer) {
  if (!peer.up || peer.in == nullptr || std::exchange(peer.reading, true)) return;
  peer.in->stream->read();
}

void PeerLinks::say_alive(Peer& peer) {
  if (peer.out == nullptr) return;
  v1::PeerMessage message;
  v1::KeepAlive& alive = *message.mutable_keepalive();
  alive.set_received(peer.record.received());
  alive.mutable_ports()->Add(ports_.begin(), ports_.end());
  peer.clock.say(alive, options_.wall_clock());
  peer.out->stream->send(message);
  peer.record.take_unreported();
}

}  // namespace mkernel::rpc
