// The plan of ring attention: every pair of query and key once, counts that agree, no overlap in memory, no
// slot overwritten while it is read, no deadlock.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/ops/ring_attention/plan.h"
#include "tests/unit/kernels/plan/simulation.h"

using namespace mkernel;
using namespace mkernel::kernels;

namespace {

const Topology kRingWorlds[] = {{1, 1}, {1, 4}, {2, 2}, {2, 4}, {3, 2}, {4, 8}};

RingAttentionPlan ring_plan_of(const Topology& topology, std::int64_t sequence, bool causal,
                               std::int64_t heads = 4) {
  auto plan = RingAttentionPlan::make({.batch = 2,
                                       .sequence = sequence,
                                       .heads = heads,
                                       .kv_heads = heads / 2,
                                       .head_dim = 16,
                                       .causal = causal},
                                      topology);
  REQUIRE_MESSAGE(plan.ok(), plan.status().to_string());
  return std::move(plan).value();
}

template <typename Check>
void for_all(Check&& check) {
  for (const Topology& topology : kRingWorlds) {
    for (const std::int64_t sequence : {1, 7, 37, 1000, 30011}) {
      for (const bool causal : {false, true}) {
        CAPTURE(topology.nodes());
        CAPTURE(topology.ranks_per_node());
        CAPTURE(sequence);
        CAPTURE(causal);
        check(ring_plan_of(topology, sequence, causal, 64));
      }
    }
  }
}

TEST_CASE("ring plan: the ranks hold every position once, zigzag in equal shares") {
  for_all([](const RingAttentionPlan& plan) {
    std::vector<int> held(static_cast<std::size_t>(plan.shape().sequence));
    for (std::uint32_t rank = 0; rank < plan.topology().world(); ++rank) {
      const Positions positions = plan.positions(rank);
      for (std::int64_t row = 0; row < positions.size(); ++row)
        ++held[static_cast<std::size_t>(positions.at(row))];
      CHECK(positions.size() <= plan.shape().sequence / plan.topology().world() + 2);
    }
    CHECK(std::all_of(held.begin(), held.end(), [](int times) { return times == 1; }));
  });
}

TEST_CASE("ring plan: every rank meets every block once, in the slot of a rank of its node") {
  for_all([](const RingAttentionPlan& plan) {
    const Topology& topology = plan.topology();
    for (std::uint32_t rank = 0; rank < topology.world(); ++rank) {
      std::vector<int> met(topology.world());
      for (std::uint32_t step = 0; step < plan.steps(); ++step) {
        for (std::uint32_t turn = 0; turn < topology.ranks_per_node(); ++turn) {
          const std::uint32_t local = plan.reads(topology.local_of(rank), turn);
          ++met[plan.origin(topology.rank_at(topology.node_of(rank), local), step)];
        }
      }
      CHECK(std::all_of(met.begin(), met.end(), [](int times) { return times == 1; }));
      CHECK(plan.origin(rank, 0) == rank);
      CHECK(plan.previous(plan.next(rank)) == rank);
    }
  });
}

TEST_CASE("ring plan: pages cover a block once, within its slot, and tiles cover the queries once") {
  for_all([](const RingAttentionPlan& plan) {
    const AttentionShape& shape = plan.shape();
    for (std::uint32_t rank = 0; rank < plan.topology().world(); ++rank) {
      const Positions held = plan.positions(rank);
      std::uint64_t end = 0;
      std::int64_t rows = 0;
      for (std::uint64_t index = 0; index < plan.pages(rank); ++index) {
        const KvPage page = plan.page(rank, index);
        CHECK(page.offset == end);  // packed one behind the other
        CHECK(page.values() == page.offset + page.bytes / 2);
        end = page.offset + page.bytes;
        CHECK(page.batch * held.size() + page.rows.begin == rows);  // in order: none twice, none left out
        rows += page.rows.size();
      }
      CHECK(rows == shape.batch * held.size());
      CHECK(end <= plan.workspace().slot_bytes);

      std::int64_t covered = 0;
      for (const QueryTile& tile : plan.tiles(rank)) {
        covered += tile.rows.size();
        CHECK(held.at(tile.rows.end - 1) - held.at(tile.rows.begin) == tile.rows.size() - 1);
      }
      CHECK(covered == shape.batch * shape.heads * held.size());
    }
  });
}

TEST_CASE("ring plan: what is sent is what is expected, and the workspace does not overlap") {
  for_all([](const RingAttentionPlan& plan) {
    for (std::uint32_t rank = 0; rank < plan.topology().world(); ++rank) {
      for (std::uint32_t step = 0; step < plan.steps(); ++step) {
        CHECK(plan.sent_before(rank, step) == plan.received_before(plan.next(rank), step + 1));
      }
    }
    const RingWorkspace& space = plan.workspace();
    CHECK(space.received() >= space.loaded() + sizeof(SignalWord));
    CHECK(space.consumed(0) >= space.received() + sizeof(SignalWord));
    CHECK(space.slot(0) >= space.consumed(plan.topology().ranks_per_node() - 1) + sizeof(SignalWord));
    CHECK(space.slot(1) == space.slot(0) + space.slot_bytes);
    CHECK(space.bytes() == space.slot(1) + space.slot_bytes);
    CHECK(plan.requirements().workspace_bytes == space.bytes());
  });
}

/// One rank of the simulation: the counts of README.md and what the slots hold.
struct SimulatedRank {
  std::uint64_t loaded = 0, received = 0, arrived = 0, credits = 0, roles_done = 0;  // blocks, not pages
  std::vector<std::uint64_t> consumed;
  std::uint64_t sent = 0;
  std::uint64_t slot[2] = {0, 0};  // 1 + global step whose block it holds
};

class RingSimulation {
 public:
  RingSimulation(const RingAttentionPlan& plan, std::uint64_t launches)
      : plan_(plan), ranks_(plan.topology().world()) {
    for (auto& rank : ranks_) rank.consumed.resize(plan.topology().ranks_per_node());
    for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) add_rank(rank, launches);
  }

  std::string run(std::uint64_t seed) { return test::simulate(roles_, seed); }
  bool intact() const { return intact_; }

 private:
  using Step = test::SimulatedRole::Step;

  std::uint64_t received_launch() const { return plan_.steps() - 1; }
  bool slot_free(std::uint32_t rank, std::uint64_t now, std::uint64_t launch, std::uint32_t step) const {
    const SimulatedRank& mine = ranks_[rank];
    if (now < 2) return true;
    for (const std::uint64_t count : mine.consumed) {
      if (count < now - 1) return false;
    }
    return mine.sent >= launch * received_launch() + (step == 0 ? 0 : step - 1);
  }
  bool present(std::uint32_t rank, std::uint64_t launch, std::uint32_t step) const {
    return step == 0 ? ranks_[rank].loaded > launch
                     : ranks_[rank].received >= launch * received_launch() + step;
  }
  void fill(std::uint32_t rank, std::uint64_t now) { ranks_[rank].slot[now % 2] = now + 1; }
  void expect(std::uint32_t rank, std::uint64_t now) { intact_ &= ranks_[rank].slot[now % 2] == now + 1; }

  void add_rank(std::uint32_t rank, std::uint64_t launches) {
    std::vector<test::SimulatedRole> roles(4);
    const char* names[] = {"load", "send", "receive", "compute"};
    for (std::size_t i = 0; i < 4; ++i) roles[i].name = std::to_string(rank) + " " + names[i];
    for (std::uint64_t launch = 0; launch < launches; ++launch) {
      for (auto& role : roles) {
        role.steps.push_back({[=, this] { return ranks_[rank].roles_done >= 4 * launch; }, [] {}});
      }
      add_load(roles[0], rank, launch);
      for (std::uint32_t step = 0; step + 1 < plan_.steps(); ++step) add_send(roles[1], rank, launch, step);
      for (std::uint32_t step = 1; step < plan_.steps(); ++step) add_receive(roles[2], rank, launch, step);
      for (std::uint32_t step = 0; step < plan_.steps(); ++step) add_compute(roles[3], rank, launch, step);
      for (auto& role : roles) {
        role.steps.push_back({[] { return true; }, [=, this] { ++ranks_[rank].roles_done; }});
      }
    }
    for (auto& role : roles) roles_.push_back(std::move(role));
  }
  std::uint64_t global(std::uint64_t launch, std::uint32_t step) const {
    return launch * plan_.steps() + step;
  }
  void add_load(test::SimulatedRole& role, std::uint32_t rank, std::uint64_t launch) {
    role.steps.push_back({[=, this] { return slot_free(rank, global(launch, 0), launch, 0); },
                          [=, this] {
                            fill(rank, global(launch, 0));
                            ++ranks_[rank].loaded;
                          }});
  }
  void add_send(test::SimulatedRole& role, std::uint32_t rank, std::uint64_t launch, std::uint32_t step) {
    const std::uint32_t next = plan_.next(rank);
    role.steps.push_back({[=, this] {
                            return ranks_[rank].credits >= launch * plan_.credits() + step + 1 &&
                                   present(rank, launch, step);
                          },
                          [=, this] {
                            expect(rank, global(launch, step));
                            fill(next, global(launch, step + 1));
                            ++ranks_[next].arrived;
                          }});
    role.steps.push_back({[] { return true; }, [=, this] { ++ranks_[rank].sent; }});  // completed later
  }
  void add_receive(test::SimulatedRole& role, std::uint32_t rank, std::uint64_t launch, std::uint32_t step) {
    role.steps.push_back({[=, this] { return slot_free(rank, global(launch, step), launch, step); },
                          [=, this] { ++ranks_[plan_.previous(rank)].credits; }});
    role.steps.push_back({[=, this] { return ranks_[rank].arrived >= launch * received_launch() + step; },
                          [=, this] { ++ranks_[rank].received; }});
  }
  void add_compute(test::SimulatedRole& role, std::uint32_t rank, std::uint64_t launch, std::uint32_t step) {
    const Topology& topology = plan_.topology();
    for (std::uint32_t turn = 0; turn < topology.ranks_per_node(); ++turn) {
      const std::uint32_t local = topology.local_of(rank);
      const std::uint32_t holder = topology.rank_at(topology.node_of(rank), plan_.reads(local, turn));
      role.steps.push_back({[=, this] { return present(holder, launch, step); },
                            [=, this] { expect(holder, global(launch, step)); }});
      role.steps.push_back({[] { return true; },  // still reading until here
                            [=, this] {
                              expect(holder, global(launch, step));
                              ranks_[holder].consumed[local] = global(launch, step) + 1;
                            }});
    }
  }

  const RingAttentionPlan& plan_;
  std::vector<SimulatedRank> ranks_;
  std::vector<test::SimulatedRole> roles_;
  bool intact_ = true;
};

TEST_CASE("ring plan: any order of steps ends, and no slot is overwritten while somebody reads it") {
  for (const Topology& topology : kRingWorlds) {
    const RingAttentionPlan plan = ring_plan_of(topology, 37, true);
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      CAPTURE(topology.nodes());
      CAPTURE(seed);
      RingSimulation simulation(plan, 3);
      CHECK(simulation.run(seed) == "");
      CHECK(simulation.intact());
    }
  }
}

TEST_CASE("ring plan: impossible shapes are refused by field, value and limit") {
  const AttentionShape good{.batch = 1, .sequence = 8, .heads = 4, .kv_heads = 2, .head_dim = 16};
  const auto text = [](const AttentionShape& shape) {
    const auto plan = RingAttentionPlan::make(shape, Topology(2, 1));
    CHECK(plan.status().code() == StatusCode::kInvalidArgument);
    return plan.status().text();
  };
  AttentionShape shape = good;
  shape.sequence = 0;
  CHECK(text(shape).find("sequence = 0, but it must be 1..") != std::string::npos);
  shape = good;
  shape.kv_heads = 3;
  CHECK(text(shape).find("heads = 4, but it must be a multiple of kv_heads = 3") != std::string::npos);
  shape = good;
  shape.head_dim = 5000;
  CHECK(text(shape).find("head_dim = 5000, but it must be 1..4096") != std::string::npos);
  shape = good;
  shape.scale = -1;
  CHECK(text(shape).find("scale = -1") != std::string::npos);
  shape = good;
  shape.dtype = static_cast<DataType>(9);
  CHECK(text(shape).find("dtype = 9") != std::string::npos);
  shape = good;
  shape.heads = shape.kv_heads = 1 << 20;
  shape.head_dim = 4096;
  CHECK(text(shape).find("kv_heads * head_dim") != std::string::npos);
}

}  // namespace
