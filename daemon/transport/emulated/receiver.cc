#include "daemon/transport/emulated/receiver.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include "proto/ipc/packet.h"

namespace mkernel::transport::emulated {
namespace {

constexpr std::size_t kMaxSources = 4096;  ///< announced regions of one peer

}  // namespace

Receiver::Channel* Receiver::find_key(ChannelKey key) {
  const auto at = channels_.find(key);
  return at == channels_.end() ? nullptr : at->second.get();
}

Status Receiver::open(ChannelId id, ChannelKey key) {
  if (key_of_.contains(id) || find_key(key) != nullptr) {
    return {StatusCode::kAlreadyExists, "emulated: inbound channel " + std::to_string(id) + " (key " +
                                            std::to_string(key) + ") from " + peer_ + " is open already"};
  }
  auto channel = std::make_unique<Channel>();
  channel->id = id;
  mark(*channel, key);
  channels_[key] = std::move(channel);
  key_of_[id] = key;
  return {};
}

void Receiver::close(ChannelId id) {
  const auto at = key_of_.find(id);
  if (at == key_of_.end()) return;
  if (busy() && batch_.puts[next_].channel == at->second) restart();  // half copied: stays so
  channels_.erase(at->second);
  key_of_.erase(at);
}

void Receiver::connected(int socket, ipc::Mapping fence) {
  lost();
  socket_ = socket;
  fence_ = std::move(fence);
  for (auto& [key, channel] : channels_) {
    channel->resume_due = true;
    mark(*channel, key);
  }
}

void Receiver::lost() {
  socket_ = -1;
  batch_.head.count = 0;
  next_ = 0;
  restart();
  sources_.clear();
  fence_ = {};
}

void Receiver::restart() {
  begun_ = false;
  copied_ = 0;
}

void Receiver::mark(Channel& channel, ChannelKey key) {
  if (channel.dirty) return;
  channel.dirty = true;
  dirty_.push_back(key);
}

Status Receiver::on_announce(const AnnouncePacket& packet, const ipc::UniqueFd& fd) {
  const std::string what = "emulated: region " + std::to_string(packet.region) + " announced by " + peer_;
  if (sources_.size() >= kMaxSources) {
    return {StatusCode::kResourceExhausted,
            what + ": it has " + std::to_string(kMaxSources) + " announced already"};
  }
  auto region = context_.copier.import(fd.get(), packet.offset, packet.bytes);
  if (!region.ok()) return region.status().with_context(what);
  sources_.insert_or_assign(packet.region, std::move(region).value());
  return {};
}

void Receiver::on_puts(const PutsPacket& packet) {
  batch_ = packet;
  next_ = 0;
  restart();
}

Status Receiver::place(Channel& channel, const PutEntry& put) {
  const auto source = sources_.find(put.source_region);
  if (source == sources_.end()) {
    return {StatusCode::kNotFound,
            "source region " + std::to_string(put.source_region) + " was not announced"};
  }
  if (!memory::in_bounds(put.source_offset, put.length, source->second.bytes())) {
    return {StatusCode::kOutOfRange, "source [" + std::to_string(put.source_offset) + ", +" +
                                         std::to_string(put.length) + ") lies outside region " +
                                         std::to_string(put.source_region) + " of " +
                                         std::to_string(source->second.bytes()) + " bytes"};
  }
  target_ = {};
  MK_RETURN_IF_ERROR(
      context_.sink->place(channel.id, put.target_region, put.target_offset, put.length, target_));
  if (!context_.copier.supports(target_.region->kind)) {
    return {StatusCode::kUnimplemented,
            "target region " + std::to_string(put.target_region) +
                " is of a kind of memory that the emulated transport cannot copy to"};
  }
  return {};
}

bool Receiver::begin(Channel& channel, const PutEntry& put) {
  const auto announced = channel.window.announce(put.sequence);
  if (announced.verdict == ReceiveWindow::Verdict::kDuplicate) {
    ++context_.faults.duplicates_discarded;
    channel.ack_due = true;  // the acknowledgement may have come too late for the peer's time-out
    mark(channel, put.channel);
    return false;
  }
  sequence_ = announced.number;
  Status placed;
  if (announced.verdict == ReceiveWindow::Verdict::kOutside) {
    placed = {StatusCode::kOutOfRange, "it is more than " + std::to_string(channel.window.capacity()) +
                                           " ahead of the " + std::to_string(channel.published) +
                                           " in place"};
  } else if (put.length > 0) {
    placed = place(channel, put);
  }
  if (placed.ok()) return true;
  channel.failure = placed.with_context(context_.node() + " refused put " + std::to_string(sequence_));
  channel.resume_due = true;
  mark(channel, put.channel);
  return false;
}

bool Receiver::step(std::uint64_t& budget) {
  const PutEntry& put = batch_.puts[next_];
  Channel* channel = find_key(put.channel);
  if (channel == nullptr || !channel->failure.ok()) return true;
  if (!begun_ && !begin(*channel, put)) return true;
  begun_ = true;
  const std::uint64_t piece = std::min(budget, put.length - copied_);
  if (piece > 0) {
    const Target at{target_.region, target_.offset + copied_};
    context_.copier.copy(sources_.at(put.source_region), put.source_offset + copied_, at, piece);
    copied_ += piece;
    budget -= piece;
  }
  if (copied_ < put.length) return false;
  // A read-modify-write, so that the copy above is complete before the count is read (see FencePage).
  if (std::atomic_ref(fence_.at<FencePage>(0)->closes).fetch_add(0, std::memory_order_acq_rel) !=
      batch_.fence) {
    ++context_.faults.fenced;
    return true;
  }
  channel->window.accept(sequence_);
  mark(*channel, put.channel);
  return true;
}

std::size_t Receiver::process(std::uint64_t& budget) {
  std::size_t finished = 0;
  while (busy() && step(budget)) {
    ++next_;
    restart();
    ++finished;
  }
  publish();
  return finished;
}

void Receiver::publish() {
  // By index and looked up anew each time: the sink may close channels while it hears of arrivals.
  for (std::size_t i = 0; i < dirty_.size(); ++i) {
    Channel* channel = find_key(dirty_[i]);
    if (channel == nullptr || channel->window.prefix() == channel->published) continue;
    channel->published = channel->window.prefix();
    channel->ack_due = true;
    context_.sink->arrived(channel->id, channel->published);
  }
}

Status Receiver::send_nack(ChannelKey key, const Channel& channel) {
  NackPacket packet{.head = {PacketType::kNack, 0, 0},
                    .channel = key,
                    .code = static_cast<std::uint32_t>(channel.failure.code())};
  ipc::copy_text(packet.text, channel.failure.text());
  return ipc::send_packet(socket_, std::as_bytes(std::span(&packet, 1)));
}

Status Receiver::send_counts(PacketType type, bool Channel::*due) {
  CountsPacket packet{.head = {type, 0, 0}};
  std::array<Channel*, CountsPacket::kEntries> told;
  for (std::size_t i = 0; i < dirty_.size(); ++i) {
    Channel* channel = find_key(dirty_[i]);
    if (channel != nullptr && channel->*due && channel->failure.ok()) {
      told[packet.head.count] = channel;
      packet.counts[packet.head.count++] = {dirty_[i], channel->published};
    }
    const bool last = i + 1 == dirty_.size();
    if (packet.head.count == 0 || (packet.head.count < CountsPacket::kEntries && !last)) continue;
    const std::size_t bytes = offsetof(CountsPacket, counts) + packet.head.count * sizeof(CountEntry);
    MK_RETURN_IF_ERROR(ipc::send_packet(socket_, std::as_bytes(std::span(&packet, 1)).first(bytes)));
    for (std::size_t k = 0; k < packet.head.count; ++k) told[k]->*due = false;
    packet.head.count = 0;
  }
  return {};
}

Status Receiver::flush() {
  if (dirty_.empty()) return {};
  MK_RETURN_IF_ERROR(send_counts(PacketType::kResumes, &Channel::resume_due));
  MK_RETURN_IF_ERROR(send_counts(PacketType::kAcks, &Channel::ack_due));
  for (const ChannelKey key : dirty_) {
    Channel* channel = find_key(key);
    if (channel == nullptr || channel->failure.ok() || !channel->resume_due) continue;
    MK_RETURN_IF_ERROR(send_nack(key, *channel));
    channel->resume_due = false;
  }
  for (const ChannelKey key : dirty_) {
    if (Channel* channel = find_key(key)) channel->dirty = false;
  }
  dirty_.clear();
  return {};
}

}  // namespace mkernel::transport::emulated
