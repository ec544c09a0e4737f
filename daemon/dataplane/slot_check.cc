#include "daemon/dataplane/slot_check.h"

#include <string>

#include "daemon/base/hex.h"

namespace mkernel::dataplane {
namespace {

SlotFault check_source(const abi::WorkRequest& request, const Outbound& channel) {
  const auto& regions = channel.group->regions;
  if (request.local_region >= regions.size() || regions[request.local_region] == nullptr) {
    return SlotFault::kLocalRegionMissing;
  }
  const memory::Region& region = *regions[request.local_region];
  if (!memory::in_bounds(request.local_offset, request.length, region.bytes)) return SlotFault::kLocalBounds;
  if (channel.host_only && region.kind != abi::RegionKind::kHostMemory) return SlotFault::kGpuMemory;
  return SlotFault::kNone;
}

SlotFault check_target(const abi::WorkRequest& request, const Outbound& channel) {
  if (request.remote_region >= channel.remote_bytes.size()) return SlotFault::kRemoteRegionMissing;
  const std::uint64_t bytes = channel.remote_bytes[request.remote_region];
  if (bytes == 0) return SlotFault::kRemoteRegionMissing;
  if (!memory::in_bounds(request.remote_offset, request.length, bytes)) return SlotFault::kRemoteBounds;
  return SlotFault::kNone;
}

std::string range_text(std::uint16_t region, std::uint64_t offset, std::uint32_t length) {
  return "region " + std::to_string(region) + " [" + std::to_string(offset) + ", +" + std::to_string(length) +
         ")";
}

/// Faults that are found before the channel is known to exist.
Status explain_shape(SlotFault fault, const std::string& where, const abi::WorkSlot& slot,
                     const abi::WorkRequest& request, std::size_t channel_count) {
  switch (fault) {
    case SlotFault::kReservedBits:
      return {StatusCode::kInvalidArgument,
              where + "reserved bits of word 3 are set: 0x" + base::hex(slot.word[3] & abi::kReservedMask)};
    case SlotFault::kOpcode:
      return {StatusCode::kInvalidArgument,
              where + "opcode " + std::to_string(request.opcode) + " is unknown; only 1 (put) exists"};
    default:
      return {StatusCode::kNotFound, where + "channel " + std::to_string(request.channel) +
                                         " is not open in this session (channel numbers end at " +
                                         std::to_string(channel_count) + ")"};
  }
}

}  // namespace

SlotFault check_slot(const abi::WorkSlot& slot, const abi::WorkRequest& request,
                     std::span<Outbound* const> channels) {
  if ((slot.word[3] & abi::kReservedMask) != 0) return SlotFault::kReservedBits;
  if (request.opcode != static_cast<std::uint8_t>(abi::Opcode::kPut)) return SlotFault::kOpcode;
  if (request.channel >= channels.size() || channels[request.channel] == nullptr) {
    return SlotFault::kUnknownChannel;
  }
  const Outbound& channel = *channels[request.channel];
  if (!channel.mine) return SlotFault::kForeignRing;
  if (request.peer != channel.target) return SlotFault::kPeerMismatch;
  if (request.length == 0) return SlotFault::kNone;  // a bare signal names no memory
  if (request.length > channel.max_put_bytes) return SlotFault::kLength;
  const SlotFault source = check_source(request, channel);
  return source != SlotFault::kNone ? source : check_target(request, channel);
}

Status explain(SlotFault fault, const SlotOrigin& origin, const abi::WorkSlot& slot,
               const abi::WorkRequest& request, std::span<Outbound* const> channels) {
  if (fault == SlotFault::kNone) return {};
  std::string where = "session " + std::to_string(origin.session) + " (" + std::string(origin.client_name) +
                      "): " + (origin.writer == abi::RingWriter::kGpu ? "GPU ring " : "ring ") +
                      std::to_string(origin.ring) + " slot " + std::to_string(origin.position) + ": ";
  if (fault <= SlotFault::kUnknownChannel) {
    return explain_shape(fault, where, slot, request, channels.size());
  }
  const Outbound& channel = *channels[request.channel];
  where += "channel " + std::to_string(request.channel) + " lane " + std::to_string(channel.lane) + " (" +
           route_text(channel) + "): ";
  const std::string source =
      "local " + range_text(request.local_region, request.local_offset, request.length);
  const std::string target = "region of rank " + std::to_string(channel.target) + ": " +
                             range_text(request.remote_region, request.remote_offset, request.length);
  const auto capacity = std::to_string(channel.group->port->region_capacity);
  switch (fault) {
    case SlotFault::kForeignRing:
      return {StatusCode::kInvalidArgument, where + "lane " + std::to_string(channel.lane) +
                                                " does not belong to ring " + std::to_string(origin.ring)};
    case SlotFault::kPeerMismatch:
      return {StatusCode::kInvalidArgument, where + "slot names peer rank " + std::to_string(request.peer) +
                                                ", the channel leads to rank " +
                                                std::to_string(channel.target)};
    case SlotFault::kLength:
      return {StatusCode::kOutOfRange, where + "length " + std::to_string(request.length) +
                                           " exceeds the limit of " + std::to_string(channel.max_put_bytes) +
                                           " bytes per put"};
    case SlotFault::kLocalRegionMissing:
      return {StatusCode::kNotFound,
              where + source + ": nothing is registered at that index (capacity " + capacity + ")"};
    case SlotFault::kLocalBounds:
      return {StatusCode::kOutOfRange,
              where + source + " exceeds its " +
                  std::to_string(channel.group->regions[request.local_region]->bytes) + " bytes"};
    case SlotFault::kGpuMemory:
      return {StatusCode::kFailedPrecondition,
              where + source + " is GPU memory; this path moves host memory only"};
    case SlotFault::kRemoteRegionMissing:
      return {StatusCode::kNotFound,
              where + target + ": the rank registered nothing at that index (capacity " + capacity + ")"};
    default:
      return {StatusCode::kOutOfRange, where + target + " exceeds the " +
                                           std::to_string(channel.remote_bytes[request.remote_region]) +
                                           " bytes that the rank registered"};
  }
}

}  // namespace mkernel::dataplane
