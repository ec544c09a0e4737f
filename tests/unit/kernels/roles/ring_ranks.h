// What both passes of ring attention have in common when they are played on the host: ranks with workspaces
// that other operations have left, and keys and values that are gathered.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/base/lent_workspace.h"
#include "kernels/cuda/sync/launch_control.h"
#include "kernels/ops/ring_attention/gpu_plan.h"
#include "kernels/ops/ring_attention/parameters.h"
#include "kernels/plan/topology.h"
#include "tests/support/host_grid.h"
#include "tests/support/on_host/sm90.h"
#include "tests/support/random_tensor.h"
#include "tests/unit/kernels/roles/host_fabric.h"
#include "tests/unit/kernels/roles/play_launch.h"

namespace mkernel::test {

struct alignas(128) HostLine {
  std::byte bytes[128] = {};
};
/// Memory that another operation may have left: no numbers, from line `first` on.
inline std::vector<HostLine> lines_of_no_numbers(std::uint64_t bytes, std::size_t first) {
  std::vector<HostLine> lines(bytes / sizeof(HostLine) + 1);
  for (std::size_t i = first; i < lines.size(); ++i)
    std::fill_n(reinterpret_cast<std::uint16_t*>(lines[i].bytes), sizeof(HostLine) / 2, kPoison);
  return lines;
}

/// Of one rank. `Parameters`: of its kernel, as KvGatherMaps takes them.
template <class Parameters>
struct HostRingRank {
  std::vector<std::uint64_t> words{};
  std::vector<HostLine> lent{};
  std::vector<kernels::TensorMap> gathered{};
  kernels::LaunchControl control{};
  Parameters p{};
  int on_their_way = -1;  ///< when the launch ended: what was still to come from other ranks

  std::byte* lent_memory() { return reinterpret_cast<std::byte*>(lent.data()); }
  /// Chunks of other ranks that have not come in the launch before this epoch.
  int missing_chunks(const kernels::KvGatherPlan& gather) const {
    int missing = 0;
    for (std::int32_t step = 1; step < gather.world; ++step) {
      const std::int32_t source = gather.source(step);
      for (std::int32_t tensor = 0; tensor < kernels::KvGatherPlan::kTensors; ++tensor) {
        const std::uint64_t* ready = words.data() + gather.ready_offset(source, tensor) / 8;
        for (std::int32_t chunk = 0; chunk < gather.chunks(); ++chunk)
          missing += ready[chunk] < gather.count(control.epoch - 1) ? 1 : 0;
      }
    }
    return missing;
  }
  /// Own keys and values, of a rank that holds some.
  void map_own(const kernels::RingGpuPlan& plan, std::int32_t tile_keys, const void* k, const void* v) {
    const void* const tensors[] = {k, v};
    for (int tensor = 0; tensor < kernels::KvGatherPlan::kTensors; ++tensor) {
      p.own[tensor] = host_tensor_map(kernels::ring_kv_view(plan, tile_keys, tensors[tensor]));
      p.push[tensor] = host_packed_map(kernels::ring_push_view(plan, tensors[tensor]));
    }
  }
};

/// `Rank` derives from HostRingRank.
template <class Rank>
class HostRing {
 public:
  /// Bytes that rank `rank` has put, in all launches.
  std::uint64_t delivered(std::size_t rank) const { return fabric_.delivered(rank); }
  kernels::LaunchControl& control(std::size_t rank) { return ranks_[rank]->control; }
  /// `launch` runs two launches of a rank alone at the same time.
  template <class Launch>
  void check_two(const Launch& launch) {
    const std::uint64_t before = control(0).epoch;
    set_deadline(kHostTwoLaunchesNs);
    at_a_time_ = 2;
    launch();
    check_two_at_a_time(control(0), before, &lent(0));
    at_a_time_ = 1;
  }
  kernels::LentControl& lent(std::size_t rank) { return *ranks_[rank]->p.endpoint.lent; }
  void set_deadline(std::uint64_t ns) {
    for (auto& rank : ranks_) rank->p.endpoint.deadline_ns = ns;
  }

 protected:
  HostRing(const kernels::Topology& topology, std::uint32_t lanes)
      : topology_(topology), fabric_(topology.world(), lanes) {}

  std::int64_t world() const { return std::ssize(ranks_); }

  /// Workspaces for all ranks. As many bytes as the plan says.
  void make_workspaces(std::uint64_t word_bytes, std::uint64_t data_bytes) {
    const std::uint64_t lent_bytes = kernels::lent_workspace_bytes(data_bytes);
    half_bytes_ = kernels::lent_half_bytes(lent_bytes);
    for (auto& rank : ranks_) {
      rank->words.resize(word_bytes / 8);
      rank->lent = lines_of_no_numbers(lent_bytes, 1);
    }
  }

  /// As KvGatherMaps does it, when all ranks have their workspaces.
  void describe_gather(Rank& rank, const kernels::RingGpuPlan& plan, std::int32_t tile_keys) {
    for (const std::uint64_t launch : {0, 1}) {
      const std::byte* half = rank.lent_memory() + kernels::lent_half_at(launch, half_bytes_);
      constexpr std::int32_t kTensors = kernels::KvGatherPlan::kTensors;
      for (std::int32_t slab = 0; slab < kTensors * plan.gather.world; ++slab) {
        const kernels::MatrixView view =
            kernels::ring_slab_view(plan, tile_keys, half, slab / kTensors, slab % kTensors);
        rank.gathered.push_back(view.rows > 0 ? host_tensor_map(view) : kernels::TensorMap{});
      }
    }
    rank.p.gathered = rank.gathered.data();
    rank.p.half_bytes = half_bytes_;
    rank.p.region = HostFabric::kRegion;
    const auto me = static_cast<std::uint32_t>(plan.gather.rank);
    for (std::uint32_t local = 0; local < topology_.ranks_per_node(); ++local) {
      Rank& neighbour = *ranks_[topology_.rank_at(topology_.node_of(me), local)];
      rank.p.words[local] = reinterpret_cast<std::byte*>(neighbour.words.data());
      rank.p.lent[local] = neighbour.lent_memory();
    }
    describe_ranks(topology_, me, rank.p);
    fabric_.open(rank.p.endpoint, me, rank.control);
    rank.p.endpoint.lent = reinterpret_cast<kernels::LentControl*>(rank.lent_memory());
  }

  /// The copy engine, and over several nodes the daemons.
  void add_services(HostGrid& grid) {
    grid.add_service(host_copy_engine);
    if (topology_.nodes() == 1) return;
    grid.add_service([this] {
      fabric_.deliver([this](std::uint32_t rank) { return ranks_[rank]->lent_memory(); },
                      ranks_[0]->lent.size() * sizeof(HostLine), true);
    });
  }

  const kernels::Topology topology_;
  int at_a_time_ = 1;  ///< launches of a rank
  HostFabric fabric_;
  std::uint64_t half_bytes_ = 0;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace mkernel::test
