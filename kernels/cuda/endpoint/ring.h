// Work rings as kernels write them: plain structs. cuda/comm/ring.cuh writes, cuda/launch/rings.h makes
// them.
#pragma once

#include <cstdint>

#include "proto/abi/host_device.h"

namespace mkernel::abi {
struct WorkSlot;
struct RingHead;
}  // namespace mkernel::abi

namespace mkernel::kernels {

/// What the writers of one ring share, in GPU memory. Each word alone: those who look at the tail do not hold
/// up those who claim.
struct RingClaims {
  alignas(128) std::uint64_t head;        ///< first position that nobody has claimed
  alignas(128) std::uint64_t tail;        ///< cached: at most what the proxy has consumed
  alignas(128) std::uint32_t refreshing;  ///< 1 while a thread reads the proxy's own tail

  /// Heads from here on say that the ring takes no more requests: a position was claimed that could neither
  /// be written nor given back, and a reader cannot get past it.
  static constexpr std::uint64_t kClosed = std::uint64_t{1} << 63;
  MK_HOST_DEVICE constexpr bool closed() const { return head >= kClosed; }
};

/// The rings of a session that its GPU writes: ring r begins at slots + (r << log2_slots).
struct DeviceRings {
  abi::WorkSlot* slots = nullptr;        ///< host memory registered with CUDA
  const abi::RingHead* heads = nullptr;  ///< host memory, likewise: the proxies' tails, by ring
  RingClaims* claims = nullptr;          ///< GPU memory, by ring
  std::uint32_t count = 0;
  std::uint32_t log2_slots = 0;
};

}  // namespace mkernel::kernels
