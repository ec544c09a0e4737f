#include "daemon/transport/tcp/peer.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "daemon/base/hex.h"

namespace mkernel::transport::tcp {
namespace {

bool smaller(const Identity& a, const Identity& b) {
  return std::tie(a.boot_id, a.node) < std::tie(b.boot_id, b.node);
}

template <typename Map>
auto* find(const Map& map, ChannelKey key) {
  const auto found = map.find(key);
  return found == map.end() ? nullptr : found->second;
}

}  // namespace

Peer::Peer(Context& context, PeerId id, const PeerAddress& address, const SocketAddress& remote)
    : context_(context),
      id_(id),
      address_(address),
      remote_(remote),
      dials_(smaller(context.options.base.identity, address.identity)),
      secret_(kProtocol, context.options.base.identity, address.identity, dials_) {
  use_connections(context.options.connections_per_peer);
}

Peer::~Peer() = default;

std::string Peer::describe() const {
  return "node " + address_.identity.node + " (boot " + base::hex(address_.identity.boot_id) + ", " +
         remote_.text() + ")";
}

void Peer::use_connections(std::uint32_t count) {
  count_ = count;
  while (links_.size() < count) {
    links_.push_back(std::make_unique<Link>(context_, *this, static_cast<std::uint32_t>(links_.size())));
  }
}

Status Peer::start(Clock::time_point now) {
  MK_RETURN_IF_ERROR(secret_.draw().with_context(describe()));
  if (dials_) say_secret();
  for (std::uint32_t i = 0; i < count_; ++i) links_[i]->start(now);
  return {};
}

void Peer::say_secret() {
  const SecretMessage message = secret_.message();
  const auto bytes = bytes_of_layout(message);
  context_.events.send_to_peer(id_, {bytes.begin(), bytes.end()});
  context_.kick_once();
}

void Peer::receive(std::span<const std::byte> message, Clock::time_point now) {
  if (failed_) return;
  if (const Status joined = secret_.receive(message); !joined.ok()) {
    context_.kick_once();
    return fail(joined);
  }
  if (!dials_) say_secret();
  for (std::uint32_t i = 0; i < count_; ++i) links_[i]->secret_known(now);
}

void Peer::close() {
  for (auto& link : links_) {
    std::size_t left = std::size_t{1} << 20;
    link->send(left);  // acknowledgements of what was published
    link->close();
  }
}

void Peer::fail(const Status& why) {
  if (failed_) return;
  failed_ = true;
  close();
  context_.deadlines_changed = true;
  context_.events.peer_failed(id_, why);
}

Link& Peer::fence(const Hello& hello) {
  if (hello.connections != count_) {
    const Status why(StatusCode::kAborted, describe() + " changed its number of connections");
    for (auto& link : links_) link->lose(why);
    use_connections(hello.connections);
    for (std::uint32_t i = 0; i < count_; ++i) links_[i]->start(Clock::now());
  }
  Link& link = *links_[hello.connection];
  link.lose({StatusCode::kAborted, describe() + " dialled anew"});
  return link;
}

void Peer::link_up(Link& link) {
  for (auto& [key, channel] : outbound_) {
    if (&link_of(key) == &link && !channel->failed) link.ask(*channel);
  }
  const bool all_up =
      std::all_of(links_.begin(), links_.begin() + count_, [](const auto& each) { return each->up(); });
  if (!all_up || std::exchange(whole_, true)) return;
  if (std::exchange(reported_, true)) {
    context_.events.path_changed(id_, link.ends(), {});
  } else {
    context_.events.peer_connected(id_);
  }
}

void Peer::link_down(Link& link, const Status& why) {
  if (std::exchange(whole_, false)) context_.events.path_changed(id_, link.ends(), why);
  for (auto& [key, channel] : outbound_) {
    if (&link_of(key) != &link) continue;
    channel->granted = false;
    channel->framed = 0;
    channel->zero_copy_end = 0;
  }
  for (auto& [key, channel] : inbound_) {
    if (&link_of(key) != &link) continue;
    channel->received = 0;
    channel->partial = {};
  }
}

Link& Peer::link_of(ChannelKey key) {
  const std::uint64_t mixed = (key * 0x9e3779b97f4a7c15ULL) >> 32;
  return *links_[mixed % count_];
}

Outbound* Peer::outbound(ChannelKey key) const {
  return find(outbound_, key);
}

Inbound* Peer::inbound(ChannelKey key) const {
  return find(inbound_, key);
}

void Peer::add(Outbound& channel) {
  outbound_[channel.key] = &channel;
  link_of(channel.key).ask(channel);
}

void Peer::add(Inbound& channel) {
  inbound_[channel.key] = &channel;
  // Its sender may have asked before this end knew the channel, and will not ask again.
  link_of(channel.key).answer(channel);
}

void Peer::remove(Outbound& channel) {
  outbound_.erase(channel.key);
  link_of(channel.key).forget(channel);
}

void Peer::remove(Inbound& channel) {
  inbound_.erase(channel.key);
  link_of(channel.key).forget(channel);
}

bool Peer::uses(const memory::Region& region) const {
  return std::any_of(links_.begin(), links_.end(), [&](const auto& link) { return link->uses(region); }) ||
         std::any_of(inbound_.begin(), inbound_.end(),
                     [&](const auto& entry) { return entry.second->partial.target.region == &region; });
}

Clock::time_point Peer::deadline() const {
  Clock::time_point nearest = kNever;
  if (failed_) return nearest;
  for (std::uint32_t i = 0; i < count_; ++i) nearest = std::min(nearest, links_[i]->deadline());
  return nearest;
}

void Peer::expire(Clock::time_point now) {
  for (std::uint32_t i = 0; i < count_ && !failed_; ++i) links_[i]->expire(now);
}

}  // namespace mkernel::transport::tcp
