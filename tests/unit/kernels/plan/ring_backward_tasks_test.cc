// The tasks of the backward pass of ring attention: who computes what, in which order gradients are added,
// and which partial gradients their owners wait for.
#include "kernels/plan/ring_backward_tasks.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/ops/ring_attention/backward/plan.h"
#include "kernels/ops/ring_attention/gpu_plan.h"
#include "kernels/plan/key_partials_plan.h"
#include "kernels/plan/positions.h"
#include "kernels/plan/put_key_partials_plan.h"
#include "tests/support/require.h"

namespace mkernel::test {
namespace {

using namespace mkernel::kernels;

AttentionShape shape_of(std::int64_t sequence, bool causal) {
  return {.batch = 2, .sequence = sequence, .heads = 4, .kv_heads = 2, .head_dim = 64, .causal = causal};
}

struct RankCase {
  RingBackwardPlan plan;
  std::int32_t world, rank;

  RankCase(const AttentionShape& shape, const Topology& topology, std::uint32_t of)
      : plan(require(RingBackwardPlan::make(shape, topology, of, kH200))),
        world(static_cast<std::int32_t>(topology.world())),
        rank(static_cast<std::int32_t>(of)) {}

  const RingBackwardTasks& tasks() const { return plan.tasks; }
  RingBackwardTasks::Place place(std::int32_t task) const { return plan.place(task); }
  /// Absolute positions of a tile of keys of a rank's part, and of a tile of own queries.
  Range keys(const RingBackwardTasks::Place& at) const {
    return tile_of(held(at.source).part[static_cast<std::size_t>(at.part)], at.tile, kBackwardTileKeys);
  }
  Range queries(std::int32_t tile) const {
    const int part = tile < tasks().first_tiles() ? 0 : 1;
    return tile_of(held(rank).part[static_cast<std::size_t>(part)], tile - part * tasks().first_tiles(),
                   kBackwardTileQueries);
  }
  /// Pairs of a query and a key that it sees.
  std::int64_t pairs(Range queries, Range keys) const {
    if (!plan.shape().causal) return queries.size() * keys.size();
    std::int64_t count = 0;
    for (std::int64_t query = queries.begin; query < queries.end; ++query)
      count += std::clamp<std::int64_t>(query + 1 - keys.begin, 0, keys.size());
    return count;
  }
  Positions held(std::int32_t of) const {
    return held_positions(plan.shape().sequence, plan.shape().causal, world, of);
  }

 private:
  static Range tile_of(Range part, std::int64_t tile, std::int64_t size) {
    const std::int64_t begin = part.begin + tile * size;
    return {begin, std::min(begin + size, part.end)};
  }
};

/// Of one node and of several.
const std::vector<Topology> kWorlds{{1, 1}, {1, 2}, {1, 3}, {1, 4}, {1, 8},
                                    {2, 1}, {3, 1}, {2, 2}, {2, 3}, {4, 2}};

template <class Check>
void for_every_world(const Check& check) {
  for (const Topology& topology : kWorlds) {
    for (const std::int64_t sequence : {1, 5, 64, 700, 2050}) {
      for (const bool causal : {false, true}) {
        const std::string world =
            std::to_string(topology.nodes()) + " x " + std::to_string(topology.ranks_per_node());
        CAPTURE(world);
        CAPTURE(sequence);
        CAPTURE(causal);
        check(shape_of(sequence, causal), topology);
      }
    }
  }
}
template <class Check>
void for_every_rank(const Check& check) {
  for_every_world([&](const AttentionShape& shape, const Topology& topology) {
    for (std::uint32_t rank = 0; rank < topology.world(); ++rank) check(RankCase(shape, topology, rank));
  });
}

/// Multiprocessors that take tasks in order. In every round each makes one step, unless it is not its turn to
/// add: adds of a round are seen in the next one.
class RingBackwardSimulation {
 public:
  RingBackwardSimulation(const RankCase& of, std::int32_t ctas)
      : of_(of),
        adds_(static_cast<std::size_t>(of.plan.gather().heads * of.tasks().query_tiles())),
        ctas_(static_cast<std::size_t>(ctas)) {}

  /// Rounds until all is done; 0: everybody waits.
  std::int32_t run() {
    for (std::int32_t round = 1;; ++round) {
      std::vector<std::size_t> added;
      bool busy = false, moved = false;
      for (Cta& cta : ctas_) {
        if (cta.left == 0) moved |= take(cta);
        if (cta.left == 0) continue;
        busy = true;
        const std::size_t at = unit(cta);
        if (adds_[at] != of_.tasks().turn(cta.place.before, cta.at.tile())) continue;
        added.push_back(at);
        cta.at.advance();
        --cta.left;
      }
      if (!busy) return round;
      if (!moved && added.empty()) return 0;
      for (const std::size_t at : added) ++adds_[at];
      steps_ += static_cast<std::int64_t>(added.size());
    }
  }
  std::int64_t steps() const { return steps_; }

 private:
  struct Cta {
    RingBackwardTasks::Place place;
    AttentionBackwardWalk walk;
    AttentionBackwardSteps at{walk, 1};
    std::int32_t left = 0;
  };

  std::size_t unit(const Cta& cta) const {
    return static_cast<std::size_t>(cta.place.head * of_.tasks().query_tiles() + cta.at.tile());
  }
  bool take(Cta& cta) {
    if (next_ == of_.tasks().tasks()) return false;
    cta.place = of_.place(next_++);
    cta.walk = of_.tasks().walk(cta.place);
    cta.at = AttentionBackwardSteps(cta.walk, 1);
    cta.left = cta.at.steps();
    return true;
  }

  const RankCase& of_;
  std::vector<std::int32_t> adds_;
  std::vector<Cta> ctas_;
  std::int32_t next_ = 0;
  std::int64_t steps_ = 0;
};

}  // namespace

TEST_CASE("ring backward tasks: every pair of a query and a key that it sees is in one task") {
  for_every_rank([](const RankCase& of) {
    std::int64_t pairs = 0;
    std::set<std::tuple<int, int, int, int>> tiles;
    for (std::int32_t task = 0; task < of.tasks().tasks(); ++task) {
      const RingBackwardTasks::Place place = of.place(task);
      CHECK((place.source == of.rank) == (task < of.tasks().own_tasks()));
      tiles.emplace(place.source, place.part, place.head, place.tile);
      for (std::int32_t tile = 0; tile < of.tasks().query_tiles(); ++tile) {
        const Range queries = of.queries(tile), keys = of.keys(place);
        const std::int64_t seen = of.pairs(queries, keys);
        CHECK((tile >= place.first_query_tile) == (seen > 0));
        // Masks are for the diagonals of own parts alone.
        const bool own_part =
            place.source == of.rank && (tile < of.tasks().first_tiles() ? 0 : 1) == place.part;
        if (seen > 0 && !own_part) CHECK(seen == queries.size() * keys.size());
        pairs += seen;
      }
    }
    CHECK(tiles.size() == static_cast<std::size_t>(of.tasks().tasks()));
    std::int64_t all = 0;
    for (const Range& part : of.held(of.rank).part) all += of.pairs(part, {0, of.plan.shape().sequence});
    CHECK(pairs == all * of.plan.gather().heads);
  });
}

TEST_CASE("ring backward tasks: a tile of queries takes adds in the order of the tasks") {
  for_every_rank([](const RankCase& of) {
    std::map<std::pair<int, int>, std::int32_t> added;  // by head and tile of queries
    for (std::int32_t task = 0; task < of.tasks().tasks(); ++task) {
      const RingBackwardTasks::Place place = of.place(task);
      for (std::int32_t tile = place.first_query_tile; tile < of.tasks().query_tiles(); ++tile)
        CHECK(of.tasks().turn(place.before, tile) == added[{place.head, tile}]++);
    }
    for (std::int32_t head = 0; head < of.plan.gather().heads; ++head) {
      for (std::int32_t tile = 0; tile < of.tasks().query_tiles(); ++tile)
        CHECK(of.tasks().adds(tile) == added[{head, tile}]);
    }
  });
}

TEST_CASE("ring backward tasks: nobody waits in a circle, with any number of multiprocessors") {
  for_every_rank([](const RankCase& of) {
    for (const std::int32_t ctas : {1, 2, 7, 40}) CHECK(RingBackwardSimulation(of, ctas).run() > 0);
  });
}

TEST_CASE("ring backward tasks: turns cost little, and multiprocessors end together") {
  for (const Topology& topology : {Topology{1, 4}, Topology{2, 2}}) {
    for (const bool causal : {false, true}) {
      for (const std::uint32_t rank : {0U, 3U}) {
        const RankCase of(
            {.batch = 4, .sequence = 24576, .heads = 16, .kv_heads = 16, .head_dim = 128, .causal = causal},
            topology, rank);
        RingBackwardSimulation simulation(of, 132);
        const std::int32_t rounds = simulation.run();
        const double busy = double(simulation.steps()) / 132 / rounds;
        CAPTURE(topology.nodes());
        CAPTURE(causal);
        CAPTURE(busy);
        CHECK(busy > 0.97);
      }
    }
  }
}

TEST_CASE("ring backward tasks: over several nodes other nodes' keys come between own ones and the node's") {
  const RankCase of(
      {.batch = 4, .sequence = 24576, .heads = 16, .kv_heads = 16, .head_dim = 128, .causal = true}, {3, 2},
      2);
  const auto group = [&](std::int32_t source) {
    return source == of.rank ? 0 : source / 2 == of.rank / 2 ? 2 : 1;
  };
  std::int32_t last = 0, head = 0, far_tasks = 0;
  for (std::int32_t task = 0; task < of.tasks().tasks(); ++task) {
    const RingBackwardTasks::Place place = of.place(task);
    CHECK(group(place.source) >= last);
    last = group(place.source);
    if (last != 1) continue;
    // A part of a head has 16 tiles here: so many heads keep 132 multiprocessors busy.
    constexpr std::int32_t kSectionHeads = 9;
    CHECK(place.head / kSectionHeads >= head / kSectionHeads);
    head = place.head;
    ++far_tasks;
  }
  CHECK(far_tasks == of.plan.gather().heads * of.plan.far_tiles);
}

/// By owner, writer: the units that tasks send.
using SentUnits = std::map<std::pair<int, int>, std::set<std::int32_t>>;

SentUnits sent_units(const AttentionShape& shape, const Topology& topology) {
  SentUnits sent;
  for (std::uint32_t rank = 0; rank < topology.world(); ++rank) {
    const RankCase of(shape, topology, rank);
    const KvGatherPlan& gather = of.plan.gather();
    for (std::int32_t task = 0; task < of.tasks().tasks(); ++task) {
      const RingBackwardTasks::Place at = of.place(task);
      for (std::int32_t row = at.tile * kBackwardTileKeys;
           row < std::min((at.tile + 1) * kBackwardTileKeys, gather.part_rows[at.source][at.part]);
           row += KeyPartialsPlan::kRows) {
        const std::int32_t unit = KeyPartialsPlan::unit(gather, at.source, at.part, at.head, row);
        CHECK(unit < of.plan.partials.max_units);
        CHECK(sent[{at.source, of.rank}].insert(unit).second);
      }
    }
  }
  return sent;
}

TEST_CASE("ring backward tasks: owners wait for the partial gradients that others send, each in its slot") {
  for_every_world([](const AttentionShape& shape, const Topology& topology) {
    SentUnits sent = sent_units(shape, topology);
    for (std::uint32_t rank = 0; rank < topology.world(); ++rank) {
      const RankCase of(shape, topology, rank);
      const KvGatherPlan& gather = of.plan.gather();
      for (std::int32_t writer = 0; writer < of.world; ++writer) {
        std::set<std::int32_t> expected;
        for (std::int32_t head = 0; head < gather.heads; ++head) {
          for (int part = 0; part < 2; ++part) {
            if (!RingBackwardTasks::is_seen(gather, writer, of.rank, part)) continue;
            for (std::int32_t row = 0; row < gather.part_rows[of.rank][part]; row += KeyPartialsPlan::kRows)
              CHECK(expected.insert(KeyPartialsPlan::unit(gather, of.rank, part, head, row)).second);
          }
        }
        CHECK(expected == sent[{of.rank, writer}]);
      }
    }
  });
}

TEST_CASE(
    "ring backward plan: a node puts the units that its ranks send, each once, in order and in chunks") {
  for_every_world([](const AttentionShape& shape, const Topology& topology) {
    SentUnits sent = sent_units(shape, topology);
    const std::uint32_t ranks = topology.ranks_per_node();
    for (std::uint32_t rank = 0; rank < topology.world(); ++rank) {
      const RankCase of(shape, topology, rank);
      for (std::uint32_t distance = 1; distance < topology.nodes(); ++distance) {
        const auto d = static_cast<std::int32_t>(distance);
        const std::uint32_t owner = (rank + distance * ranks) % topology.world();
        const std::int32_t head_units = of.plan.put_units(d);
        std::set<std::int32_t> units, put;
        for (std::uint32_t writer = rank / ranks * ranks; writer < (rank / ranks + 1) * ranks; ++writer)
          units.merge(sent[{static_cast<int>(owner), static_cast<int>(writer)}]);
        std::int32_t count = 0;
        for (std::int32_t number = 0; number < of.plan.all_put_units(); ++number) {
          const RingBackwardPlan::PutUnit at = of.plan.put_unit(number);
          if (at.distance != d) continue;
          CHECK(at.owner == static_cast<std::int32_t>(owner));
          CHECK(put.insert(at.unit).second);
          CHECK(at.packed == count);
          CHECK((at.rows >= 1 && at.rows <= KeyPartialsPlan::kRows));
          ++count;
        }
        CHECK(put == units);
        CHECK(count == of.plan.gather().heads * head_units);
        const RankCase peer(shape, topology, owner);
        CHECK(peer.plan.come_units(static_cast<std::int32_t>(topology.nodes() - distance)) == head_units);
      }
    }
  });
}

TEST_CASE("ring backward plan: a rank adds up every unit of its own keys once, whoever has parts of it") {
  for_every_rank([](const RankCase& of) {
    std::set<std::int32_t> units;
    std::int32_t rows = 0;
    for (std::int32_t number = 0; number < of.plan.all_own_units(); ++number) {
      const RingBackwardPlan::OwnUnit at = of.plan.own_unit(number);
      rows += at.rows;
      if (at.rows > 0) CHECK(units.insert(at.unit).second);
    }
    const KvGatherPlan& gather = of.plan.gather();
    CHECK(std::ssize(units) == gather.heads * KeyPartialsPlan::units_of(gather, of.rank));
    CHECK(rows == gather.rows(of.rank));
  });
}

TEST_CASE("ring backward plan: slots and words lie behind each other, and the same on every rank") {
  const RankCase first(shape_of(2050, true), {1, 3}, 0), last(shape_of(2050, true), {1, 3}, 2);
  const KeyPartialsPlan& plan = first.plan.partials;
  CHECK(plan.slot_offset(0, 0) >= first.plan.gather().data_bytes());
  CHECK(plan.slot_offset(0, 0) % KeyPartialsPlan::kAlignment == 0);
  CHECK(plan.word_offset(0, 0) == first.plan.gather().word_bytes());
  CHECK(plan.slot_offset(1, 0) == plan.slot_offset(0, plan.max_units));
  CHECK(plan.word_offset(1, 0) == plan.word_offset(0, plan.max_units));
  CHECK(plan.slot_offset(0, 1) - plan.slot_offset(0, 0) == 2 * 64 * 64 * 2);
  CHECK(plan.slot_offset(2, 5) == last.plan.partials.slot_offset(2, 5));
  CHECK(plan.word_offset(2, 5) == last.plan.partials.word_offset(2, 5));
  CHECK(plan.data_bytes() == last.plan.partials.data_bytes());
  CHECK(plan.data_bytes() == first.plan.data_bytes());
}

TEST_CASE(
    "ring backward plan: over several nodes what is staged and put lies behind the slots, in whole chunks") {
  const RankCase of(
      {.batch = 2, .sequence = 24576, .heads = 16, .kv_heads = 16, .head_dim = 128, .causal = true}, {3, 2},
      2);
  const PutKeyPartialsPlan& puts = of.plan.puts;
  CHECK(puts.staged_offset(1, 0) == of.plan.partials.data_bytes());
  CHECK(puts.staged_offset(2, 0) == puts.staged_offset(1, puts.max_units));
  CHECK(puts.partial_offset(1, 0) == puts.staged_offset(2, puts.max_units));
  CHECK(puts.data_bytes() == puts.partial_offset(2, puts.max_units));
  CHECK(puts.chunk_units * puts.unit_bytes == 1 << 20);
  const std::int32_t units = puts.chunk_units * 2 + 5;
  CHECK(puts.chunks(units) == 3);
  CHECK(puts.chunk_begin(2, units) == 2 * puts.chunk_units);
  CHECK(puts.chunk_begin(3, units) == units);
  CHECK(puts.chunks_whole(puts.chunk_units - 1, units) == 0);
  CHECK(puts.chunks_whole(puts.chunk_units, units) == 1);
  CHECK(puts.chunks_whole(units - 1, units) == 2);
  CHECK(puts.chunks_whole(units, units) == 3);
  CHECK(puts.count(4, 2, units) == 4 * 3 + 3);
  CHECK(puts.chunks(0) == 0);
  // Of a rank that comes first the queries of a node that comes later see the first part alone.
  CHECK(of.plan.put_units(2) == KeyPartialsPlan::units_of(of.plan.gather(), 0, 0));
  CHECK(of.plan.put_units(1) == KeyPartialsPlan::units_of(of.plan.gather(), 4));
  CHECK(of.plan.lanes() == 2);
  CHECK(of.plan.wire_bytes() ==
        of.plan.ring.wire_bytes() + 32 * std::uint64_t(of.plan.put_units(1) + of.plan.put_units(2)) * 32768);
}

TEST_CASE("ring backward plan: what is refused, by name") {
  const AttentionShape shape = shape_of(4096, true);
  const auto refusal = [&](const Topology& topology, const RingAttentionOptions& options) {
    return RingBackwardPlan::make(shape, topology, 0, kH200, options).status().to_string();
  };
  CHECK(refusal({17, 1}, {}).find("ring_attention_backward: nodes = 17, must be at most 16") !=
        std::string::npos);
  CHECK(refusal({1, 2}, {.comm_ctas = 67}).find("ring_attention_backward: comm_ctas = 67, must be 0..66") !=
        std::string::npos);
}

}  // namespace mkernel::test
