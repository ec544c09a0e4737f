// The writing side of a work ring on the GPU; the counterpart of cpu/comm/endpoint.h.
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx/fence.cuh"
#include "kernels/cuda/ptx/global.cuh"
#include "kernels/cuda/sync/wait.cuh"
#include "mkernel/device_endpoint.h"
#include "proto/abi/region_map.h"
#include "proto/abi/work_request.h"

namespace mkernel::kernels {

/// One ring, by any number of threads of any number of kernels of this GPU. Positions are claimed by an
/// atomic add: with a compare-and-swap (as on the CPU) one of many writers would win per round trip to L2,
/// about 1.5 million a second.
class DeviceRing {
 public:
  __device__ __forceinline__ DeviceRing(const DeviceRings& rings, std::uint32_t ring)
      : slots_(rings.slots + (std::uint64_t{ring} << rings.log2_slots)),
        tail_(&rings.heads[ring].tail),
        claims_(rings.claims + ring),
        log2_slots_(rings.log2_slots) {}

  /// Writes one slot; relaxed, no fence: the lap bits publish it. What the request refers to must have been
  /// released to the system by somebody whom this thread has synchronised with (`released`). False when there
  /// was no room until the wait gave up; then nothing was written, and the position is free again or the ring
  /// closed.
  __device__ __forceinline__ bool push(const abi::WorkRequest& request, const DeviceWaitSite& site,
                                       const DeviceWaitScope& scope, ptx::SysReleased released) const {
    const std::uint64_t position = ptx::atom_add_relaxed_gpu(&claims_->head, 1);
    if (room() <= position && !wait_for_room(position, site, scope)) return false;
    const abi::WorkSlot slot = abi::encode(request, abi::lap_bit(position, log2_slots_));
    std::uint64_t* place = slots_[position & (slots() - 1)].word;
    ptx::st_relaxed_sys_v2(place, slot.word[0], slot.word[1], released);
    ptx::st_relaxed_sys_v2(place + 2, slot.word[2], slot.word[3], released);
    return true;
  }

 private:
  __device__ __forceinline__ std::uint64_t slots() const { return std::uint64_t{1} << log2_slots_; }

  /// First position that there is no room for, as far as the GPU knows. Acquire: the proxy has read a slot's
  /// old content before we write over it.
  __device__ __forceinline__ std::uint64_t room() const {
    return ptx::ld_acquire_gpu(&claims_->tail) + slots();
  }

  /// Reads the proxy's tail, unless another thread is about to: one at a time, as with everything in host
  /// memory.
  __device__ __forceinline__ void refresh() const {
    if (ptx::ld_relaxed_gpu(&claims_->refreshing) != 0) return;
    if (ptx::atom_exch_acquire_gpu(&claims_->refreshing, 1U) != 0) return;
    ptx::st_release_gpu(&claims_->tail, ptx::ld_acquire_sys(tail_));
    ptx::st_release_gpu(&claims_->refreshing, 0U);
  }

  /// Not inline: it is rare, and its registers are those of a wait.
  ///
  /// Who gives up gives its position back, and only the last one can be given back: those who give up unwind
  /// from the end. They wait for those behind once more as long, at most; then nobody has read the ring for
  /// two deadlines, and it is closed.
  __device__ __noinline__ bool wait_for_room(std::uint64_t position, const DeviceWaitSite& site,
                                             const DeviceWaitScope& scope) const {
    const auto seen = [this, position] {
      if (room() <= position) refresh();
      return room();
    };
    if (position >= RingClaims::kClosed) {
      report_failed_wait(*scope.control, {site.role, DeviceTag::kRingClosed, site.peer, site.index},
                         RingClaims::kClosed, position, 0);
      return false;
    }
    if (wait_until(seen, position + 1, site, scope)) return true;
    const std::uint64_t begin = ptx::globaltimer(), patience = bounded_wait_ns(scope.deadline_ns);
    while (seen() <= position) {
      const std::uint64_t head = ptx::atom_cas_relaxed_gpu(&claims_->head, position + 1, position);
      if (head == position + 1 || head >= RingClaims::kClosed) return false;
      if (ptx::globaltimer() - begin < patience) continue;
      ptx::atom_max_relaxed_gpu(&claims_->head, RingClaims::kClosed);
      return false;
    }
    return true;
  }

  abi::WorkSlot* slots_;
  const std::uint64_t* tail_;
  RingClaims* claims_;
  std::uint32_t log2_slots_;
};

}  // namespace mkernel::kernels
