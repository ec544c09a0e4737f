// What a peer's messages do to channels.
#include <algorithm>
#include <utility>

#include "daemon/transport/efa/peer.h"

namespace mkernel::transport::efa {

Status Peer::receive(std::span<const std::byte> message, Time now) {
  const auto about = read_as<Message>(message);
  if (about.type >= MessageType::kAttach) return receive_channel(about, message);
  if (about.type == MessageType::kGivenUp) {
    return status_of(read_as<Refusal>(message)).with_context("it has given this node up");
  }
  const auto life = connection_.life();
  MK_RETURN_IF_ERROR(connection_.receive(message, now));
  if (connection_.life() != life) forget_epoch();
  return {};
}

Status Peer::receive_channel(const Message& about, std::span<const std::byte> message) {
  switch (about.type) {
    case MessageType::kAttach: {
      const ChannelKey key = read_as<ChannelMessage>(message).key;
      Inbound* const channel = inbound(key);
      if (channel == nullptr) {
        wanted_.insert(key);
      } else if (about.epoch == connection_.epoch()) {
        attach(*channel);
      }
      return {};
    }
    case MessageType::kDetach: wanted_.erase(read_as<ChannelMessage>(message).key); return {};
    case MessageType::kAttached: return on_attached(read_as<Attached>(message));
    case MessageType::kDetached: on_detached(read_as<ChannelMessage>(message).key); return {};
    case MessageType::kResolve: on_resolve(read_as<RegionMessage>(message)); return {};
    case MessageType::kResolved: on_resolved(read_as<Resolved>(message)); return {};
    case MessageType::kRevoke: on_revoke(read_as<RegionMessage>(message)); return {};
    case MessageType::kRevoked: on_revoked(read_as<RegionMessage>(message)); return {};
    case MessageType::kRefused: {
      const auto refused = read_as<Refusal>(message);
      if (Outbound* const channel = outbound(refused.key)) fail(*channel, status_of(refused));
      return {};
    }
    default: return {};
  }
}

/// Numbers are not used twice in an epoch: what is still under way for a closed channel must not be taken for
/// another's.
void Peer::attach(Inbound& channel) {
  if (connection_.queue() == nullptr) return;  // asked again in the next epoch
  if (!channel.index) {
    if (by_index_.size() == kMaxChannels) {
      say(refusal(head(MessageType::kRefused),
                  {StatusCode::kResourceExhausted, "no channel number is left on this connection"},
                  channel.key));
      return;
    }
    channel.index = static_cast<std::uint32_t>(by_index_.size());
    by_index_.push_back(&channel);
    // Puts beyond the prefix are sent again: had they been kept, their replay could land after they counted.
    channel.window.restart(channel.published);
    channel.acknowledged = channel.published;
  }
  say(Attached{head(MessageType::kAttached), channel.key, channel.published, *channel.index});
}

Status Peer::on_attached(const Attached& message) {
  Outbound* const channel = outbound(message.key);
  if (channel == nullptr || channel->failed || message.head.epoch != connection_.epoch()) return {};
  if (std::exchange(channel->accused, false)) {
    fail(*channel, {StatusCode::kOutOfRange, "the device refused a put: its target is not registered"});
    return {};
  }
  if (channel->index) return {};
  if (!channel->window.resume(message.held)) {
    return {StatusCode::kInternal, "it says that it holds " + std::to_string(message.held) +
                                       " puts of a channel: they were not sent, or acknowledged before"};
  }
  channel->index = message.index;
  channel->done.restart(message.held);
  by_number_[message.index] = channel;
  report(*channel);
  offer(*channel);
  return {};
}

/// It may be opened again.
void Peer::on_detached(ChannelKey key) {
  Outbound* const channel = outbound(key);
  if (channel == nullptr || channel->failed) return;
  if (channel->index) {
    by_number_.erase(*channel->index);
    outstanding_ -= channel->window.sent() - channel->window.acknowledged();
    channel->index.reset();
  }
  channel->accused = false;
  channel->targets.clear();
  std::erase(active_, channel);
  if (connection_.up()) say(ChannelMessage{head(MessageType::kAttach), key});
}

// Regions

void Peer::on_resolve(const RegionMessage& message) {
  Inbound* const channel = inbound(message.key);
  if (channel == nullptr) return;  // the sender hears that it is closed
  // Of a connection that is over: it asks again over the next one, which may end at another device.
  if (message.head.epoch != connection_.epoch() || connection_.queue() == nullptr) return;
  const auto resolved = resolve(*channel, message.region);
  if (resolved.ok()) return say(resolved.value());
  say(refusal(head(MessageType::kRefused), resolved.status(), message.key));
}

Result<Resolved> Peer::resolve(Inbound& channel, std::uint32_t region) {
  Target target;
  MK_RETURN_IF_ERROR(context_.sink->place(channel.id, static_cast<std::uint16_t>(region), 0, 0, target));
  const auto registered = memory_on(connection_.queue()->device(), channel.memory).target(*target.region);
  if (!registered.ok()) return registered.status().with_context("region " + std::to_string(region));
  const rdma::Chunk& whole = registered.value()->chunks.front();
  channel.grants.push_back({next_grant_, region, target.region, false});
  return Resolved{head(MessageType::kResolved), channel.key, region, next_grant_++, whole.address,
                  target.region->bytes,         whole.rkey};
}

void Peer::on_resolved(const Resolved& message) {
  Outbound* const channel = outbound(message.key);
  if (channel == nullptr || message.head.epoch != connection_.epoch()) return;
  for (RemoteRegion& target : channel->targets) {
    if (target.region != message.region || target.known) continue;
    target = {message.region, message.grant, true, message.address, message.bytes, message.rkey};
  }
  offer(*channel);
}

void Peer::on_revoke(const RegionMessage& message) {
  Outbound* const channel = outbound(message.key);
  if (channel == nullptr)
    return say(RegionMessage{head(MessageType::kRevoked), message.key, message.region, message.grant});
  std::erase_if(channel->targets, [&](const RemoteRegion& target) {
    return target.known && target.region == message.region && target.grant == message.grant;
  });
  channel->revoked.emplace_back(message.region, message.grant);
  confirm_revoked(*channel);
}

/// When none of the channel's requests is under way; until then it sends nothing new.
void Peer::confirm_revoked(Outbound& channel) {
  if (channel.flying > 0 || channel.revoked.empty()) return;
  for (const auto& [region, grant] : std::exchange(channel.revoked, {})) {
    say(RegionMessage{head(MessageType::kRevoked), channel.key, region, grant});
  }
  offer(channel);
}

void Peer::on_revoked(const RegionMessage& message) {
  Inbound* const channel = inbound(message.key);
  if (channel == nullptr) return;
  std::erase_if(channel->grants, [&](const Grant& grant) {
    if (!grant.revoked || grant.number != message.grant) return false;
    channel->memory->release(*grant.region);
    return true;
  });
}

}  // namespace mkernel::transport::efa
