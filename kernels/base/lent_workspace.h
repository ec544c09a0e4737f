// A workspace that the operations of a group take turns with. Plain structs and functions, for host and
// device.
#pragma once

#include <cstdint>

#include "proto/abi/host_device.h"

namespace mkernel::kernels {

/// First bytes of a lent workspace, zeroed once; the executor's own memory. Behind it lie two halves of equal
/// length: launches use them in turn, whichever operations they are of.
///
/// Two halves are enough without credits. A launch ends only when it has seen something of the same launch
/// from every rank that writes into this one's memory: those of its node and its rail peers. So a rank in
/// launch g + 2, which uses the half of launch g, knows that all of them have begun launch g + 1 and have
/// therefore ended launch g. Hence launches of a group follow each other, in the same order on every rank.
/// Counts do not lie here: each operation has a workspace of its own for them.
struct LentControl {
  std::uint64_t launches;  ///< that have ended, of all operations
  std::uint32_t stopped;   ///< nonzero: one of them failed, and later ones do nothing
  std::uint32_t running;   ///< cpu executor, nonzero: a launch of some operation is under way
};

inline constexpr std::uint64_t kLentAlignment = 128;

/// Bytes of a lent workspace whose halves hold `half_bytes`; none where they hold nothing.
MK_HOST_DEVICE constexpr std::uint64_t lent_workspace_bytes(std::uint64_t half_bytes) {
  return half_bytes == 0
             ? 0
             : kLentAlignment + 2 * ((half_bytes + kLentAlignment - 1) / kLentAlignment * kLentAlignment);
}
/// Bytes of a half of such a workspace of `bytes`.
MK_HOST_DEVICE constexpr std::uint64_t lent_half_bytes(std::uint64_t bytes) {
  return (bytes - kLentAlignment) / 2 / kLentAlignment * kLentAlignment;
}
/// Where the half begins that launch number `launches` uses.
MK_HOST_DEVICE constexpr std::uint64_t lent_half_at(std::uint64_t launches, std::uint64_t half_bytes) {
  return kLentAlignment + (launches & 1) * half_bytes;
}

}  // namespace mkernel::kernels
