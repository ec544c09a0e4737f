// Channel numbers of one session: 24 bits, handed out in runs, one run per group.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "proto/abi/work_request.h"

namespace mkernel::session {

/// Control thread only. Runs are taken round and round the space, so that a number freed by one group is not
/// soon another's: a client that still writes to a group it has left is told so instead of hitting the next.
/// "Round the space" is a few times what is in use, because proxies keep a table that ends at the highest
/// number.
class ChannelSpace {
 public:
  /// First number of a free run of `count` > 0, or nothing when no gap is that long.
  std::optional<std::uint32_t> take(std::uint32_t count);
  void give_back(std::uint32_t first);

 private:
  static constexpr std::uint64_t kEnd = std::uint64_t{abi::kMax24} + 1;
  static constexpr std::uint64_t kLeastRound = 4096;

  std::optional<std::uint32_t> find(std::uint64_t from, std::uint64_t to, std::uint32_t count) const;

  std::map<std::uint64_t, std::uint64_t> runs_;  ///< first -> one past the last
  std::uint64_t in_use_ = 0;
  std::uint64_t cursor_ = 0;
};

}  // namespace mkernel::session
