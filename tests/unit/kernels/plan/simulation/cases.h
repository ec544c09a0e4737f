// What is simulated: worlds, shapes and machines, and the plans of all ranks for them.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/plan/machine.h"
#include "kernels/plan/topology.h"
#include "tests/unit/kernels/plan/simulation/ag_gemm.h"
#include "tests/unit/kernels/plan/simulation/gemm_ar.h"
#include "tests/unit/kernels/plan/simulation/marked_sums.h"
#include "tests/unit/kernels/plan/simulation/moe.h"
#include "tests/unit/kernels/plan/simulation/ring_attention.h"
#include "tests/unit/kernels/plan/simulation/ring_backward.h"
#include "tests/unit/kernels/plan/simulation/tile_reduce.h"

namespace mkernel::test {

/// Up to 16 ranks on up to four nodes.
inline std::vector<kernels::Topology> worlds() {
  return {{1, 1}, {1, 2}, {1, 3}, {1, 4}, {1, 8}, {1, 16}, {2, 1}, {2, 2}, {2, 3},
          {2, 4}, {2, 8}, {3, 1}, {3, 2}, {3, 5}, {4, 1},  {4, 2}, {4, 4}};
}

/// Few SMs: what matters is the order of steps, and every CTA brings more of it. A GPU's clusters are pairs.
inline const kernels::Machine kHost = kernels::kHostMachine.with_sms(4);
inline const kernels::Machine kGpu = kernels::kH200.with_sms(12);
inline constexpr kernels::TileSize kHostTile{64, 64, 1};

struct AgGemmCase {
  using Plan = kernels::AgGemmPlan;
  using World = AgGemmWorld;

  GemmShape shape;
  kernels::Machine machine;
  kernels::AgGemmOptions options;

  Result<Plan> plan(const kernels::Topology& topology, std::uint32_t rank) const {
    return Plan::make(shape, topology, rank, machine, options);
  }
  std::string label() const { return "AG+GEMM m = " + std::to_string(shape.m); }
};

/// What both operations that sum are simulated with.
struct SumCase {
  GemmShape shape;
  kernels::Machine machine;
  kernels::TileReduceOptions options;
  std::int32_t chunk_units;  ///< few, so that little data travels in many puts
  Warps warps;
};

struct GemmRsCase : SumCase {
  using Plan = kernels::TileReducePlan;
  using World = TileReduceWorld;

  Result<Plan> plan(const kernels::Topology& topology, std::uint32_t rank) const {
    auto plan = Plan::make(OpKind::kGemmRs, shape, topology, rank, machine, options);
    if (!plan.ok()) return plan;
    plan->partials.chunk_units = chunk_units;
    plan->reduce.marked = marked;
    return plan;
  }
  std::string label() const { return "GEMM+RS m = " + std::to_string(shape.m); }

  bool marked = false;  ///< slots: on one node where owners share tiles
};

struct GemmArCase : SumCase {
  using Plan = kernels::GemmArPlan;
  using World = GemmArWorld;

  Result<Plan> plan(const kernels::Topology& topology, std::uint32_t rank) const {
    kernels::TileReduceOptions by_owner = options;
    by_owner.to_all = false;
    auto plan = Plan::make(shape, topology, rank, machine, by_owner);
    if (!plan.ok()) return plan;
    plan->product.partials.chunk_units = chunk_units;
    plan->product.reduce.marked = false;
    return plan;
  }
  std::string label() const { return "GEMM+AR m = " + std::to_string(shape.m); }
};

/// The same with marked sums, as kernels do it on one node where owners share tiles.
struct MarkedSumsCase : GemmArCase {
  using World = MarkedSumsWorld;

  Result<Plan> plan(const kernels::Topology& topology, std::uint32_t rank) const {
    auto plan = GemmArCase::plan(topology, rank);
    if (!plan.ok()) return plan;
    REQUIRE(plan->product.marks_sums());
    plan->product.reduce.marked = marked;
    plan->product.reduce.marked_begin = plan->sums.marked_end();
    return plan;
  }

  bool marked = false;  ///< slots
};

/// GEMM+AR whose ranks all sum all rows: of one node with several ranks.
struct SumAllCase : SumCase {
  using Plan = kernels::TileReducePlan;
  using World = TileReduceWorld;

  Result<Plan> plan(const kernels::Topology& topology, std::uint32_t rank) const {
    kernels::TileReduceOptions to_all = options;
    to_all.to_all = true;
    auto plan = Plan::make(OpKind::kGemmAr, shape, topology, rank, machine, to_all);
    if (plan.ok()) plan->reduce.marked = marked;
    return plan;
  }
  std::string label() const { return "GEMM+AR to all, m = " + std::to_string(shape.m); }

  bool marked = false;  ///< slots, as in kernels
};

struct MoeCase {
  using Plan = MoeWorld::Plan;
  using World = MoeWorld;

  MoeLoad shape;

  Result<Plan> plan(const kernels::Topology& topology, std::uint32_t) const {
    return MoeWorld::plan_of(shape, topology);
  }
  std::string label() const {
    return "MoE experts = " + std::to_string(shape.experts) + ", pattern " + std::to_string(shape.pattern);
  }
};

struct RingAttentionCase {
  using Plan = kernels::RingGpuPlan;
  using World = RingAttentionWorld;

  AttentionShape shape;
  std::int32_t comm_ctas, sms;  ///< comm_ctas = 0: as the plan chooses
  std::int32_t block_rows;      ///< few, so that little data travels in many puts; 0: as the plan has it

  Result<Plan> plan(const kernels::Topology& topology, std::uint32_t rank) const {
    auto plan = Plan::make(shape, topology, rank, kernels::kH200.with_sms(sms), {.comm_ctas = comm_ctas});
    if (plan.ok() && block_rows > 0) plan->gather.cut(block_rows);
    return plan;
  }
  std::string label() const {
    return "ring attention, sequence = " + std::to_string(shape.sequence) + (shape.causal ? ", causal" : "");
  }
};

struct RingBackwardCase {
  using Plan = kernels::RingBackwardPlan;
  using World = RingBackwardWorld;

  AttentionShape shape;
  std::int32_t comm_ctas, sms, block_rows;     ///< as RingAttentionCase
  std::int32_t chunk_units = 1, sum_ctas = 1;  ///< 0: as the plan has it

  Result<Plan> plan(const kernels::Topology& topology, std::uint32_t rank) const {
    auto plan = Plan::make(shape, topology, rank, kernels::kH200.with_sms(sms), {.comm_ctas = comm_ctas});
    if (!plan.ok()) return plan;
    if (block_rows > 0) plan->ring.gather.cut(block_rows);
    plan->lay_out();
    if (chunk_units > 0) plan->puts.chunk_units = chunk_units;
    if (sum_ctas > 0 && topology.nodes() > 1) plan->sum_ctas = sum_ctas;
    return plan;
  }
  std::string label() const {
    return "ring attention backward, sequence = " + std::to_string(shape.sequence) +
           (shape.causal ? ", causal" : "");
  }
};

/// One case on one world: planned once, played with many seeds.
template <class Case>
class Played {
 public:
  Played(const Case& given, const kernels::Topology& topology) : given_(given), topology_(topology) {
    for (std::uint32_t rank = 0; rank < topology.world(); ++rank) {
      auto plan = given.plan(topology, rank);
      REQUIRE_MESSAGE(plan.ok(), plan.status().to_string());
      plans_.push_back(*plan);
    }
  }

  std::unique_ptr<typename Case::World> world(const Settings& settings) const {
    using Made = typename Case::World;
    if constexpr (requires { given_.warps; }) {
      return std::make_unique<Made>(given_.shape, topology_, plans_, given_.warps, settings);
    } else {
      return std::make_unique<Made>(given_.shape, topology_, plans_, settings);
    }
  }

  /// What is reported with a fault: of some seeds the first report that contains `text`, else the first one.
  std::string report(Fault fault, const std::string& text) const {
    constexpr std::uint64_t kSeeds = 300;
    std::string first;
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
      const std::string error = world({.seed = seed, .fault = fault})->run();
      if (!error.empty() && error.find(text) != std::string::npos) return error;
      if (first.empty()) first = error;
    }
    return first;
  }

  std::string label() const {
    return given_.label() + " on " + std::to_string(topology_.nodes()) + " x " +
           std::to_string(topology_.ranks_per_node());
  }

 private:
  const Case given_;
  const kernels::Topology topology_;
  std::vector<typename Case::Plan> plans_;
};

/// Every case on every one of `topologies`, with seeds 0 .. `seeds` - 1; a twentieth of them under
/// sanitizers, which look at the simulation's own code and not at the order of its steps.
template <class Case>
void play_everywhere(const std::vector<Case>& cases, std::uint64_t seeds, Fault fault = Fault::kNone,
                     const std::vector<kernels::Topology>& topologies = worlds()) {
#if defined(MKERNEL_SANITIZED)
  seeds = (seeds + 19) / 20;
#endif
  for (const kernels::Topology& topology : topologies) {
    for (const Case& given : cases) {
      const Played<Case> played(given, topology);
      for (std::uint64_t seed = 0; seed < seeds; ++seed) {
        const std::string error = played.world({.seed = seed, .fault = fault})->run();
        REQUIRE_MESSAGE(error.empty(), played.label() << ", seed " << seed << ": " << error);
      }
    }
  }
}

/// Whether the simulation sees a fault, and reports what was expected of it.
template <class Case>
void check_seen(const Case& given, const kernels::Topology& topology, Fault fault, const std::string& text) {
  const Played<Case> played(given, topology);
  const std::string report = played.report(fault, text);
  const bool seen = report.find(text) != std::string::npos;
  CHECK_MESSAGE(seen, played.label() << ", fault " << static_cast<int>(fault) << ": not \"" << text
                                     << "\", but \"" << report << "\"");
}

}  // namespace mkernel::test
