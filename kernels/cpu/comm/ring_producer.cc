#include "kernels/cpu/comm/ring_producer.h"

namespace mkernel::kernels {

bool RingProducer::claim(std::uint64_t& position) {
  const std::uint64_t slots = std::uint64_t{1} << ring_.log2_slots;
  position = ring_.head->load(std::memory_order_relaxed);
  while (true) {
    // Acquire on the tail: the proxy has read the slot's old content before we write over it.
    if (position >= cached_tail_.load(std::memory_order_acquire) + slots) {
      const std::uint64_t tail = load_acquire(*ring_.tail);
      cached_tail_.store(tail, std::memory_order_release);
      if (position >= tail + slots) return false;
    }
    if (ring_.head->compare_exchange_weak(position, position + 1, std::memory_order_relaxed)) return true;
  }
}

Status RingProducer::push(const abi::WorkRequest& request, const WaitSite& site, const WaitScope& scope) {
  std::uint64_t position = 0;
  const auto room = [&]() -> std::uint64_t { return claim(position) ? 1 : 0; };
  MK_RETURN_IF_ERROR(wait_until(room, 1, {site.role, "room in the work ring", site.peer, site.lane}, scope));
  const std::uint64_t slots = std::uint64_t{1} << ring_.log2_slots;
  abi::store_slot(ring_.slots[position & (slots - 1)],
                  abi::encode(request, abi::lap_bit(position, ring_.log2_slots)));
  return {};
}

}  // namespace mkernel::kernels
