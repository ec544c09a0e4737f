#include "daemon/transport/emulated/shaper.h"

#include <algorithm>

namespace mkernel::transport::emulated {

LinkShaper::Passage LinkShaper::transmit(std::uint32_t bytes, Time now) {
  const Time leaves = std::max(wire_free_, now);
  wire_free_ = leaves;
  if (shape_.bandwidth_gbytes > 0) {
    wire_free_ += std::chrono::nanoseconds(static_cast<std::int64_t>(bytes / shape_.bandwidth_gbytes));
  }
  return {leaves, wire_free_ + shape_.latency};
}

void LinkShaper::enqueue(Parcel parcel, const Passage& passage, bool hold) {
  if (passage.arrives > passage.leaves) parcel.entry.arrives = to_ticks(passage.arrives);
  if (!hold) {
    queue_.push_back({parcel, passage.leaves + std::max<Clock::duration>(shape_.latency - kHandOver, {})});
    return;
  }
  const auto behind = static_cast<std::uint32_t>(1 + random_() % kMaxOvertakers);
  held_.push_back({parcel, passage.arrives + kHoldTime, behind});
}

std::uint32_t LinkShaper::offer(const Parcel& parcel, Time now) {
  const Passage passage = transmit(parcel.entry.length, now);
  if (happens(shape_.drop)) {
    ++counters_.dropped;
    return 0;
  }
  const bool hold = happens(shape_.reorder);
  counters_.reordered += hold ? 1 : 0;
  enqueue(parcel, passage, hold);
  if (!happens(shape_.duplicate)) return 1;
  ++counters_.duplicated;
  // The second copy takes its own way: often it comes in long after the first was acknowledged.
  enqueue(parcel, transmit(parcel.entry.length, now), happens(0.5));
  return 2;
}

void LinkShaper::release_held(Time now) {
  std::erase_if(held_, [&](const Held& held) {
    if (held.behind > 0 && held.release > now) return false;
    std::int64_t& arrives = overtaken_.emplace_back(held.parcel).entry.arrives;
    arrives = std::max(arrives, last_arrives_);
    return true;
  });
}

const Parcel* LinkShaper::front(Time now) {
  if (!held_.empty()) release_held(now);
  if (!overtaken_.empty()) return &overtaken_.front();
  if (!queue_.empty() && queue_.front().release <= now) return &queue_.front().parcel;
  return nullptr;
}

void LinkShaper::pop() {
  if (!overtaken_.empty()) {
    overtaken_.pop_front();
    return;
  }
  last_arrives_ = queue_.front().parcel.entry.arrives;
  queue_.pop_front();
  for (Held& held : held_) held.behind -= held.behind > 0 ? 1 : 0;
}

std::optional<Time> LinkShaper::next_release() const {
  if (!overtaken_.empty()) return Time::min();
  std::optional<Time> next;
  if (!queue_.empty()) next = queue_.front().release;
  for (const Held& held : held_) next = base::sooner(next, held.release);
  return next;
}

void LinkShaper::clear() {
  queue_.clear();
  held_.clear();
  overtaken_.clear();
  wire_free_ = {};
  last_arrives_ = 0;
}

void LinkShaper::forget(ChannelId channel) {
  std::erase_if(queue_, [&](const Timed& timed) { return timed.parcel.channel == channel; });
  std::erase_if(held_, [&](const Held& held) { return held.parcel.channel == channel; });
  std::erase_if(overtaken_, [&](const Parcel& parcel) { return parcel.channel == channel; });
}

}  // namespace mkernel::transport::emulated
