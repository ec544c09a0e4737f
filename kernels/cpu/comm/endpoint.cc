#include "kernels/cpu/comm/endpoint.h"

#include <algorithm>

namespace mkernel::kernels {

std::uint64_t RingProducer::try_claim(std::uint64_t count, std::uint64_t& position) {
  position = ring_.head->load(std::memory_order_relaxed);
  while (true) {
    // Acquire on the tail: the proxy has read the slots' old content before we write over it.
    if (position + count > cached_tail_.load(std::memory_order_acquire) + slots()) {
      const std::uint64_t tail = load_acquire(*ring_.tail);
      cached_tail_.store(tail, std::memory_order_release);
      if (position + count > tail + slots()) return tail + slots() - position;
    }
    if (ring_.head->compare_exchange_weak(position, position + count, std::memory_order_relaxed))
      return count;
  }
}

Status RingProducer::claim(std::uint64_t count, std::uint64_t& position, const WaitSite& site,
                           const WaitScope& scope) {
  const auto room = [&] { return try_claim(count, position); };
  return wait_until(room, count,
                    {.role = site.role,
                     .tag = "room in the work ring",
                     .peer = site.peer,
                     .lane = site.lane,
                     .of_peer = false},
                    scope);
}

void RingProducer::write(std::uint64_t position, const abi::WorkRequest& request) {
  abi::store_slot(ring_.slots[position & (slots() - 1)],
                  abi::encode(request, abi::lap_bit(position, ring_.log2_slots)));
}

Status RingProducer::push(const abi::WorkRequest& request, const WaitSite& site, const WaitScope& scope) {
  std::uint64_t position = 0;
  MK_RETURN_IF_ERROR(claim(1, position, site, scope));
  write(position, request);
  return {};
}

Endpoint::Endpoint(const GroupView& group, std::uint32_t first_lane, std::uint32_t lanes)
    : group_(group), first_lane_(first_lane), lanes_(lanes), ring_share_(group.ring_share()) {
  for (const RingView& ring : group.rings) rings_.push_back(std::make_unique<RingProducer>(ring));
  const std::size_t channels = std::size_t{group.world_size()} * lanes;
  issued_ = std::make_unique<std::atomic<std::uint64_t>[]>(channels);
  for (std::uint32_t peer = 0; peer < group.world_size(); ++peer) {
    for (std::uint32_t lane = 0; lane < lanes; ++lane) {
      arrival_base_.push_back(load_acquire(group.arrivals(peer, first_lane + lane)));
      completed_base_.push_back(load_acquire(group.completed(peer, first_lane + lane)));
      issued_[index(peer, lane)].store(0, std::memory_order_relaxed);
    }
  }
}

Status Endpoint::put(std::uint32_t target, std::uint32_t lane, Place local, Place remote, std::uint64_t bytes,
                     const char* role, const WaitScope& scope) {
  const std::uint32_t group_lane = first_lane_ + lane;
  RingProducer& ring = *rings_[ring_share_.ring(group_lane)];
  std::uint64_t parts = std::max<std::uint64_t>((bytes + abi::kMaxPutBytes - 1) / abi::kMaxPutBytes, 1);
  while (parts > 0) {
    const std::uint64_t count = std::min(parts, ring.slots());
    std::uint64_t position = 0;
    MK_RETURN_IF_ERROR(ring.claim(count, position, {role, "", target, lane}, scope));
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto part = static_cast<std::uint32_t>(std::min<std::uint64_t>(bytes, abi::kMaxPutBytes));
      ring.write(position + i, {.opcode = static_cast<std::uint8_t>(abi::Opcode::kPut),
                                .channel = group_.channel(target, group_lane),
                                .peer = target,
                                .length = part,
                                .local_region = static_cast<std::uint16_t>(local.region),
                                .remote_region = static_cast<std::uint16_t>(remote.region),
                                .local_offset = local.offset,
                                .remote_offset = remote.offset});
      local.offset += part;
      remote.offset += part;
      bytes -= part;
      bytes_put_.fetch_add(part, std::memory_order_relaxed);
    }
    issued_[index(target, lane)].fetch_add(count, std::memory_order_relaxed);
    parts -= count;
  }
  return {};
}

Status Endpoint::signal(std::uint32_t target, std::uint32_t lane, const char* role, const WaitScope& scope) {
  return put(target, lane, {}, {}, 0, role, scope);
}

std::uint64_t Endpoint::arrived(std::uint32_t source, std::uint32_t lane) const {
  return load_acquire(group_.arrivals(source, first_lane_ + lane)) - arrival_base_[index(source, lane)];
}

Status Endpoint::wait_arrival(std::uint32_t source, std::uint32_t lane, std::uint64_t count, const char* role,
                              const WaitScope& scope) const {
  return wait_until([&] { return arrived(source, lane); }, count, {role, "arrivals", source, lane}, scope);
}

std::uint64_t Endpoint::issued(std::uint32_t target, std::uint32_t lane) const {
  return issued_[index(target, lane)].load(std::memory_order_relaxed);
}

Status Endpoint::wait_completed(std::uint32_t target, std::uint32_t lane, std::uint64_t count,
                                const char* role, const WaitScope& scope) const {
  const auto seen = [&] {
    return load_acquire(group_.completed(target, first_lane_ + lane)) - completed_base_[index(target, lane)];
  };
  return wait_until(seen, count,
                    {.role = role, .tag = "completed puts", .peer = target, .lane = lane, .of_peer = false},
                    scope);
}

Status Endpoint::wait_all_completed(const char* role, const WaitScope& scope) const {
  for (std::uint32_t target = 0; target < group_.world_size(); ++target) {
    for (std::uint32_t lane = 0; lane < lanes_; ++lane) {
      MK_RETURN_IF_ERROR(wait_completed(target, lane, issued(target, lane), role, scope));
    }
  }
  return {};
}

}  // namespace mkernel::kernels
