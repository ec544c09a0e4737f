#include "daemon/transport/efa/peer.h"

#include <endian.h>

#include <algorithm>
#include <utility>

#include "daemon/transport/efa/status.h"

namespace mkernel::transport::efa {
namespace {

/// A peer that says nothing for so many polls is left to its notifications, and to the turn that idle peers
/// have: a put that comes then is seen some microseconds later.
constexpr std::uint32_t kQuietPolls = 1000;

[[gnu::cold]] Status not_next(const ReceiveWindow& window) {
  return {StatusCode::kInternal,
          "a put arrived that is not one of the " + std::to_string(window.capacity()) + " that are next"};
}

[[gnu::cold]] Status not_sent() {
  return {StatusCode::kInternal, "puts were acknowledged that were not sent"};
}

}  // namespace

Peer::Peer(Context& context, PeerId peer, const PeerAddress& remote, Time now)
    : rdma::PeerEntry(peer, remote), context_(context), connection_(context, domains_, id, remote, now) {}

// Channels

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
  context_.sink->channel_failed(channel.id, why.with_context("node " + identity.node));
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
    if (channel.window.reads(region)) return true;
    // Published over there, but the device has not said yet that it reads them no more.
    return channel.done.prefix() < channel.window.acknowledged() &&
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
  connection_.close();
  forget_epoch();
  outbound_.clear();
  inbound_.clear();
  by_serial_.clear();
}

bool Peer::arm() {
  return connection_.arm();
}

bool Peer::idle() const {
  return quiet_polls_ >= kQuietPolls && connection_.idle() && outstanding_ == 0 && active_.empty() &&
         to_acknowledge_.empty();
}

// Completions

std::size_t Peer::poll(Time now, Status& lost) {
  std::array<ibv_wc, 64> completions;
  std::size_t events = 0;
  while (Queue* const queue = connection_.queue()) {
    const auto polled = queue->poll(completions);
    Status why = polled.status();
    bool good = polled.ok();
    const std::size_t count = good ? polled.value() : 0;
    for (std::size_t i = 0; i < count && good; ++i) good = take(completions[i], now, why);
    events += count;
    publish();
    if (!good) {
      lose(why, now);
      ++events;
    }
    if (count < completions.size()) break;
  }
  quiet_polls_ = events > 0 ? 0 : quiet_polls_ + 1;
  if (!released_.empty() || !held_.empty()) take_late();
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

/// False: the connection is of no use any more, `why` says why.
bool Peer::take(const ibv_wc& completion, Time now, Status& why) {
  if (completion.status != IBV_WC_SUCCESS) return request_failed(completion, why);
  if (completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
    return arrived(unpack(be32toh(completion.imm_data)), why);
  }
  if (completion.wr_id == Connection::kProbeId) {
    proved(now);
  } else if ((completion.wr_id & kAcknowledgement) != 0) {
    acknowledgement_sent(static_cast<std::uint32_t>(completion.wr_id));
  } else {
    written(completion.wr_id);
  }
  return true;
}

void Peer::written(std::uint64_t request) {
  Outbound* const channel = landed(request);
  if (channel == nullptr) return;
  connection_.carried();
  const std::uint64_t before = channel->done.prefix();
  const auto ahead = static_cast<std::uint32_t>(request) - static_cast<std::uint32_t>(before);
  channel->done.accept(before + ahead);
  report(*channel);
  offer(*channel);
  if (!channel->revoked.empty()) confirm_revoked(*channel);
}

/// The channel whose put the request was, which is not under way any more. Null: closed meanwhile.
Outbound* Peer::landed(std::uint64_t request) {
  const auto serial = static_cast<std::uint32_t>(request >> 32);
  const auto found = by_serial_.find(serial);
  if (found == by_serial_.end()) {
    completed_late(serial);
    return nullptr;
  }
  --found->second->flying;
  return found->second;
}

void Peer::proved(Time now) {
  if (!connection_.proved(now)) return;
  attach_all();
  if (!std::exchange(connected_, true)) context_.sink->peer_connected(id);
}

void Peer::acknowledgement_sent(std::uint32_t number) {
  Inbound* const channel = numbers_.at(number);
  numbers_.set_acknowledging(number, false);
  if (channel == nullptr) return attach_waiting();
  channel->acknowledging = false;
  if (channel->acknowledged < channel->published) to_acknowledge_.push_back(channel);
}

bool Peer::request_failed(const ibv_wc& completion, Status& why) {
  const Status said(StatusCode::kUnavailable, text_of(completion));
  const bool of_put = completion.wr_id != Connection::kProbeId && (completion.wr_id & kAcknowledgement) == 0;
  const Failure failure = meaning(completion);
  if (!of_put || failure == Failure::kConnection) {
    why = said;
    return false;
  }
  Outbound* const channel = landed(completion.wr_id);
  if (channel == nullptr) return true;
  if (failure == Failure::kTarget) {
    // Closed there, and the news are under way? The answer comes behind them.
    if (!std::exchange(channel->accused, true)) ask_to_attach(*channel);
  } else if (failure != Failure::kFlushed) {
    fail(*channel, said);
  }
  if (!channel->revoked.empty()) confirm_revoked(*channel);
  return true;
}

bool Peer::arrived(const Immediate& immediate, Status& why) {
  if (immediate.acknowledges) return acknowledged(immediate.channel, immediate.sequence, why);
  if (immediate.channel == kProbe) return true;
  Inbound* const channel = numbers_.at(immediate.channel);
  if (channel == nullptr) return true;  // closed meanwhile
  const auto announced = channel->window.announce(immediate.sequence);
  if (announced.verdict != ReceiveWindow::Verdict::kNew) {
    why = not_next(channel->window);
    return false;
  }
  connection_.carried();
  if (channel->window.accept(announced.number) && (grown_.empty() || grown_.back() != channel)) {
    grown_.push_back(channel);
  }
  return true;
}

bool Peer::acknowledged(std::uint32_t index, WireSequence sequence, Status& why) {
  const auto found = by_number_.find(index);
  if (found == by_number_.end()) return true;  // closed meanwhile
  Outbound& channel = *found->second;
  const std::uint64_t before = channel.window.acknowledged();
  const std::uint64_t count = before + static_cast<WireSequence>(sequence - to_wire(before));
  if (!channel.window.acknowledge(count)) {
    why = not_sent();
    return false;
  }
  outstanding_ -= count - before;
  channel.outstanding -= count - before;
  report(channel);
  offer(channel);
  return true;
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
