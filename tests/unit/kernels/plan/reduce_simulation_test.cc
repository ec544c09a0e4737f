// GEMM+RS and GEMM+AR as step machines over three launches without barriers: no order of steps gets stuck, no
// slot is overwritten before it is read, and every channel carries as many puts as its receiver expects.
#include <doctest/doctest.h>

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/ops/gemm_rs/plan.h"
#include "tests/unit/kernels/plan/simulation.h"

using namespace mkernel;
using namespace mkernel::kernels;
using test::SimulatedRole;

namespace {

constexpr std::uint64_t kLaunches = 3;
constexpr std::uint64_t kRoles = 4;

/// The counts that the roles share, and the rules they must keep.
struct World {
  const Topology& topology;
  const ReducePlan& plan;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> consumed;  // [source, reducer]
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint64_t>, std::uint64_t>
      slot;                                                                   // reducer, source, slot
  std::map<std::uint32_t, std::uint64_t> reduced;                             // by reducer
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> arrivals;  // [from, to]
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> credits;   // [owner, sender]
  std::map<std::uint32_t, std::uint64_t> finished;                            // launches, by owner
  std::map<std::uint32_t, std::uint64_t> joined;  // roles that ended a launch, by rank
  bool overwritten = false;

  std::uint64_t sequence(std::uint64_t epoch, std::uint32_t reducer, std::int64_t position) const {
    return epoch * static_cast<std::uint64_t>(plan.stream_length(reducer)) +
           static_cast<std::uint64_t>(position);
  }
};

/// The begin and the end of a launch: a rank starts no role before all roles of the launch before have ended.
void begin_launch(World& world, SimulatedRole& role, std::uint32_t rank, std::uint64_t epoch) {
  role.steps.push_back({[&world, rank, epoch] { return world.joined[rank] >= kRoles * epoch; }, [] {}});
}
void end_launch(World& world, SimulatedRole& role, std::uint32_t rank) {
  role.steps.push_back({[] { return true; }, [&world, rank] { ++world.joined[rank]; }});
}

SimulatedRole compute_role(World& world, std::uint32_t rank) {
  SimulatedRole role{"compute " + std::to_string(rank), {}, 0};
  for (std::uint64_t epoch = 0; epoch < kLaunches; ++epoch) {
    begin_launch(world, role, rank, epoch);
    for (const OwnedTile tile : world.plan.compute_order(rank)) {
      const std::uint32_t node = world.topology.node_of(rank);
      const std::uint32_t reducer = world.topology.rail_peer(tile.owner, node);
      const std::uint64_t at = world.sequence(epoch, reducer, world.plan.position(node, tile));
      const auto window = static_cast<std::uint64_t>(world.plan.window());
      role.steps.push_back({[&world, rank, reducer, at, window] {
                              return at < window || world.consumed[{rank, reducer}] + window >= at + 1;
                            },
                            [&world, rank, reducer, at, window] {
                              world.slot[{reducer, rank, at % window}] = at + 1;
                            }});
    }
    end_launch(world, role, rank);
  }
  return role;
}

SimulatedRole sum_node_role(World& world, std::uint32_t rank) {
  SimulatedRole role{"intra_comm " + std::to_string(rank), {}, 0};
  const auto length = static_cast<std::uint64_t>(world.plan.stream_length(rank));
  const auto window = static_cast<std::uint64_t>(world.plan.window());
  const std::uint32_t node = world.topology.node_of(rank);
  for (std::uint64_t at = 0; at < kLaunches * length; ++at) {
    if (at % length == 0) begin_launch(world, role, rank, at / length);
    const auto all = [&world, rank, node, at, window](bool exactly) {
      for (std::uint32_t local = 0; local < world.topology.ranks_per_node(); ++local) {
        const std::uint64_t seen = world.slot[{rank, world.topology.rank_at(node, local), at % window}];
        if (exactly ? seen != at + 1 : seen < at + 1) return false;
      }
      return true;
    };
    role.steps.push_back({[all] { return all(false); },
                          [&world, rank, node, at, all] {
                            world.overwritten |= !all(true);
                            world.reduced[rank] = at + 1;
                            for (std::uint32_t l = 0; l < world.topology.ranks_per_node(); ++l) {
                              world.consumed[{world.topology.rank_at(node, l), rank}] = at + 1;
                            }
                          }});
    if ((at + 1) % length == 0) end_launch(world, role, rank);
  }
  if (length == 0) {
    for (std::uint64_t epoch = 0; epoch < kLaunches; ++epoch) end_launch(world, role, rank);
  }
  return role;
}

SimulatedRole send_role(World& world, std::uint32_t rank) {
  SimulatedRole role{"inter_send " + std::to_string(rank), {}, 0};
  const std::uint32_t node = world.topology.node_of(rank);
  for (std::uint64_t epoch = 0; epoch < kLaunches; ++epoch) {
    begin_launch(world, role, rank, epoch);
    for (std::uint32_t step = 1; step < world.topology.nodes(); ++step) {
      const std::uint32_t owner = world.topology.rail_peer(rank, (node + step) % world.topology.nodes());
      const ChunkSplit split = world.plan.chunks(owner);
      for (std::int64_t chunk = 0; chunk < split.chunks(); ++chunk) {
        const Range tiles = split.chunk(chunk);
        const std::uint64_t written =
            tiles.size() == 0 ? 0
                              : world.sequence(epoch, rank, world.plan.position(node, {owner, tiles.end}));
        role.steps.push_back({[&world, rank, owner, epoch, written] {
                                return (epoch < 2 || world.credits[{owner, rank}] >= epoch - 1) &&
                                       world.reduced[rank] >= written;
                              },
                              [&world, rank, owner, epoch] {
                                // The half of the partials that this put lands in is read by nobody.
                                world.overwritten |= epoch >= 2 && world.finished[owner] + 1 < epoch;
                                ++world.arrivals[{rank, owner}];
                              }});
      }
    }
    end_launch(world, role, rank);
  }
  return role;
}

SimulatedRole sum_world_role(World& world, std::uint32_t rank) {
  SimulatedRole role{"inter_reduce " + std::to_string(rank), {}, 0};
  const std::uint32_t node = world.topology.node_of(rank);
  const ChunkSplit split = world.plan.chunks(rank);
  const auto chunks = static_cast<std::uint64_t>(split.chunks());
  for (std::uint64_t epoch = 0; epoch < kLaunches; ++epoch) {
    begin_launch(world, role, rank, epoch);
    for (std::uint64_t chunk = 0; chunk < chunks; ++chunk) {
      const Range tiles = split.chunk(static_cast<std::int64_t>(chunk));
      const std::uint64_t own =
          tiles.size() == 0 ? 0 : world.sequence(epoch, rank, world.plan.position(node, {rank, tiles.end}));
      role.steps.push_back({[&world, rank, node, own, expected = epoch * chunks + chunk + 1] {
                              for (std::uint32_t n = 0; n < world.topology.nodes(); ++n) {
                                const std::uint32_t peer = world.topology.rail_peer(rank, n);
                                if (n != node && world.arrivals[{peer, rank}] < expected) return false;
                              }
                              return world.reduced[rank] >= own;
                            },
                            [] {}});
    }
    role.steps.push_back({[] { return true; },
                          [&world, rank] {
                            ++world.finished[rank];
                            for (std::uint32_t n = 0; n < world.topology.nodes(); ++n) {
                              ++world.credits[{rank, world.topology.rail_peer(rank, n)}];
                            }
                          }});
    end_launch(world, role, rank);
  }
  return role;
}

}  // namespace

TEST_CASE("the reduction never gets stuck and never overwrites what is still read") {
  const Topology worlds[] = {{1, 1}, {1, 4}, {2, 2}, {2, 4}, {3, 2}, {4, 8}};
  for (const Topology& topology : worlds) {
    for (const GemmShape& shape : {GemmShape{1, 1, 1}, GemmShape{61, 37, 29}}) {
      for (const std::int64_t window : {1, 3}) {
        CAPTURE(topology.nodes());
        CAPTURE(topology.ranks_per_node());
        CAPTURE(window);
        const auto plan = GemmRsPlan::make(shape, topology, {Partial::kIoType, 8, 16, 300, window});
        REQUIRE(plan.ok());
        World world{topology, plan.value().reduce(), {}, {}, {}, {}, {}, {}, {}};
        std::vector<SimulatedRole> roles;
        for (std::uint32_t rank = 0; rank < topology.world(); ++rank) {
          roles.push_back(compute_role(world, rank));
          roles.push_back(sum_node_role(world, rank));
          roles.push_back(send_role(world, rank));
          roles.push_back(sum_world_role(world, rank));
        }
        CHECK(test::simulate(roles, 17) == "");
        CHECK_FALSE(world.overwritten);
        for (const auto& [channel, puts] : world.arrivals) {
          const auto chunks =
              static_cast<std::uint64_t>(plan.value().reduce().chunks(channel.second).chunks());
          CHECK(puts == kLaunches * chunks);
        }
      }
    }
  }
}
