// The two-level all-gather at work: role functions and what they share. See README.md for the counts.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/base/views.h"
#include "kernels/cpu/comm/endpoint.h"
#include "kernels/cpu/sync/launch.h"
#include "kernels/plan/gather_plan.h"
#include "kernels/plan/topology.h"

namespace mkernel::kernels {

/// One rank's end of the gather. Everything it refers to outlives it.
class Gather {
 public:
  /// `stage`: of the first waits, see Launch::at_stage().
  Gather(const GatherPlan& plan, const Topology& topology, const GroupView& group,
         const SymmetricView& workspace, Endpoint& endpoint, std::uint32_t lane, int stage);

  const GatherPlan& plan() const { return plan_; }
  std::uint32_t rank() const { return rank_; }

  /// Chunk `index` of `source` in this rank's slab.
  std::byte* chunk(const Launch& launch, std::uint32_t source, std::uint64_t index) const;

  /// Chunk `index` of this rank's stream has been written to its own slab: shows it to this rank, copies it
  /// to the others of the node. One thread, chunks in order.
  void publish(const Launch& launch, std::uint64_t index);

  /// Puts it to the rail peers of the other nodes. One thread, chunks in order.
  Status send(const Launch& launch, std::uint64_t index, const char* role);

  /// inter_recv: takes the chunks of all rail peers as they come, shows each to this rank and copies it to
  /// the others of the node.
  Status relay(const Launch& launch);

  /// Chunks of `source` in this rank's slab in this launch, 0..chunks(source); acquire.
  std::uint64_t ready(const Launch& launch, std::uint32_t source) const;

  /// Waits until chunk `index` of this rank's own stream has been published.
  Status wait_own(const Launch& launch, std::uint64_t index, const char* role) const;

  /// Who waits for chunks of `source`, and whom they come through when it is on another node.
  WaitSite site(std::uint32_t source, const char* role) const;
  /// For waits for chunks: relayed ones come after the relay's own wait.
  WaitScope scope(const Launch& launch) const { return launch.at_stage(stage_ + 1); }

  /// Waits until every chunk of every source, the empty ones too, is in this rank's slab. Every launch does
  /// so before it ends: the two slabs rest on it.
  Status wait_all(const Launch& launch, const char* role) const;

 private:
  SignalWord& ready_word(std::uint32_t local, std::uint32_t source) const;
  void fan_out(const Launch& launch, std::uint32_t source, std::uint64_t index);
  Status wait_chunk(const Launch& launch, std::uint32_t source, std::uint64_t index, const char* role) const;
  std::uint64_t arrived(const Launch& launch, std::uint32_t source) const;

  const GatherPlan& plan_;
  const Topology& topology_;
  const SymmetricView& workspace_;
  Endpoint& endpoint_;
  const std::uint32_t rank_;
  const std::uint32_t lane_;
  const int stage_;
};

/// Hands out work items in the order in which the chunks that they need arrive: of every source in order,
/// among the sources whichever is ready, this rank's own first. Any number of threads; one object per launch.
class ArrivalOrder {
 public:
  struct Item {
    std::uint32_t source = 0;
    std::int64_t index = 0;
  };
  /// Items of a source, and how many of its chunks item `index` needs.
  using Items = std::function<std::int64_t(std::uint32_t source)>;
  using Needs = std::function<std::uint64_t(std::uint32_t source, std::int64_t index)>;

  ArrivalOrder(const Gather& gather, const Topology& topology, const Items& items, Needs needs);

  /// The next item, once it is ready; none when all have been handed out.
  Result<std::optional<Item>> next(const Launch& launch, const char* role);

 private:
  struct Source {
    std::uint32_t rank = 0;
    std::int64_t items = 0;
    std::atomic<std::int64_t> taken{0};
  };
  std::optional<Item> take(const Launch& launch, bool& all_taken, std::uint32_t& missing);

  const Gather& gather_;
  Needs needs_;
  std::vector<std::unique_ptr<Source>> sources_;
};

}  // namespace mkernel::kernels
