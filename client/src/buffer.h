// Memory of a group: what SymmetricBuffer, HostBuffer and an operation's workspace are made of.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/src/group.h"
#include "client/src/memory.h"
#include "kernels/base/views.h"

namespace mkernel::client {

/// A registered region and its mappings. The destructor gives the region back: at once when it is this rank's
/// alone, at the next collective call when it is collective.
struct BufferState {
  BufferState(std::shared_ptr<GroupCore> group_core, std::uint32_t index, bool is_collective)
      : group(std::move(group_core)), region(index), collective(is_collective) {}
  ~BufferState();
  const Home& home() const { return group->home(); }

  std::shared_ptr<GroupCore> group;
  std::uint32_t region;
  bool collective;
  bool registered = false;
  std::uint64_t bytes = 0;  ///< asked for; what is mapped may be more
  MappedMemory mine;
  std::vector<MappedMemory> peers;  ///< by local rank; this rank's own is empty
  kernels::SymmetricView view;      ///< collective ones only
};

/// This rank's last step of a collective creation; returns what it has set up, which must be the same on
/// every rank.
using Complete = std::function<Result<std::string>(const BufferState&)>;

/// **Collective**: makes, registers and maps the same `bytes` (> 0) of `memory` on every rank, then lets
/// every rank take its last step and agree on it. Succeeds on every rank or on none.
Result<std::unique_ptr<BufferState>> open_symmetric(const std::shared_ptr<GroupCore>& group,
                                                    MemorySource& memory, std::uint64_t bytes,
                                                    const Complete& complete);

/// Whose memfd is registered: the library's own is registered once, the user's perhaps again.
enum class Memfd : std::uint8_t { kOurs, kUsers };

/// This rank alone: registers [offset, offset + bytes) of a sealed memfd.
Result<std::unique_ptr<BufferState>> open_host(const std::shared_ptr<GroupCore>& group, Memfd whose,
                                               int memfd, std::uint64_t offset, std::uint64_t bytes);

}  // namespace mkernel::client
