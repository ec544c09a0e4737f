#include "daemon/transport/efa/channel_numbers.h"

#include "daemon/transport/efa/immediate.h"

namespace mkernel::transport::efa {

bool ChannelNumbers::any_free() const {
  return numbers_.size() < kMaxChannels || !free_.empty();
}

std::optional<std::uint32_t> ChannelNumbers::take(Inbound& channel) {
  if (numbers_.size() < kMaxChannels) {
    numbers_.push_back({.channel = &channel});
    return static_cast<std::uint32_t>(numbers_.size() - 1);
  }
  if (free_.empty()) return std::nullopt;
  const std::uint32_t number = free_.front();
  free_.pop_front();
  numbers_[number] = {.channel = &channel};
  return number;
}

void ChannelNumbers::close(std::uint32_t number) {
  numbers_[number].channel = nullptr;
  ++closing_;
  free_if_over(number);
}

bool ChannelNumbers::release(std::uint32_t number) {
  // A number that is free keeps `released`, so it is not freed twice.
  if (number >= numbers_.size() || numbers_[number].channel != nullptr || numbers_[number].released) {
    return false;
  }
  numbers_[number].released = true;
  free_if_over(number);
  return true;
}

void ChannelNumbers::set_acknowledging(std::uint32_t number, bool is) {
  numbers_[number].acknowledging = is;
  if (!is) free_if_over(number);
}

void ChannelNumbers::free_if_over(std::uint32_t number) {
  const Number& entry = numbers_[number];
  if (entry.channel != nullptr || !entry.released || entry.acknowledging) return;
  free_.push_back(number);
  --closing_;
}

void ChannelNumbers::clear() {
  numbers_.clear();
  free_.clear();
  closing_ = 0;
}

}  // namespace mkernel::transport::efa
