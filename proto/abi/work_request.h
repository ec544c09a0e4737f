// The slot of a work ring: one put, written by a client (a CPU thread or a GPU), read by the daemon's proxy.
//
//   word 0   63 lap | 62..56 opcode | 55..32 channel      | 31..0 length in bytes
//   word 1   63..48 local region    | 47..0 local offset
//   word 2   63..48 remote region   | 47..0 remote offset
//   word 3   63 lap | 62..56 zero   | 55..32 peer rank    | 31..0 zero
//
// Words 0-1 and 2-3 are two 16-byte halves; a GPU writes each half with one 16-byte store, a CPU writes the
// word that carries no lap first (relaxed) and then the word that does (release). A reader that sees the lap
// it expects in words 0 and 3 (acquire) has the whole record: no fence publishes a slot, and no half record
// can be seen. The lap of position p in a ring of 2^n slots is ((p >> n) & 1) ^ 1, so a ring of zeros is an
// empty ring.
//
// Channels are numbered within the session (group's first_channel + peer * lanes + lane); regions are indices
// in the region map of the channel's group. Every field is untrusted input to the proxy.
#pragma once

#include <cstddef>
#include <cstdint>
#if !defined(__CUDA_ARCH__)
#include <atomic>
#endif

#include "proto/abi/host_device.h"
#include "proto/abi/version.h"

namespace mkernel::abi {

/// 0 is never a valid opcode, so a slot of zeros with a forged lap is refused.
enum class Opcode : std::uint8_t { kPut = 1 };

/// One slot as it lies in the ring.
struct alignas(32) WorkSlot {
  std::uint64_t word[4];
};
static_assert(sizeof(WorkSlot) == 32 && alignof(WorkSlot) == 32);

/// One slot's fields. `length` 0 is a bare signal; local and remote place are then ignored.
struct WorkRequest {
  std::uint8_t opcode;          ///< Opcode
  std::uint32_t channel;        ///< 24 bits, numbered within the session
  std::uint32_t peer;           ///< 24 bits, rank in the channel's group; must be the channel's destination
  std::uint32_t length;         ///< bytes
  std::uint16_t local_region;   ///< index in the group's region map, this rank's column
  std::uint16_t remote_region;  ///< index in the group's region map, the peer's column
  std::uint64_t local_offset;   ///< 48 bits, bytes from the region's begin
  std::uint64_t remote_offset;  ///< 48 bits
};

inline constexpr std::uint64_t kLapBit = 1ULL << 63;
inline constexpr std::uint64_t kOffsetMask = (1ULL << 48) - 1;
inline constexpr std::uint32_t kMax24 = (1U << 24) - 1;

/// The lap bit that position `position` of a ring with 2^`log2_slots` slots carries, at its place in the
/// word.
MK_HOST_DEVICE constexpr std::uint64_t lap_bit(std::uint64_t position, std::uint32_t log2_slots) {
  return (((position >> log2_slots) & 1U) ^ 1U) << 63;
}

MK_HOST_DEVICE constexpr WorkSlot encode(const WorkRequest& request, std::uint64_t lap) {
  return WorkSlot{{
      lap | (static_cast<std::uint64_t>(request.opcode & 0x7fU) << 56) |
          (static_cast<std::uint64_t>(request.channel & kMax24) << 32) | request.length,
      (static_cast<std::uint64_t>(request.local_region) << 48) | (request.local_offset & kOffsetMask),
      (static_cast<std::uint64_t>(request.remote_region) << 48) | (request.remote_offset & kOffsetMask),
      lap | (static_cast<std::uint64_t>(request.peer & kMax24) << 32),
  }};
}

MK_HOST_DEVICE constexpr WorkRequest decode(const WorkSlot& slot) {
  return WorkRequest{
      static_cast<std::uint8_t>((slot.word[0] >> 56) & 0x7fU),
      static_cast<std::uint32_t>((slot.word[0] >> 32) & kMax24),
      static_cast<std::uint32_t>((slot.word[3] >> 32) & kMax24),
      static_cast<std::uint32_t>(slot.word[0]),
      static_cast<std::uint16_t>(slot.word[1] >> 48),
      static_cast<std::uint16_t>(slot.word[2] >> 48),
      slot.word[1] & kOffsetMask,
      slot.word[2] & kOffsetMask,
  };
}

/// Bits of word 3 that must be zero in this version.
inline constexpr std::uint64_t kReservedMask = (0x7fULL << 56) | 0xffffffffULL;

#if !defined(__CUDA_ARCH__)
/// CPU writer's half of the protocol above. One writer per slot at a time.
inline void store_slot(WorkSlot& place, const WorkSlot& value) {
  std::atomic_ref<std::uint64_t>(place.word[1]).store(value.word[1], std::memory_order_relaxed);
  std::atomic_ref<std::uint64_t>(place.word[2]).store(value.word[2], std::memory_order_relaxed);
  std::atomic_ref<std::uint64_t>(place.word[0]).store(value.word[0], std::memory_order_release);
  std::atomic_ref<std::uint64_t>(place.word[3]).store(value.word[3], std::memory_order_release);
}

/// CPU reader's half: takes one snapshot (each word is read once, so a writer that changes its mind cannot
/// slip anything past the checks). Returns false while the slot does not carry `lap` in both halves.
inline bool load_slot(WorkSlot& place, std::uint64_t lap, WorkSlot& snapshot) {
  snapshot.word[0] = std::atomic_ref<std::uint64_t>(place.word[0]).load(std::memory_order_acquire);
  if ((snapshot.word[0] & kLapBit) != lap) return false;
  snapshot.word[3] = std::atomic_ref<std::uint64_t>(place.word[3]).load(std::memory_order_acquire);
  if ((snapshot.word[3] & kLapBit) != lap) return false;
  snapshot.word[1] = std::atomic_ref<std::uint64_t>(place.word[1]).load(std::memory_order_relaxed);
  snapshot.word[2] = std::atomic_ref<std::uint64_t>(place.word[2]).load(std::memory_order_relaxed);
  return true;
}
#endif

}  // namespace mkernel::abi
