// The rings of ranks that are played on the host, and one fiber that plays all daemons: it takes puts from
// the rings, in any order of ranks, and delivers them late.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "kernels/cuda/sync/launch_control.h"
#include "mkernel/device_endpoint.h"
#include "proto/abi/region_map.h"
#include "proto/abi/work_request.h"
#include "tests/support/host_grid.h"

namespace mkernel::test {

class HostFabric {
 public:
  static constexpr std::uint32_t kRegion = 3;  ///< which all puts name, on both sides

  HostFabric(std::uint32_t world, std::uint32_t lanes) : lanes_(lanes), ranks_(world) {}

  /// Opens the end of rank `number`, whose counts end with `control`.
  void open(device::Endpoint& endpoint, std::uint32_t number, kernels::LaunchControl& control) {
    Rank& rank = ranks_[number];
    endpoint.rank = number;
    endpoint.world_size = world();
    endpoint.control = &control;
    endpoint.deadline_ns = kHostPatienceNs;
    kernels::PolledCounts& counts = endpoint.counts;
    counts.peers = world();
    counts.lanes = endpoint.lanes = counts.stride = lanes_;
    for (auto* words : {&rank.seen, &rank.issued, &rank.arrivals, &rank.completed, &rank.base})
      words->resize(counts.words());
    counts.seen = rank.seen.data();
    counts.arrivals = rank.arrivals.data();
    counts.completed = rank.completed.data();
    counts.base = rank.base.data();
    endpoint.issued = rank.issued.data();
    endpoint.rings = {rank.slots.data(), &rank.head, &rank.claims, 1, kLog2Slots};
    rank.counts = counts;
  }

  /// Bytes of all puts of rank `number` that were delivered.
  std::uint64_t delivered(std::size_t number) const { return ranks_[number].delivered; }

  /// The daemons, a service of the grid. `memory(rank)`: the region, of `bytes`. `polled`: kernels have a
  /// poller, which looks at the counts in host memory; otherwise they are seen at once.
  void deliver(const std::function<std::byte*(std::uint32_t)>& memory, std::uint64_t bytes, bool polled) {
    std::mt19937 random(7);
    while (!host_is_over()) {
      for (std::uint32_t pause = random() % 4; pause > 0; --pause) host_yield();
      host_yield();
      const std::uint32_t source = random() % world();
      Rank& from = ranks_[source];
      abi::WorkSlot slot;
      if (!abi::load_slot(from.slots[from.taken % kSlots], abi::lap_bit(from.taken, kLog2Slots), slot))
        continue;
      const abi::WorkRequest put = abi::decode(slot);
      REQUIRE(put.local_region == kRegion);
      REQUIRE(put.remote_region == kRegion);
      REQUIRE(put.local_offset + put.length <= bytes);
      REQUIRE(put.remote_offset + put.length <= bytes);
      if (put.length > 0)
        std::memcpy(memory(put.peer) + put.remote_offset, memory(source) + put.local_offset, put.length);
      Rank& to = ranks_[put.peer];
      const std::uint32_t lane = put.channel - put.peer * lanes_;
      if (polled) {
        ++to.arrivals[source * lanes_ + lane];
        ++from.completed[put.peer * lanes_ + lane];
      } else {
        ++to.seen[to.counts.arrivals_index(source, lane)];
        ++from.seen[from.counts.completed_index(put.peer, lane)];
      }
      from.head.tail = ++from.taken;
      from.delivered += put.length;
    }
  }

 private:
  static constexpr std::uint32_t kLog2Slots = 4, kSlots = 1 << kLog2Slots;
  struct Rank {
    std::vector<abi::WorkSlot> slots = std::vector<abi::WorkSlot>(kSlots);
    abi::RingHead head{};
    kernels::RingClaims claims{};
    std::uint64_t taken = 0;  ///< slots, by the daemon
    std::uint64_t delivered = 0;
    std::vector<std::uint64_t> seen, issued;               ///< PolledCounts; Endpoint::issued
    std::vector<std::uint64_t> arrivals, completed, base;  ///< PolledCounts
    kernels::PolledCounts counts{};
  };

  std::uint32_t world() const { return static_cast<std::uint32_t>(ranks_.size()); }

  const std::uint32_t lanes_;
  std::vector<Rank> ranks_;
};

}  // namespace mkernel::test
