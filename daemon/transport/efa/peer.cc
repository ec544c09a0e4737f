#include "daemon/transport/efa/peer.h"

#include <endian.h>

#include <algorithm>
#include <utility>

#include "daemon/transport/efa/status.h"

namespace mkernel::transport::efa {

Peer::Peer(Context& context, PeerId id, const PeerAddress& remote, Time now)
    : context_(context),
      id_(id),
      identity_(remote.identity),
      connection_(context, domains_, id, remote, now) {}

// Channels

Outbound* Peer::outbound(ChannelKey key) {
  const auto found = outbound_.find(key);
  return found == outbound_.end() ? nullptr : found->second.get();
}

Inbound* Peer::inbound(ChannelKey key) {
  const auto found = inbound_.find(key);
  return found == inbound_.end() ? nullptr : found->second.get();
}

Result<Outbound*> Peer::add_outbound(ChannelId channel, ChannelKey key) {
  if (outbound_.contains(key)) return Status(StatusCode::kAlreadyExists, "the channel's key is in use");
  auto& made = outbound_[key] = std::make_unique<Outbound>(context_, channel, key, load_);
  made->serial = new_serial(*made);
  if (connection_.up()) ask_to_attach(*made);
  return made.get();
}

Result<Inbound*> Peer::add_inbound(ChannelId channel, ChannelKey key) {
  if (inbound_.contains(key)) return Status(StatusCode::kAlreadyExists, "the channel's key is in use");
  auto& made = inbound_[key] = std::make_unique<Inbound>(context_, channel, key);
  if (const auto wanted = wanted_.find(key); wanted != wanted_.end()) {
    const std::uint32_t serial = wanted->second;
    wanted_.erase(wanted);
    attach(*made, serial);
  }
  return made.get();
}

void Peer::remove(Outbound& channel) {
  std::erase(active_, &channel);
  say(ChannelMessage{head(MessageType::kDetach), channel.key});
  leave_number(channel);         // behind Detach: until then the peer has not closed the number
  outbound_.erase(channel.key);  // its registrations with it: the device reads its sources no more
}

void Peer::remove(Inbound& channel) {
  say(ChannelMessage{head(MessageType::kDetached), channel.key});
  close_number(channel);
  inbound_.erase(channel.key);  // its registrations with it: nothing lands any more
}

void Peer::offer(Outbound& channel) {
  if (!channel.index || channel.failed) return;
  if (std::find(active_.begin(), active_.end(), &channel) == active_.end()) active_.push_back(&channel);
}

void Peer::fail(Outbound& channel, const Status& why) {
  if (std::exchange(channel.failed, true)) return;
  std::erase(active_, &channel);
  context_.sink->channel_failed(channel.id, why.with_context("node " + identity_.node));
}

void Peer::retire(const memory::Region& region) {
  for (auto& [key, channel] : inbound_) {
    for (Grant& grant : channel->grants) {
      if (grant.region != &region || std::exchange(grant.revoked, true)) continue;
      say(RegionMessage{head(MessageType::kRevoke), key, grant.index, grant.number});
    }
  }
}

bool Peer::holds(const memory::Region& region) const {
  const auto reads = [&](const auto& entry) {
    const Outbound& channel = *entry.second;
    const SendWindow& window = channel.window;
    for (std::uint64_t n = window.acknowledged() + 1; n <= window.submitted(); ++n) {
      if (window.at(n).source == &region) return true;
    }
    // Published over there, but the device has not said yet that it reads them no more.
    return channel.done.prefix() < window.acknowledged() &&
           std::find(channel.sources.begin(), channel.sources.end(), &region) != channel.sources.end();
  };
  const auto takes = [&](const auto& entry) {
    const Inbound& channel = *entry.second;
    if (channel.memory && channel.memory->leaving(region)) return true;
    return std::any_of(channel.grants.begin(), channel.grants.end(),
                       [&](const Grant& grant) { return grant.region == &region; });
  };
  return std::any_of(outbound_.begin(), outbound_.end(), reads) ||
         std::any_of(inbound_.begin(), inbound_.end(), takes);
}

void Peer::forget(const memory::Region& region) {
  for (auto& [key, channel] : outbound_) {
    if (channel->memory) channel->memory->forget(region);
    std::erase(channel->sources, &region);
  }
  for (auto& [key, channel] : inbound_) {
    if (channel->memory) channel->memory->forget(region);
    std::erase_if(channel->grants, [&](const Grant& grant) { return grant.region == &region; });
  }
}

// Connection

/// Keys belong to one connection, which may have been on another device: both ends forget theirs. A region
/// that a peer could write to is free at once, as the queue pair that took the writes is gone.
void Peer::forget_epoch() {
  numbers_.clear();
  unnumbered_.clear();
  by_number_.clear();
  departed_.clear();
  untaken_.clear();
  active_.clear();
  grown_.clear();
  to_acknowledge_.clear();
  resolving_.clear();
  outstanding_ = 0;
  for (auto& [key, channel] : outbound_) {
    channel->index.reset();
    channel->flying = 0;
    channel->outstanding = 0;
    channel->accused = false;
    channel->source_pending = false;
    channel->targets.clear();
    channel->memory.reset();
    channel->last_source = {};
    confirm_revoked(*channel);
  }
  for (auto& [key, channel] : inbound_) {
    channel->index.reset();
    channel->acknowledging = false;
    channel->grants.clear();
    channel->memory.reset();
  }
}

void Peer::lose(const Status& why, Time now) {
  publish();  // what has arrived counts, whatever becomes of the rest
  connection_.lose(why, now);
  forget_epoch();
}

void Peer::device_changed(std::uint32_t local, const Device::News& news, Time now) {
  const auto life = connection_.life();
  connection_.device_changed(local, news, now);
  if (connection_.life() != life) forget_epoch();
}

void Peer::attach_all() {
  for (auto& [key, channel] : outbound_) {
    if (!channel->failed) ask_to_attach(*channel);
  }
}

void Peer::close() {
  failed_ = true;
  connection_.close();
  forget_epoch();
  outbound_.clear();
  inbound_.clear();
  by_serial_.clear();
}

bool Peer::arm() {
  return connection_.arm();
}

// Completions

std::size_t Peer::poll(Time now, Status& lost) {
  std::array<ibv_wc, 64> completions;
  std::size_t events = 0;
  while (Queue* const queue = connection_.queue()) {
    const auto polled = queue->poll(completions);
    Status status = polled.status();
    const std::size_t count = polled.ok() ? polled.value() : 0;
    for (std::size_t i = 0; i < count && status.ok(); ++i) status = take(completions[i], now);
    events += count;
    publish();
    if (!status.ok()) {
      lose(status, now);
      ++events;
    }
    if (count < completions.size()) break;
  }
  if (!released_.empty() || !attached_.empty()) take_late();
  const auto life = connection_.life();
  mind_silence(events > 0, now);
  lost = connection_.poll(now);
  if (!late_status_.ok()) lost = late_status_;
  if (connection_.life() != life) {
    forget_epoch();
    ++events;
  }
  return events + flow(now);
}

/// Acknowledgements come from the other proxy: without any, is it still there? A device that completes
/// nothing, not even that question, is no better than one that says so.
void Peer::mind_silence(bool heard, Time now) {
  if (heard || outstanding_ == 0) {
    heard_ = now;
    asked_ = false;
  } else if (now - heard_ >= context_.patience()) {
    connection_.lose({StatusCode::kUnavailable, "the device completes nothing any more"}, now);
  } else if (!asked_ && now - heard_ >= quiet_limit()) {
    asked_ = true;
    connection_.ask_again(now);
  }
}

std::chrono::milliseconds Peer::quiet_limit() const {
  return std::min(context_.options.base.peer_timeout / 4, std::chrono::milliseconds(1000));
}

Time Peer::deadline(Time now) const {
  const Time due = connection_.deadline(now);
  if (outstanding_ == 0) return due;
  return std::min(due, heard_ + (asked_ ? context_.patience() : quiet_limit()));
}

Status Peer::take(const ibv_wc& completion, Time now) {
  if (completion.status == IBV_WC_SUCCESS && completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
    return arrived(unpack(be32toh(completion.imm_data)));
  }
  return completed(completion, now);
}

/// Of an own request. An error: the connection is of no use any more.
Status Peer::completed(const ibv_wc& completion, Time now) {
  const bool good = completion.status == IBV_WC_SUCCESS;
  const Status why(StatusCode::kUnavailable, good ? "" : text_of(completion));
  if (completion.wr_id == Connection::kProbeId) {
    if (!good) return why;
    if (!connection_.proved(now)) return {};
    attach_all();
    if (!std::exchange(connected_, true)) context_.sink->peer_connected(id_);
    return {};
  }
  if ((completion.wr_id & kAcknowledgement) != 0) {
    if (!good) return why;
    const auto number = static_cast<std::uint32_t>(completion.wr_id);
    Inbound* const channel = numbers_.at(number);
    numbers_.set_acknowledging(number, false);
    if (channel == nullptr) {
      attach_waiting();
      return {};
    }
    channel->acknowledging = false;
    if (channel->acknowledged < channel->published) to_acknowledge_.push_back(channel);
    return {};
  }
  const Failure failure = good ? Failure::kFlushed : meaning(completion);
  if (!good && failure == Failure::kConnection) return why;
  const auto serial = static_cast<std::uint32_t>(completion.wr_id >> 32);
  const auto found = by_serial_.find(serial);
  if (found == by_serial_.end()) {  // closed meanwhile
    completed_late(serial);
    return {};
  }
  Outbound& channel = *found->second;
  --channel.flying;
  if (good) {
    connection_.carried();
    const std::uint64_t before = channel.done.prefix();
    const auto ahead = static_cast<std::uint32_t>(completion.wr_id) - static_cast<std::uint32_t>(before);
    channel.done.accept(before + ahead);
    report(channel);
    offer(channel);
  } else if (failure == Failure::kTarget) {
    // Closed there, and the news are under way? The answer comes behind them.
    if (!std::exchange(channel.accused, true)) ask_to_attach(channel);
  } else if (failure != Failure::kFlushed) {
    fail(channel, {StatusCode::kUnavailable, text_of(completion)});
  }
  if (!channel.revoked.empty()) confirm_revoked(channel);
  return {};
}

Status Peer::arrived(const Immediate& immediate) {
  if (immediate.acknowledges) return acknowledged(immediate.channel, immediate.sequence);
  if (immediate.channel == kProbe) return {};
  Inbound* const channel = numbers_.at(immediate.channel);
  if (channel == nullptr) return {};  // closed meanwhile
  const auto announced = channel->window.announce(immediate.sequence);
  if (announced.verdict != ReceiveWindow::Verdict::kNew) {
    return {StatusCode::kInternal, "a put arrived that is not one of the " +
                                       std::to_string(channel->window.capacity()) + " that are next"};
  }
  connection_.carried();
  if (channel->window.accept(announced.number) && (grown_.empty() || grown_.back() != channel)) {
    grown_.push_back(channel);
  }
  return {};
}

Status Peer::acknowledged(std::uint32_t index, WireSequence sequence) {
  const auto found = by_number_.find(index);
  if (found == by_number_.end()) return {};  // closed meanwhile
  Outbound& channel = *found->second;
  const std::uint64_t before = channel.window.acknowledged();
  const std::uint64_t count = before + static_cast<WireSequence>(sequence - to_wire(before));
  if (!channel.window.acknowledge(count)) {
    return {StatusCode::kInternal, "puts were acknowledged that were not sent"};
  }
  outstanding_ -= count - before;
  channel.outstanding -= count - before;
  report(channel);
  offer(channel);
  return {};
}

/// A source is free when its put is published over there and no request reads it here.
void Peer::report(Outbound& channel) {
  const std::uint64_t count = std::min(channel.window.acknowledged(), channel.done.prefix());
  if (channel.failed || count <= channel.reported) return;
  channel.reported = count;
  context_.sink->completed(channel.id, count);
}

void Peer::publish() {
  // By index: the sink may close channels while it is told of events.
  for (std::size_t i = 0; i < grown_.size(); ++i) {
    Inbound* const channel = grown_[i];
    if (channel->window.prefix() == channel->published) continue;  // listed twice
    channel->published = channel->window.prefix();
    context_.sink->arrived(channel->id, channel->published);
    if (!channel->acknowledging) to_acknowledge_.push_back(channel);
  }
  grown_.clear();
}

}  // namespace mkernel::transport::efa
