#include "daemon/transport/emulated/receiver.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include "daemon/base/clock.h"
#include "proto/ipc/packet.h"

namespace mkernel::transport::emulated {
namespace {

constexpr std::size_t kMaxSources = 4096;  ///< announced regions of one peer

// What engines may have to do for one link at a time: enough to keep them busy, and no more than close() may
// have to wait for (about a millisecond between host and GPU).
constexpr std::size_t kMaxFlights = 256;
constexpr std::uint64_t kMaxFlyingBytes = std::uint64_t{64} << 20;
/// Starting a copy takes the CPU no longer than copying so many bytes itself.
constexpr std::uint64_t kStartCost = 16 << 10;
/// An engine that takes longer has failed; what it works on stays mapped.
constexpr std::chrono::seconds kEnginePatience{5};

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
  wait_for_arrivals_of(at->second);
  channels_.erase(at->second);
  key_of_.erase(at);
}

void Receiver::connected(int socket, ipc::Mapping fence) {
  lost();
  socket_ = socket;
  fence_ = std::move(fence);
  for (auto& [key, channel] : channels_) {
    channel->held_due = true;
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
  for (Flight& flight : flights_) flight.abandoned = true;
  abandoned_ = flights_.size();
  for (const Arrival& put : early_) {
    if (Channel* channel = find_key(put.channel)) channel->flying.reset(put.number % kWindow);
  }
  early_.clear();
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
  auto region = context_.copier.import(
      {static_cast<abi::RegionKind>(packet.kind), fd.get(), packet.offset, packet.bytes, packet.ipc});
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
  if (!memory::in_bounds(put.source_offset, put.length, source->second->bytes)) {
    return {StatusCode::kOutOfRange, "source [" + std::to_string(put.source_offset) + ", +" +
                                         std::to_string(put.length) + ") lies outside region " +
                                         std::to_string(put.source_region) + " of " +
                                         std::to_string(source->second->bytes) + " bytes"};
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
  // A time-out shorter than the copy, or a double: comes in while an engine has the put, or the wire.
  if (announced.verdict == ReceiveWindow::Verdict::kNew && channel.flying.test(sequence_ % kWindow)) {
    ++context_.faults.duplicates_discarded;
    return false;
  }
  Status placed;
  if (announced.verdict == ReceiveWindow::Verdict::kOutside) {
    placed = {StatusCode::kOutOfRange, "it is more than " + std::to_string(channel.window.capacity()) +
                                           " ahead of the " + std::to_string(channel.published) +
                                           " in place"};
  } else if (put.length > 0) {
    placed = place(channel, put);
  }
  if (placed.ok()) return true;
  refuse(channel, put.channel, sequence_, placed);
  return false;
}

void Receiver::refuse(Channel& channel, ChannelKey key, std::uint64_t number, const Status& why) {
  channel.failure = why.with_context(context_.node() + " refused put " + std::to_string(number));
  channel.held_due = true;
  mark(channel, key);
}

bool Receiver::step(std::uint64_t& budget, Time now) {
  const PutEntry& put = batch_.puts[next_];
  Channel* channel = find_key(put.channel);
  if (channel == nullptr || !channel->failure.ok()) return true;
  if (!begun_ && !begin(*channel, put)) return true;
  begun_ = true;
  if (put.length > 0) {
    auto started =
        context_.copier.start(*sources_.at(put.source_region), put.source_offset + copied_,
                              {target_.region, target_.offset + copied_}, put.length - copied_, budget);
    if (!started.ok()) {
      refuse(*channel, put.channel, sequence_, started.status());
      return true;
    }
    copied_ += started->bytes;
    budget -= std::min(budget, started->over() ? started->bytes : kStartCost);
    if (!started->over()) {
      take_off(*channel, started->ticket);
      return true;
    }
    if (copied_ < put.length) return false;
  }
  arrive(*channel, arrival(), now);
  return true;
}

Receiver::Arrival Receiver::arrival() const {
  const PutEntry& put = batch_.puts[next_];
  return {put.channel, sequence_, batch_.fence, from_ticks(put.arrives)};
}

void Receiver::arrive(Channel& channel, const Arrival& put, Time now) {
  const bool early = put.at > now;
  channel.flying.set(put.number % kWindow, early);
  if (!early) return accept(channel, put);
  const auto later = [](Time at, const Arrival& other) { return at < other.at; };
  early_.insert(std::upper_bound(early_.begin(), early_.end(), put.at, later), put);
}

void Receiver::accept(Channel& channel, const Arrival& put) {
  // A read-modify-write, so that the copy is complete before the count is read (see FencePage).
  if (std::atomic_ref(fence_.at<FencePage>(0)->closes).fetch_add(0, std::memory_order_acq_rel) != put.fence) {
    ++context_.faults.fenced;
    return;
  }
  channel.window.accept(put.number);
  mark(channel, put.channel);
}

void Receiver::take_off(Channel& channel, const memory::CopyTicket& ticket) {
  const PutEntry& put = batch_.puts[next_];
  channel.flying.set(sequence_ % kWindow);
  flying_bytes_ += put.length;
  flights_.push_back({.arrival = arrival(),
                      .bytes = put.length,
                      .target = target_.region,
                      .source = sources_.at(put.source_region),
                      .ticket = ticket});
}

void Receiver::land(const Flight& flight, const Status& engines, Time now) {
  const Arrival& put = flight.arrival;
  flying_bytes_ -= flight.bytes;
  abandoned_ -= flight.abandoned ? 1 : 0;
  Channel* channel = find_key(put.channel);
  if (channel == nullptr) return;
  channel->flying.reset(put.number % kWindow);
  if (!engines.ok() && channel->failure.ok()) refuse(*channel, put.channel, put.number, engines);
  if (!flight.abandoned && channel->failure.ok()) arrive(*channel, put, now);
}

std::size_t Receiver::collect(Time now) {
  const std::size_t before = flights_.size() + early_.size();
  if (before == 0) return 0;
  const Status engines = copying() ? context_.copier.poll() : Status{};
  std::erase_if(flights_, [&](const Flight& flight) {
    if (engines.ok() && !context_.copier.done(flight.ticket)) return false;
    land(flight, engines, now);
    return true;
  });
  for (; !early_.empty() && early_.front().at <= now; early_.pop_front()) {
    const Arrival& put = early_.front();
    Channel* channel = find_key(put.channel);
    if (channel != nullptr && channel->failure.ok()) arrive(*channel, put, now);
  }
  publish();
  return before - flights_.size() - early_.size();
}

std::optional<Time> Receiver::next_arrival() const {
  return early_.empty() ? std::nullopt : std::optional(early_.front().at);
}

void Receiver::wait_for_arrivals_of(ChannelKey key) {
  std::erase_if(early_, [key](const Arrival& put) { return put.channel == key; });
  const auto of_channel = [key](const Flight& flight) { return flight.arrival.channel == key; };
  const auto limit = base::Clock::now() + kEnginePatience;
  while (context_.copier.poll().ok() && base::Clock::now() < limit &&
         std::any_of(flights_.begin(), flights_.end(), [&](const Flight& flight) {
           return of_channel(flight) && !context_.copier.done(flight.ticket);
         })) {
  }
  // Whoever opens the channel's key anew must not meet them.
  std::erase_if(flights_, [&](const Flight& flight) {
    if (!of_channel(flight)) return false;
    flying_bytes_ -= flight.bytes;
    abandoned_ -= flight.abandoned ? 1 : 0;
    return true;
  });
}

bool Receiver::full() const {
  return flights_.size() >= kMaxFlights || flying_bytes_ >= kMaxFlyingBytes;
}

bool Receiver::writes(const memory::Region& region) const {
  const bool half_copied = begun_ && batch_.puts[next_].length > 0 && target_.region == &region;
  return half_copied || std::any_of(flights_.begin(), flights_.end(),
                                    [&](const Flight& flight) { return flight.target == &region; });
}

std::size_t Receiver::process(std::uint64_t& budget, Time now) {
  std::size_t finished = 0;
  while (busy() && !full() && step(budget, now)) {
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
  // A replay would meet its own put, which the last connection left to an engine, and be discarded as a
  // duplicate: not a word until that has landed.
  if (dirty_.empty() || abandoned_ > 0) return {};
  MK_RETURN_IF_ERROR(send_counts(PacketType::kHeld, &Channel::held_due));
  MK_RETURN_IF_ERROR(send_counts(PacketType::kAcks, &Channel::ack_due));
  for (const ChannelKey key : dirty_) {
    Channel* channel = find_key(key);
    if (channel == nullptr || channel->failure.ok() || !channel->held_due) continue;
    MK_RETURN_IF_ERROR(send_nack(key, *channel));
    channel->held_due = false;
  }
  for (const ChannelKey key : dirty_) {
    if (Channel* channel = find_key(key)) channel->dirty = false;
  }
  dirty_.clear();
  return {};
}

}  // namespace mkernel::transport::emulated
