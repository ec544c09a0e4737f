// The plan of the mixture-of-experts layer: every product once, counts that agree, no overlap in memory, no
// area overwritten while it is read, no deadlock.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/ops/moe_dispatch_gemm/plan.h"
#include "kernels/ops/moe_dispatch_gemm/routing.h"
#include "tests/unit/kernels/plan/simulation.h"

using namespace mkernel;
using namespace mkernel::kernels;

namespace {

const Topology kWorlds[] = {{1, 1}, {1, 4}, {2, 2}, {2, 4}, {3, 2}, {4, 8}};

MoePlan moe_plan_of(const Topology& topology, std::int64_t experts, std::int64_t topk) {
  auto plan = MoePlan::make(
      {.max_tokens = 300, .hidden = 2048, .n = 1000, .intermediate = 8, .experts = experts, .topk = topk},
      topology);
  REQUIRE_MESSAGE(plan.ok(), plan.status().to_string());
  return std::move(plan).value();
}

/// topk [tokens, topk] with distinct entries per token.
std::vector<std::int32_t> random_topk(const MoePlan& plan, std::int64_t tokens, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::int32_t> all(static_cast<std::size_t>(plan.shape().experts)), topk;
  std::iota(all.begin(), all.end(), 0);
  for (std::int64_t token = 0; token < tokens; ++token) {
    std::shuffle(all.begin(), all.end(), random);
    topk.insert(topk.end(), all.begin(), all.begin() + plan.shape().topk);
  }
  return topk;
}

TEST_CASE("moe plan: every (token, expert) is one term of one sum, and every product has at most 128 rows") {
  for (const Topology& topology : kWorlds) {
    for (const auto& choice : {std::pair{1, 1}, {7, 3}, {64, 8}}) {
      const int experts = choice.first, topk = choice.second;
      CAPTURE(topology.world());
      CAPTURE(experts);
      const MoePlan plan = moe_plan_of(topology, experts, topk);
      const std::int64_t tokens = 290;
      const auto chosen = random_topk(plan, tokens, 5);
      const auto lists = route_tokens(plan, tokens, chosen.data());
      REQUIRE(lists.ok());
      std::map<std::pair<std::int64_t, std::int64_t>, int> computed;  // by token and j
      for (std::uint32_t node = 0; node < topology.nodes(); ++node) {
        const auto& list = lists.value()[node];
        CHECK(std::is_sorted(list.begin(), list.end()));
        std::vector<std::int32_t> packed;
        std::vector<float> weights;  // tells token and j
        for (const std::int64_t token : list) {
          for (std::int64_t j = 0; j < topk; ++j) {
            packed.push_back(chosen[static_cast<std::size_t>(token * topk + j)]);
            weights.push_back(static_cast<float>(token * topk + j));
          }
        }
        for (std::uint32_t local = 0; local < topology.ranks_per_node(); ++local) {
          const std::uint32_t rank = topology.rank_at(node, local);
          const SourceWork work =
              route_source(plan, rank, static_cast<std::int64_t>(list.size()), packed.data(), weights.data());
          std::vector<std::int64_t> expert_of(work.row.size(), -1);
          for (const ExpertBlock& block : work.blocks) {
            CHECK(block.entries.size() >= 1);
            CHECK(block.entries.size() <= MoePlan::kBlockRows);
            for (std::int64_t i = block.entries.begin; i < block.entries.end; ++i) {
              CHECK(expert_of[static_cast<std::size_t>(i)] == -1);
              expert_of[static_cast<std::size_t>(i)] = plan.experts(rank).begin + block.expert;
              if (i > block.entries.begin) {
                CHECK(work.row[static_cast<std::size_t>(i)] > work.row[static_cast<std::size_t>(i - 1)]);
              }
            }
          }
          for (std::size_t row = 0; row < list.size(); ++row) {
            float before = -1;
            for (auto t = work.first_term[row]; t < work.first_term[row + 1]; ++t) {
              const auto [entry, weight] = work.terms[static_cast<std::size_t>(t)];
              CHECK(work.row[static_cast<std::size_t>(entry)] == static_cast<std::int64_t>(row));
              CHECK(expert_of[static_cast<std::size_t>(entry)] == chosen[static_cast<std::size_t>(weight)]);
              CHECK(static_cast<std::int64_t>(weight) / topk == list[row]);
              CHECK(weight > before);  // in topk order
              before = weight;
              ++computed[{list[row], static_cast<std::int64_t>(weight) % topk}];
            }
          }
        }
      }
      CHECK(computed.size() == static_cast<std::size_t>(tokens * topk));
      CHECK(std::all_of(computed.begin(), computed.end(), [](const auto& one) { return one.second == 1; }));
    }
  }
}

TEST_CASE("moe plan: contributors are the ranks of the node that own an expert of the row, ascending, once") {
  const MoePlan plan = moe_plan_of(Topology(2, 4), 16, 4);  // two experts per rank
  const std::int32_t row[] = {7, 15, 0, 6};
  std::vector<std::uint32_t> ranks;
  contributors(plan, 0, row, ranks);
  CHECK(ranks == std::vector<std::uint32_t>{0, 3});
  contributors(plan, 1, row, ranks);
  CHECK(ranks == std::vector<std::uint32_t>{3});
}

TEST_CASE("moe plan: the areas of the workspace do not overlap") {
  for (const Topology& topology : kWorlds) {
    const MoePlan plan = moe_plan_of(topology, 8, 2);
    const MoeWorkspace& space = plan.workspace();
    std::vector<std::pair<std::uint64_t, std::uint64_t>> areas;  // begin, bytes
    for (std::uint32_t node = 0; node < topology.nodes(); ++node) {
      areas.push_back({space.meta_ready(node), sizeof(SignalWord)});
      areas.push_back({space.rows_ready(node), sizeof(SignalWord)});
      areas.push_back({space.meta_in(node), plan.meta_bytes(300)});
      areas.push_back({space.rows_in(node), 300 * plan.row_bytes()});
      for (std::uint32_t local = 0; local < topology.ranks_per_node(); ++local) {
        areas.push_back({space.partials_ready(node, local), sizeof(SignalWord)});
        areas.push_back({space.partials(node, local), 300 * 1000 * sizeof(float)});
      }
    }
    for (std::uint32_t peer = 0; peer + 1 < topology.nodes(); ++peer) {
      areas.push_back({space.meta_out(peer), plan.meta_bytes(300)});
      areas.push_back({space.rows_out(peer), 300 * plan.row_bytes()});
      areas.push_back({space.sums_out(peer), 300 * plan.sum_bytes()});
      areas.push_back({space.sums_in(peer), 300 * plan.sum_bytes()});
    }
    std::sort(areas.begin(), areas.end());
    for (std::size_t i = 1; i < areas.size(); ++i) {
      CHECK(areas[i - 1].first + areas[i - 1].second <= areas[i].first);
    }
    CHECK(areas.back().first + areas.back().second <= space.bytes());
    for (std::uint32_t own = 0; own < topology.nodes(); ++own) {
      std::vector<int> used(topology.nodes());
      for (std::uint32_t other = 0; other < topology.nodes(); ++other) {
        if (other != own) ++used[MoePlan::peer(own, other)];
      }
      CHECK(std::count(used.begin(), used.end(), 1) == topology.nodes() - 1);
    }
  }
}

/// Launches of all ranks with random numbers of rows per source and node. Areas carry the launch that wrote
/// them; whoever reads checks that it is still that one.
class MoeSimulation {
 public:
  MoeSimulation(const MoePlan& plan, std::uint64_t launches, std::uint64_t seed)
      : plan_(plan), topology_(plan.topology()), random_(seed), done_(topology_.world()) {
    for (std::uint32_t rank = 0; rank < topology_.world(); ++rank) add_rank(rank, launches);
  }
  std::string run(std::uint64_t seed) { return test::simulate(roles_, seed); }
  bool intact() const { return intact_; }
  bool counts_agree() const { return sent_ == taken_; }

 private:
  /// What lies at the landing rank of `source` on `node`.
  struct Landing {
    std::uint64_t dispatched = 0, returned = 0;     // puts, over all launches
    std::uint64_t meta_ready = 0, area_launch = 0;  // launches
    std::vector<std::uint64_t> partials_ready;      // by local rank, launches
  };
  using Key = std::pair<std::uint32_t, std::uint32_t>;  // source, node

  Landing& landing(std::uint32_t source, std::uint32_t node) {
    Landing& entry = landings_[Key{source, node}];
    entry.partials_ready.resize(topology_.ranks_per_node());
    return entry;
  }
  bool partials(std::uint32_t source, std::uint32_t node, std::uint64_t launch) {
    const auto& ready = landing(source, node).partials_ready;
    return std::all_of(ready.begin(), ready.end(), [=](std::uint64_t count) { return count >= launch; });
  }
  void expect(std::uint32_t source, std::uint32_t node, std::uint64_t launch) {
    intact_ &= landing(source, node).area_launch == launch;
  }

  void add_rank(std::uint32_t rank, std::uint64_t launches) {
    std::vector<test::SimulatedRole> roles(4);
    const char* names[] = {"send", "receive", "experts", "reduce"};
    for (std::size_t i = 0; i < 4; ++i) roles[i].name = std::to_string(rank) + " " + names[i];
    for (std::uint64_t launch = 1; launch <= launches; ++launch) {
      for (auto& role : roles) {
        role.steps.push_back({[=, this] { return done_[rank] >= 4 * (launch - 1); }, [] {}});
      }
      add_source(roles[0], rank, launch);
      for (std::uint32_t node = 0; node < topology_.nodes(); ++node) {
        if (node == topology_.node_of(rank)) continue;
        add_receive(roles[1], rank, node, launch);
        add_reduce(roles[3], rank, node, launch);
      }
      for (std::uint32_t source = 0; source < topology_.world(); ++source) {
        add_experts(roles[2], rank, source, launch);
      }
      for (auto& role : roles) role.steps.push_back({[] { return true; }, [=, this] { ++done_[rank]; }});
    }
    for (auto& role : roles) roles_.push_back(std::move(role));
  }
  std::int64_t rows(std::uint32_t source, std::uint32_t node, std::uint64_t launch) {
    const auto [place, added] = rows_.try_emplace(std::tuple{source, node, launch}, 0);
    if (added) place->second = random_() % 3 == 0 ? 0 : static_cast<std::int64_t>(random_() % 301);
    return place->second;
  }
  std::uint64_t puts_until(std::uint32_t source, std::uint32_t node, std::uint64_t launch, bool back) {
    std::uint64_t puts = 0;
    for (std::uint64_t l = 1; l <= launch; ++l) {
      puts += back ? plan_.return_puts(rows(source, node, l)) : plan_.dispatch_puts(rows(source, node, l));
    }
    return puts;
  }
  void add_source(test::SimulatedRole& role, std::uint32_t rank, std::uint64_t launch) {
    const std::uint32_t own = topology_.node_of(rank);
    for (std::uint32_t node = 0; node < topology_.nodes(); ++node) {
      const std::int64_t count = rows(rank, node, launch);
      role.steps.push_back({[] { return true; },
                            [=, this] {
                              landing(rank, node).area_launch = launch;
                              if (node == own) {
                                landing(rank, node).meta_ready = launch;
                                return;
                              }
                              ++landing(rank, node).dispatched, ++sent_;  // metadata
                              for (std::int64_t at = 0; at < count; at += plan_.rows_per_put()) {
                                ++landing(rank, node).dispatched, ++sent_;
                              }
                            }});
    }
    for (std::uint32_t node = 0; node < topology_.nodes(); ++node) {
      const std::uint64_t answers = puts_until(rank, node, launch, true);
      role.steps.push_back({[=, this] {
                              return node == own ? partials(rank, node, launch)
                                                 : landing(rank, node).returned >= answers;
                            },
                            [] {}});
    }
  }
  void add_receive(test::SimulatedRole& role, std::uint32_t rank, std::uint32_t node, std::uint64_t launch) {
    const std::uint32_t source = topology_.rail_peer(rank, node);
    const std::uint32_t own = topology_.node_of(rank);
    const std::uint64_t puts = puts_until(source, own, launch, false);
    role.steps.push_back({[=, this] { return landing(source, own).dispatched >= puts; },
                          [=, this] {
                            landing(source, own).meta_ready = launch;
                            taken_ += plan_.dispatch_puts(rows(source, own, launch));
                          }});
  }
  void add_experts(test::SimulatedRole& role, std::uint32_t rank, std::uint32_t source,
                   std::uint64_t launch) {
    const std::uint32_t own = topology_.node_of(rank);
    role.steps.push_back({[=, this] { return landing(source, own).meta_ready >= launch; },
                          [=, this] { expect(source, own, launch); }});
    role.steps.push_back({[] { return true; },
                          [=, this] {
                            expect(source, own, launch);
                            landing(source, own).partials_ready[topology_.local_of(rank)] = launch;
                          }});
  }
  void add_reduce(test::SimulatedRole& role, std::uint32_t rank, std::uint32_t node, std::uint64_t launch) {
    const std::uint32_t source = topology_.rail_peer(rank, node);
    const std::uint32_t own = topology_.node_of(rank);
    role.steps.push_back({[=, this] { return partials(source, own, launch); },
                          [=, this] {
                            expect(source, own, launch);
                            landing(source, own).returned += plan_.return_puts(rows(source, own, launch));
                          }});
  }

  const MoePlan& plan_;
  const Topology& topology_;
  std::mt19937_64 random_;
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint64_t>, std::int64_t> rows_;
  std::map<Key, Landing> landings_;
  std::vector<std::uint64_t> done_;
  std::vector<test::SimulatedRole> roles_;
  std::uint64_t sent_ = 0, taken_ = 0;
  bool intact_ = true;
};

TEST_CASE("moe plan: any order of steps ends, and nothing is overwritten while somebody reads it") {
  for (const Topology& topology : kWorlds) {
    const MoePlan plan = moe_plan_of(topology, 8, 2);
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      CAPTURE(topology.world());
      CAPTURE(seed);
      MoeSimulation simulation(plan, 3, seed);
      CHECK(simulation.run(seed) == "");
      CHECK(simulation.intact());
      CHECK(simulation.counts_agree());
    }
  }
}

TEST_CASE("moe plan: impossible shapes are refused by field, value and limit") {
  const MoeShape good{.max_tokens = 4, .hidden = 8, .n = 8, .intermediate = 4, .experts = 4, .topk = 2};
  const auto text = [](const MoeShape& shape) {
    const auto plan = MoePlan::make(shape, Topology(2, 1));
    CHECK(plan.status().code() == StatusCode::kInvalidArgument);
    return plan.status().text();
  };
  MoeShape shape = good;
  shape.max_tokens = 0;
  CHECK(text(shape).find("max_tokens = 0, but it must be 1..") != std::string::npos);
  shape = good;
  shape.topk = 5;
  CHECK(text(shape).find("topk = 5, but it must be 1..4") != std::string::npos);
  shape = good;
  shape.intermediate = -1;
  CHECK(text(shape).find("intermediate = -1") != std::string::npos);
  shape = good;
  shape.hidden = std::int64_t{1} << 40;
  CHECK(text(shape).find("hidden = ") != std::string::npos);
  shape = good;
  shape.max_tokens = (std::int64_t{1} << 31) - 1;
  CHECK(text(shape).find("metadata of a launch is one put") != std::string::npos);
  shape = good;
  shape.dtype = static_cast<DataType>(0);
  CHECK(text(shape).find("dtype = 0") != std::string::npos);
}

}  // namespace
