// Every field of a work slot is untrusted. check_slot() decides in a few compares, explain() puts the refusal
// into words. Both are pure functions of the slot and the tables: no clock, no memory of earlier slots.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "daemon/dataplane/channel_table.h"
#include "proto/abi/status.h"
#include "proto/abi/work_request.h"

namespace mkernel::dataplane {

enum class SlotFault : std::uint8_t {
  kNone = 0,
  kReservedBits,
  kOpcode,
  kUnknownChannel,
  kForeignRing,  ///< the channel's lane belongs to another ring
  kPeerMismatch,
  kLength,
  kLocalRegionMissing,
  kLocalBounds,
  kGpuMemory,  ///< the source is GPU memory and this path only moves host memory
  kRemoteRegionMissing,
  kRemoteBounds,
};

/// `channels` by session-local channel number, null where nothing is open. A group that has failed is checked
/// like any other.
SlotFault check_slot(const abi::WorkSlot& slot, const abi::WorkRequest& request,
                     std::span<Outbound* const> channels);

/// Whose slot it was and where it lay.
struct SlotOrigin {
  std::uint64_t session = 0;
  std::string_view client_name;
  std::uint32_t ring = 0;
  std::uint64_t position = 0;
  abi::RingWriter writer = abi::RingWriter::kThreads;
};

/// The status with which the session ends: session, ring position, channel, peer, then the field at fault
/// with its value and its limit.
Status explain(SlotFault fault, const SlotOrigin& origin, const abi::WorkSlot& slot,
               const abi::WorkRequest& request, std::span<Outbound* const> channels);

}  // namespace mkernel::dataplane
