// What a peer's messages do to channels.
#include <algorithm>
#include <utility>

#include "daemon/transport/efa/peer.h"

namespace mkernel::transport::efa {

Status Peer::receive(std::span<const std::byte> message, Time now) {
  const auto about = read_as<Message>(message);
  if (about.type < MessageType::kHello) return receive_channel(about, message);
  const auto life = connection_.life();
  MK_RETURN_IF_ERROR(connection_.receive(message, now));
  if (connection_.life() != life) forget_epoch();
  return {};
}

Status Peer::receive_channel(const Message& about, std::span<const std::byte> message) {
  switch (about.type) {
    case MessageType::kAttach: on_attach(read_as<Attach>(message)); return {};
    case MessageType::kDetach: on_detach(read_as<ChannelMessage>(message)); return {};
    case MessageType::kReleased: released_.push_back(read_as<NumberMessage>(message)); return {};
    case MessageType::kTaken:
      if (about.epoch == connection_.epoch()) on_taken(read_as<NumberMessage>(message).number);
      return {};
    case MessageType::kHeld: held_.push_back(read_as<Held>(message)); return {};
    case MessageType::kDetached: on_detached(read_as<ChannelMessage>(message).key); return {};
    case MessageType::kResolve: on_resolve(read_as<RegionMessage>(message)); return {};
    case MessageType::kResolved: on_resolved(message); return {};
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

void Peer::ask_to_attach(const Outbound& channel) {
  say(Attach{head(MessageType::kAttach), channel.key, channel.serial, 0});
}

void Peer::on_attach(const Attach& message) {
  Inbound* const channel = inbound(message.key);
  if (channel == nullptr) {
    wanted_[message.key] = message.serial;
  } else if (message.head.epoch == connection_.epoch()) {
    attach(*channel, message.serial);
  }
}

void Peer::attach(Inbound& channel, std::uint32_t serial) {
  if (connection_.queue() == nullptr) return;  // asked again in the next epoch
  if (channel.serial != serial) close_number(channel);
  if (!channel.index) {
    channel.index = numbers_.take(channel);
    channel.serial = serial;
    std::erase_if(unnumbered_, [&](const auto& entry) { return entry.first == channel.key; });
    if (!channel.index && numbers_.closing() > 0) {
      unnumbered_.emplace_back(channel.key, serial);  // there will be one
      return;
    }
    if (!channel.index) {
      say(refusal(head(MessageType::kRefused),
                  {StatusCode::kResourceExhausted,
                   "all " + std::to_string(kMaxChannels) + " channel numbers of this connection are in use"},
                  channel.key));
      return;
    }
    // Puts beyond the prefix are sent again: had they been kept, their replay could land after they counted.
    channel.window.restart(channel.published);
    channel.acknowledged = channel.published;
  }
  say(Held{head(MessageType::kHeld), channel.key, channel.published, *channel.index, serial});
}

Status Peer::on_held(const Held& message) {
  if (message.head.epoch != connection_.epoch()) return {};
  Outbound* const channel = outbound(message.key);
  if (channel == nullptr || channel->serial != message.serial) {
    release({.number = message.index});  // the channel was closed, or closed and opened, meanwhile
    return {};
  }
  if (channel->index) {
    if (!std::exchange(channel->accused, false)) return {};
    fail(*channel, {StatusCode::kOutOfRange, "the device refused a put: its target is not registered"});
    return {};
  }
  if (!channel->failed && !channel->window.resume(message.count)) {
    return {StatusCode::kInternal, "it says that it holds " + std::to_string(message.count) +
                                       " puts of a channel: they were not sent, or acknowledged before"};
  }
  if (!by_number_.emplace(message.index, channel).second) {
    return {StatusCode::kInvalidArgument,
            "it gave channel number " + std::to_string(message.index) + " twice"};
  }
  channel->index = message.index;
  if (channel->failed) return {};
  channel->done.restart(message.count);
  report(*channel);
  offer(*channel);
  return {};
}

/// The sender has closed the channel. What it had under way may still arrive, and is nobody's.
void Peer::on_detach(const ChannelMessage& message) {
  wanted_.erase(message.key);
  std::erase_if(unnumbered_, [&](const auto& entry) { return entry.first == message.key; });
  Inbound* const channel = inbound(message.key);
  if (channel != nullptr && message.head.epoch == connection_.epoch()) close_number(*channel);
}

/// It may be opened again.
void Peer::on_detached(ChannelKey key) {
  Outbound* const channel = outbound(key);
  if (channel == nullptr || channel->failed) return;
  leave_number(*channel);
  channel->serial = new_serial(*channel);
  confirm_revoked(*channel);
  channel->accused = false;
  channel->targets.clear();
  std::erase(active_, channel);
  if (connection_.up()) ask_to_attach(*channel);
}

// Regions

void Peer::on_resolve(const RegionMessage& message) {
  Inbound* const channel = inbound(message.key);
  if (channel == nullptr) return;  // the sender hears that it is closed
  // Of a connection that is over: it asks again over the next one, which may end at another device.
  if (message.head.epoch != connection_.epoch() || connection_.queue() == nullptr) return;
  const auto resolved = resolve(*channel, message.region);
  if (resolved.ok() && !resolved.value()) return answer_later(message);
  if (resolved.ok()) return context_.say(id, *resolved.value());
  say(refusal(head(MessageType::kRefused), resolved.status(), message.key));
}

/// Once, however often the peer asks.
void Peer::answer_later(const RegionMessage& message) {
  const auto same = [&](const RegionMessage& one) {
    return one.key == message.key && one.region == message.region;
  };
  if (std::none_of(resolving_.begin(), resolving_.end(), same)) resolving_.push_back(message);
}

Result<std::optional<std::vector<std::byte>>> Peer::resolve(Inbound& channel, std::uint32_t region) {
  Target target;
  MK_RETURN_IF_ERROR(context_.sink->place(channel.id, static_cast<std::uint16_t>(region), 0, 0, target));
  const auto registered = memory_of(channel.memory).target(*target.region);
  if (!registered.ok()) return registered.status().with_context("region " + std::to_string(region));
  if (registered.value() == nullptr) return std::optional<std::vector<std::byte>>();
  const rdma::Chunk& whole = registered.value()->chunks.front();
  channel.grants.push_back({next_grant_, region, target.region, false});
  const Resolved answer{head(MessageType::kResolved), channel.key, region, next_grant_++,
                        target.region->bytes,         kWhole};
  const RemoteChunk chunk{whole.address, whole.rkey, 0};
  return std::optional(rdma::resolved_with(answer, std::span(&chunk, 1)));
}

void Peer::registered() {
  for (const RegionMessage& message : std::exchange(resolving_, {})) on_resolve(message);
  for (auto& [key, channel] : outbound_) {
    if (std::exchange(channel->source_pending, false)) offer(*channel);
  }
}

void Peer::on_resolved(std::span<const std::byte> bytes) {
  const auto message = read_as<Resolved>(bytes);
  const RemoteChunk whole = rdma::chunks_of(bytes).front();
  Outbound* const channel = outbound(message.key);
  if (channel == nullptr || message.head.epoch != connection_.epoch()) return;
  for (RemoteRegion& target : channel->targets) {
    if (target.region != message.region || target.known) continue;
    target = {message.region, message.grant, true, whole.address, message.bytes, whole.rkey};
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
