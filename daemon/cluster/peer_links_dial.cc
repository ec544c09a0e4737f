// Addresses, the streams that we dial there, and who answers.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <utility>

#include "daemon/cluster/peer_hello.h"
#include "daemon/cluster/peer_links.h"
#include "daemon/config/rules.h"

namespace mkernel::cluster {
namespace {

/// Hellos of one boot id whose tokens are shown. More than one is rare, and somebody else's; but all streams
/// that one host may have are not enough to push out the peer's own, and so many tokens fit one message.
constexpr std::size_t kMaxTokens = 512;

/// Above what a resolver takes to give up one name server that does not answer, and to ask the next.
constexpr std::chrono::seconds kResolveWithin{30};

/// Every "host:port" behind "name:port". May take as long as the name service wants.
Result<std::vector<std::string>> addresses_of(const std::string& name) {
  using Tcp = boost::asio::ip::tcp;
  const auto colon = name.rfind(':');
  boost::asio::io_context io;
  boost::system::error_code error;
  const auto found = Tcp::resolver(io).resolve(name.substr(0, colon), name.substr(colon + 1), error);
  if (error) return Status(StatusCode::kUnavailable, error.message());
  std::vector<std::string> addresses;
  for (const auto& entry : found) {
    const auto address = entry.endpoint().address();
    const std::string host = address.is_v6() ? "[" + address.to_string() + "]" : address.to_string();
    addresses.push_back(host + ":" + std::to_string(entry.endpoint().port()));
  }
  return addresses;
}

}  // namespace

// ---- addresses

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
    target->token = random_token();
    target->patience = options_.patience();
    // One that dialled us may be a configured one under another name: let that answer first.
    if (!configured) target->next_dial = Clock::now() + times_.keepalive / 2;
  }
  target->configured = target->configured || configured;
  return target;
}

void PeerLinks::resolve() {
  if (options_.dns.empty()) return;
  resolver_.run<std::vector<std::string>>(
      kResolveWithin, [name = config::pinned(options_.dns)] { return addresses_of(name); },
      [this](const Result<std::vector<std::string>>& found) { on_resolved(found); });
}

void PeerLinks::on_resolved(const Result<std::vector<std::string>>& found) {
  if (found.ok()) {
    resolved_ = {found.value().begin(), found.value().end()};
    update_targets();
  } else {
    spdlog::warn("peers.dns {}: {}; the peers known so far stay", options_.dns, found.status().text());
  }
  dns_timer_.expires_after(options_.dns_refresh);
  dns_timer_.async_wait([this, alive = std::weak_ptr(life_)](const boost::system::error_code& cancelled) {
    if (!cancelled && !alive.expired()) resolve();
  });
}

// ---- dialling

void PeerLinks::dial_targets(Clock::time_point now) {
  const auto targets = targets_;
  for (const auto& [address, target] : targets) {
    if (target->probe && now - target->probed > options_.patience()) {
      target->probe->close({});
      target->probe.reset();
    }
    const Peer* peer = find(target->boot_id);
    if (target->self || (peer != nullptr && peer->out != nullptr)) continue;
    if (target->stream && now - target->dialled > target->patience) {
      target->patience = std::min(2 * target->patience, options_.longest_patience());
      target->stream->close({});
      on_dial_closed(
          target, {StatusCode::kDeadlineExceeded,
                   target->answer ? "node " + target->answer->node() + " does not dial back" : "no answer"});
    }
    if (!target->stream && now >= target->next_dial) dial(target);
  }
}

void PeerLinks::dial(const TargetPtr& target) {
  target->dialled = Clock::now();
  target->stream = open(target);
}

/// A stream to the address, for Target::stream or Target::probe: what comes on it depends on which it is
/// then.
std::shared_ptr<PeerStream> PeerLinks::open(const TargetPtr& target) {
  std::shared_ptr<PeerStream> stream = wire_->dial(target->address);
  const std::weak_ptr<Target> weak = target;
  const auto* self = stream.get();
  stream->start({[this, weak, self](const v1::PeerMessage& message) {
                   const TargetPtr alive = weak.lock();
                   if (alive == nullptr) return;
                   self == alive->probe.get() ? on_probed(alive, message) : on_dialled(alive, message);
                 },
                 [this, weak, self](const Status& why) {
                   const TargetPtr alive = weak.lock();
                   if (alive == nullptr) return;
                   self == alive->probe.get() ? alive->probe.reset() : on_dial_closed(alive, why);
                 },
                 [this, weak] {
                   const TargetPtr alive = weak.lock();
                   Peer* peer = alive == nullptr ? nullptr : find(alive->boot_id);
                   if (peer == nullptr || peer->out != alive) return;
                   if (std::exchange(peer->owes_alive, false)) say_alive(*peer);
                   say_more(*peer);
                 }});
  v1::PeerMessage message;
  *message.mutable_hello() = dialling_hello(options_, address_, target->token);
  stream->send(message);
  stream->read();
  return stream;
}

/// Somebody else has come with the name of this peer. True when it is being asked whether it lives:
/// settle_all() comes with the answer. False when it has said so a moment ago.
bool PeerLinks::ask_who_lives(const Peer& peer) {
  TargetPtr target = peer.out;
  for (const auto& [address, other] : targets_) {
    if (target == nullptr && other->boot_id == peer.record.boot_id()) target = other;
  }
  const auto now = Clock::now();
  if (target == nullptr || peer.out == nullptr) return true;  // it is dialled again, or found silent
  if (target->probe != nullptr) return true;
  if (now - target->probed < times_.keepalive) return false;
  target->probed = now;
  target->probe = open(target);
  return true;
}

void PeerLinks::on_probed(const TargetPtr& target, const v1::PeerMessage& message) {
  const auto stream = std::exchange(target->probe, nullptr);
  const Peer* peer = find(target->boot_id);
  const bool lives = !message.has_hello() || message.hello().boot_id() == target->boot_id ||
                     !check_identity(message.hello(), stream->remote()).ok();
  if (peer == nullptr || peer->out != target || lives) {
    stream->close({});
    target->probed = Clock::now();
    return settle_all();
  }
  // The stream that had begun leads to a daemon that is not there any more.
  die(target->boot_id,
      {StatusCode::kUnavailable, "another daemon answers at " + target->address + ": " +
                                     peer->record.describe() + " died and was started anew"});
  target->dialled = Clock::now();
  target->stream = stream;
  on_dialled(target, message);
}

// ---- who answers

void PeerLinks::on_dialled(const TargetPtr& target, const v1::PeerMessage& message) {
  const Peer* begun = find(target->boot_id);
  const bool expected = message.has_hello() && !target->answer && (begun == nullptr || begun->out != target);
  const Status status = expected ? on_answer(target, message.hello())
                                 : violation("the answering side has nothing to say but its hello");
  if (status.ok() || target->stream == nullptr) return;
  target->stream->close(status);
  on_dial_closed(target, status);
}

Status PeerLinks::on_answer(const TargetPtr& target, const v1::Hello& hello) {
  if (hello.boot_id() == options_.boot_id) {
    target->self = true;
    target->stream->close({});
    target->stream.reset();
    return {};
  }
  MK_RETURN_IF_ERROR(check_hello(hello, options_, address_));
  MK_RETURN_IF_ERROR(check_identity(hello, target->stream->remote()));
  if (const Peer* old = find(target->boot_id); old != nullptr && target->boot_id != hello.boot_id()) {
    const auto stream = std::exchange(target->stream, nullptr);  // what dies takes the others with it
    die(target->boot_id,
        {StatusCode::kUnavailable, "another daemon answers at " + target->address + ": " +
                                       old->record.describe() + " died and was started anew"});
    target->stream = stream;
  }
  if (const Peer* old = find_namesake(hello)) {
    static_cast<void>(ask_who_lives(*old));
    return {StatusCode::kAlreadyExists, "node " + hello.node() + " at " + target->address +
                                            " has the name of the node at " + old->record.address() +
                                            ": names must differ"};
  }
  if (find(hello.boot_id()) == nullptr) {
    const auto epoch = epochs_.find(hello.boot_id());
    peers_[hello.boot_id()] = std::make_unique<Peer>(PeerRecord(
        ++last_id_, hello, target->address, epoch == epochs_.end() ? 1 : epoch->second, Clock::now()));
  }
  target->boot_id = hello.boot_id();
  target->answer = hello;
  target->refused_since.reset();
  target->reason = "node " + hello.node() + " has not dialled back yet";
  begin_outbound(target);
  settle_all();
  return {};
}

/// One link to a daemon is enough; an address that was configured is kept before one that was not.
bool PeerLinks::drop_second_address(const TargetPtr& target, Peer& peer) {
  if (peer.out == nullptr) return false;
  const bool keep = target->configured && !peer.out->configured;
  const TargetPtr second = keep ? peer.out : target;
  second->stream->close({});
  second->stream.reset();
  second->answer.reset();
  if (keep) peer.out.reset();
  if (!second->configured) targets_.erase(std::string(second->address));
  return !keep;
}

std::vector<std::string> PeerLinks::tokens_of(std::uint64_t boot_id) const {
  std::vector<std::string> tokens;
  for (const bool started : {true, false}) {
    for (auto inbound = inbounds_.rbegin(); inbound != inbounds_.rend(); ++inbound) {
      const Inbound& seen = **inbound;
      if (seen.boot_id != boot_id || seen.started != started || !seen.answered) continue;
      if (tokens.size() < kMaxTokens) tokens.push_back(seen.hello.token());
    }
  }
  return tokens;
}

/// Says Start once both are there: the answer at the address, and a stream of the same daemon with its token.
void PeerLinks::begin_outbound(const TargetPtr& target) {
  Peer* found = find(target->boot_id);
  if (found == nullptr || !target->answer) return;
  Peer& peer = *found;
  if (drop_second_address(target, peer)) return;
  v1::PeerMessage start;
  for (std::string& token : tokens_of(target->boot_id)) start.mutable_start()->add_tokens(std::move(token));
  if (start.start().tokens_size() == 0) return;
  const v1::Hello hello = *std::exchange(target->answer, std::nullopt);
  if (!settle_epoch(peer, hello.epoch())) return;  // dialled again, as a new peer
  const bool same_epoch = hello.epoch() == peer.record.epoch();
  if (same_epoch && !peer.record.acknowledge(hello.received())) {
    return die(peer.record.boot_id(), violation("it acknowledges what was never said"));
  }
  judge_congestion(peer, peer.record.unacknowledged().size());
  start.mutable_start()->set_epoch(peer.record.epoch());
  target->stream->send(start);
  target->reason.clear();
  target->patience = options_.patience();
  target->stream->read();  // nothing comes, but the end of the stream is seen
  peer.out = target;
  peer.said = same_epoch ? hello.received() : 0;
  say_more(peer);
  peer.record.heard(Clock::now());
  check_up(peer);
}

void PeerLinks::on_dial_closed(const TargetPtr& target, const Status& why) {
  const auto now = Clock::now();
  target->stream.reset();
  target->answer.reset();
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

}  // namespace mkernel::cluster
