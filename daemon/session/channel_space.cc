#include "daemon/session/channel_space.h"

#include <algorithm>

namespace mkernel::session {

std::optional<std::uint32_t> ChannelSpace::take(std::uint32_t count) {
  const std::uint64_t round = std::min(kEnd, std::max(kLeastRound, 4 * (in_use_ + count)));
  auto first = find(cursor_, round, count);
  if (!first) first = find(0, round, count);
  if (!first) first = find(0, kEnd, count);
  if (!first) return std::nullopt;
  cursor_ = std::uint64_t{*first} + count;
  runs_[*first] = cursor_;
  in_use_ += count;
  return first;
}

void ChannelSpace::give_back(std::uint32_t first) {
  const auto run = runs_.find(first);
  if (run == runs_.end()) return;
  in_use_ -= run->second - run->first;
  runs_.erase(run);
}

std::optional<std::uint32_t> ChannelSpace::find(std::uint64_t from, std::uint64_t to,
                                                std::uint32_t count) const {
  for (const auto& [first, end] : runs_) {
    if (end <= from) continue;
    if (first >= from + count) break;
    from = std::max(from, end);
  }
  if (from + count > to) return std::nullopt;
  return static_cast<std::uint32_t>(from);
}

}  // namespace mkernel::session
