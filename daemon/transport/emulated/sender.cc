#include "daemon/transport/emulated/sender.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "proto/ipc/packet.h"

namespace mkernel::transport::emulated {
namespace {

/// A copy that far behind the acknowledged prefix would be taken for a put of the next lap of the wire
/// sequence; real networks bound the life of a packet for the same reason.
constexpr std::uint64_t kOldestDuplicate = 1U << 14;
constexpr std::uint32_t kMaxPatience = 16;

/// Channels that the peer has opened before this end did; far more than any two nodes share.
constexpr std::size_t kMaxEarlyHeld = 1U << 16;

/// Beyond this the peer is told to forget the sources that no put in flight reads from.
constexpr std::size_t kMaxAnnounced = 1024;

}  // namespace

Sender::Sender(Context& context, std::string peer, std::uint64_t seed, FencePage& fence)
    : context_(context), peer_(std::move(peer)), fence_(fence), shaper_(seed, context.faults) {
  shaper_.set_shape(context.options.shape);
}

Sender::Channel* Sender::find(ChannelId channel) {
  const auto at = channels_.find(channel);
  return at == channels_.end() ? nullptr : at->second.get();
}

Sender::Channel* Sender::find_key(ChannelKey key) {
  const auto at = by_key_.find(key);
  return at == by_key_.end() ? nullptr : at->second;
}

Status Sender::open(ChannelId id, ChannelKey key) {
  if (find(id) != nullptr || find_key(key) != nullptr) {
    return {StatusCode::kAlreadyExists, "emulated: outbound channel " + std::to_string(id) + " (key " +
                                            std::to_string(key) + ") to " + peer_ + " is open already"};
  }
  const auto early = early_held_.find(key);
  if (early != early_held_.end() && early->second != 0) {
    return {StatusCode::kDataLoss, "emulated: " + peer_ + " says that it holds " +
                                       std::to_string(early->second) +
                                       " puts of a channel that carried none"};
  }
  auto channel = std::make_unique<Channel>(load_);
  channel->id = id;
  channel->key = key;
  if (early != early_held_.end()) {
    channel->flowing = true;
    early_held_.erase(early);
  }
  by_key_[key] = channel.get();
  channels_[id] = std::move(channel);
  return {};
}

void Sender::close(ChannelId id) {
  Channel* channel = find(id);
  if (channel == nullptr) return;
  if (!channel->window.empty()) {
    // Sequentially consistent: what the caller writes over the sources next must not be seen before this.
    std::atomic_ref(fence_.closes).fetch_add(1, std::memory_order_seq_cst);
  }
  shaper_.forget(id);
  const auto begin = batch_.puts.begin();
  const auto end = std::remove_if(begin, begin + batch_.head.count,
                                  [&](const PutEntry& put) { return put.channel == channel->key; });
  batch_.head.count = static_cast<std::uint16_t>(end - begin);
  for (const std::uint64_t region : channel->regions) {
    const auto source = sources_.find(region);
    if (source == sources_.end() || --source->second.channels > 0) continue;
    if (source->second.announced) retire(region, source->second);
    sources_.erase(source);
  }
  by_key_.erase(channel->key);
  channels_.erase(id);
}

bool Sender::submit(const Put& put, Time now) {
  Channel* channel = find(put.channel);
  if (channel == nullptr || channel->failed) return true;  // nobody waits for it any more
  if (put.length > 0 && !context_.copier.supports(put.source->kind)) {
    fail(*channel,
         {StatusCode::kUnimplemented, "emulated: put " + std::to_string(put.sequence) + " to " + peer_ +
                                          " reads from region " + std::to_string(put.source->id) +
                                          ", whose kind of memory this transport cannot copy"});
    return true;
  }
  if (channel->window.full()) return false;
  if (!channel->window.push(put, now)) {
    fail(*channel, channel->window.out_of_order(put).with_context("emulated: to " + peer_));
    return true;
  }
  if (put.length > 0) {
    if (channel->regions.insert(put.source->id).second) ++sources_[put.source->id].channels;
  }
  if (channel->flowing) transmit_unsent(*channel, now);
  return true;
}

void Sender::transmit(Channel& channel, const Put& put, Time now) {
  const PutEntry entry{
      .channel = channel.key,
      .source_region = put.length > 0 ? put.source->id : 0,
      .source_offset = put.source_offset,
      .target_offset = put.remote_offset,
      .length = put.length,
      .target_region = put.remote_region,
      .sequence = to_wire(put.sequence),
  };
  channel.on_wire += shaper_.offer({channel.id, put.sequence, entry}, now);
  channel.note_activity(now);
  if (!next_check_) next_check_ = now + context_.options.retransmit_timeout / 2;
}

void Sender::fail(Channel& channel, const Status& why) {
  channel.failed = true;
  context_.sink->channel_failed(channel.id, why);
}

void Sender::connected(int socket) {
  lost();
  socket_ = socket;
}

void Sender::lost() {
  socket_ = -1;
  shaper_.clear();
  batch_.head.count = 0;
  unused_.clear();
  announced_ = 0;
  next_check_.reset();
  early_held_.clear();
  for (auto& [region, source] : sources_) source.announced = false;
  for (auto& [id, channel] : channels_) {
    channel->flowing = false;
    channel->on_wire = 0;
    channel->patience = 1;
    channel->last_activity = {};
  }
}

void Sender::acknowledged(Channel& channel, std::uint64_t before, Time now) {
  if (channel.window.acknowledged() == before) return;
  channel.note_activity(now);
  channel.patience = 1;
  context_.sink->completed(channel.id, channel.window.acknowledged());
}

Status Sender::on_acks(std::span<const CountEntry> counts, Time now) {
  for (const CountEntry& entry : counts) {
    Channel* channel = find_key(entry.channel);
    if (channel == nullptr || channel->failed) continue;
    const std::uint64_t before = channel->window.acknowledged();
    if (!channel->window.acknowledge(entry.count)) {
      return {StatusCode::kInternal, "emulated: " + peer_ + " acknowledges " + std::to_string(entry.count) +
                                         " puts of a channel that had " + std::to_string(before) +
                                         " acknowledged and was given " +
                                         std::to_string(channel->window.sent())};
    }
    acknowledged(*channel, before, now);
  }
  return {};
}

void Sender::on_held(std::span<const CountEntry> counts, Time now) {
  for (const CountEntry& entry : counts) {
    Channel* channel = find_key(entry.channel);
    if (channel == nullptr && early_held_.size() < kMaxEarlyHeld) {
      early_held_[entry.channel] = entry.count;
    }
    if (channel == nullptr || channel->failed || channel->flowing) continue;
    const std::uint64_t before = channel->window.acknowledged();
    if (!channel->window.resume(entry.count)) {
      fail(*channel, {StatusCode::kDataLoss, "emulated: " + peer_ + " says that it holds " +
                                                 std::to_string(entry.count) +
                                                 " puts, but had acknowledged " + std::to_string(before) +
                                                 " of " + std::to_string(channel->window.submitted())});
      continue;
    }
    channel->flowing = true;
    transmit_unsent(*channel, now);
    acknowledged(*channel, before, now);
  }
}

void Sender::transmit_unsent(Channel& channel, Time now) {
  while (const Put* put = channel.window.unsent()) {
    transmit(channel, *put, now);
    channel.window.mark_sent();
  }
}

void Sender::on_nack(ChannelKey key, const Status& why) {
  Channel* channel = find_key(key);
  if (channel != nullptr && !channel->failed) fail(*channel, why.with_context(peer_));
}

void Sender::retransmit_overdue(Time now) {
  if (!next_check_ || now < *next_check_) return;
  next_check_.reset();
  const auto timeout = context_.options.retransmit_timeout;
  for (auto& [id, channel] : channels_) {
    if (!channel->flowing || channel->failed || channel->window.empty()) continue;
    next_check_ = now + timeout / 2;
    const auto overdue = timeout * channel->patience + shaper_.shape().latency;
    if (channel->on_wire > 0 || now < channel->last_activity + overdue) continue;
    channel->patience = std::min(channel->patience * 2, kMaxPatience);
    for (auto number = channel->window.acknowledged() + 1; number <= channel->window.sent(); ++number) {
      transmit(*channel, channel->window.at(number), now);
      ++context_.faults.retransmitted;
    }
  }
}

Status Sender::announce(const memory::Region& region) {
  Source& source = sources_[region.id];
  if (source.announced) return {};
  if (announced_ >= kMaxAnnounced) retire_idle_sources();
  MK_RETURN_IF_ERROR(withdraw_unused());
  const AnnouncePacket packet{.head = {PacketType::kAnnounce, 0, 0},
                              .region = region.id,
                              .offset = region.offset,
                              .bytes = region.bytes,
                              .kind = static_cast<std::uint32_t>(region.kind),
                              .reserved = 0,
                              .ipc = region.cuda_ipc};
  const int fd = region.fd.get();
  const std::size_t fds = region.kind == abi::RegionKind::kIpc ? 0 : 1;
  MK_RETURN_IF_ERROR(ipc::send_packet(socket_, std::as_bytes(std::span(&packet, 1)), std::span(&fd, fds)));
  source.announced = true;
  ++announced_;
  return {};
}

void Sender::retire(std::uint64_t region, Source& source) {
  source.announced = false;
  --announced_;
  unused_.push_back(region);
}

void Sender::retire_idle_sources() {
  std::unordered_set<std::uint64_t> busy;
  for (const auto& [id, channel] : channels_) {
    const SendWindow& window = channel->window;
    for (auto number = window.acknowledged() + 1; number <= window.submitted(); ++number) {
      if (window.at(number).length > 0) busy.insert(window.at(number).source->id);
    }
  }
  for (auto& [region, source] : sources_) {
    if (source.announced && !busy.contains(region)) retire(region, source);
  }
}

bool Sender::reads(const memory::Region& region) const {
  return std::any_of(channels_.begin(), channels_.end(), [&](const auto& entry) {
    const SendWindow& window = entry.second->window;
    for (auto number = window.acknowledged() + 1; number <= window.submitted(); ++number) {
      if (window.at(number).length > 0 && window.at(number).source == &region) return true;
    }
    return false;
  });
}

void Sender::forget(const memory::Region& region) {
  const auto source = sources_.find(region.id);
  if (source == sources_.end()) return;
  if (source->second.announced) retire(region.id, source->second);
  sources_.erase(source);
}

Status Sender::withdraw_unused() {
  while (!unused_.empty()) {
    const WithdrawPacket packet{{PacketType::kWithdraw, 0, 0}, unused_.back()};
    MK_RETURN_IF_ERROR(ipc::send_packet(socket_, std::as_bytes(std::span(&packet, 1))));
    unused_.pop_back();
  }
  return {};
}

Status Sender::send_batch() {
  if (batch_.head.count == 0) return {};
  batch_.head.type = PacketType::kPuts;
  batch_.fence = std::atomic_ref(fence_.closes).load(std::memory_order_relaxed);
  const std::size_t bytes = offsetof(PutsPacket, puts) + batch_.head.count * sizeof(PutEntry);
  MK_RETURN_IF_ERROR(ipc::send_packet(socket_, std::as_bytes(std::span(&batch_, 1)).first(bytes)));
  batch_.head.count = 0;
  return {};
}

Status Sender::flush(Time now) {
  MK_RETURN_IF_ERROR(withdraw_unused());
  retransmit_overdue(now);
  while (const Parcel* parcel = shaper_.front(now)) {
    if (batch_.head.count == PutsPacket::kEntries) MK_RETURN_IF_ERROR(send_batch());
    Channel& channel = *find(parcel->channel);  // a closed channel's parcels left the wire with it
    const std::uint64_t acknowledged = channel.window.acknowledged();
    // A late duplicate is discarded by its sequence; its source may be gone, and nobody looks for it.
    if (parcel->entry.length > 0 && parcel->sequence > acknowledged) {
      MK_RETURN_IF_ERROR(announce(*channel.window.at(parcel->sequence).source));
    }
    if (acknowledged < parcel->sequence + kOldestDuplicate) batch_.puts[batch_.head.count++] = parcel->entry;
    --channel.on_wire;
    channel.note_activity(std::max(now, from_ticks(parcel->entry.arrives)));
    shaper_.pop();
  }
  return send_batch();
}

std::optional<Time> Sender::next_deadline() const {
  return base::sooner(shaper_.next_release(), next_check_);
}

}  // namespace mkernel::transport::emulated
