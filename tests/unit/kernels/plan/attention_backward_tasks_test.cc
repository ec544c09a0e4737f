#include "kernels/plan/attention_backward_tasks.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <list>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace mkernel::test {
namespace {

using namespace mkernel::kernels;

struct BackwardCase {
  std::int32_t batch, heads, kv_heads, queries, keys;
  bool causal;
  std::int32_t ctas = 0;  ///< that the plan is told

  AttentionBackwardTasks tasks() const {
    return AttentionBackwardTasks(batch, heads, kv_heads, queries, keys, 128, causal, ctas);
  }
  std::int32_t group() const { return heads / kv_heads; }
  std::int32_t key_tiles() const { return (keys + kBackwardTileKeys - 1) / kBackwardTileKeys; }
};

std::vector<BackwardCase> backward_cases() {
  std::vector<BackwardCase> all;
  for (const bool causal : {false, true}) {
    for (const std::int32_t queries : {1, 64, 65, 300, 1000}) {
      for (const std::int32_t keys : {1, 127, 128, 129, 300, 1500}) {
        all.push_back({2, 6, 3, queries, keys, causal});
        all.push_back({1, 1, 1, queries, keys, causal});
        // Two tasks for each of so many.
        all.push_back({1, 6, 3, queries, keys, causal, (keys + 127) / 128 * 3 / 2});
      }
    }
  }
  return all;
}

/// Multiprocessors that take tasks in order. In every round each makes one step, unless it is not its turn to
/// add: adds of a round are seen in the next one.
class BackwardSimulation {
 public:
  BackwardSimulation(const BackwardCase& of, std::int32_t ctas)
      : of_(of),
        tasks_(of.tasks()),
        adds_(static_cast<std::size_t>(of.batch * of.heads * tasks_.query_tiles())),
        ctas_(static_cast<std::size_t>(ctas)) {}

  /// Rounds until all is done; 0: everybody waits.
  std::int32_t run() {
    for (std::int32_t round = 1;; ++round) {
      std::vector<std::size_t> added;
      bool busy = false, moved = false;
      for (Cta& cta : ctas_) {
        if (cta.left == 0) moved |= take(cta);
        if (cta.left > 0) load(cta);
        busy |= cta.left > 0;
        if (cta.left == 0 || adds_[unit(cta)] != tasks_.turn(cta.place, cta.at.tile())) continue;
        added.push_back(unit(cta));
        advance(cta);
      }
      if (!busy) return round;
      if (!moved && added.empty()) return 0;
      for (const std::size_t at : added) ++adds_[at];
      steps_ += static_cast<std::int64_t>(added.size());
    }
  }
  std::int64_t steps() const { return steps_; }
  /// Of the steps, those whose queries were not in the L2.
  double missed() const { return static_cast<double>(misses_) / static_cast<double>(steps_); }
  bool all_added() const {
    for (std::size_t i = 0; i < adds_.size(); ++i)
      if (adds_[i] != tasks_.adds(static_cast<std::int32_t>(i) % tasks_.query_tiles())) return false;
    return true;
  }

 private:
  struct Cta {
    AttentionBackwardTasks::Place place;
    std::int32_t first_head = 0, left = 0;
    AttentionBackwardWalk walk;
    AttentionBackwardSteps at{walk, 1};
    bool loaded = false;
  };

  std::size_t unit(const Cta& cta) const {
    return static_cast<std::size_t>((cta.first_head + cta.at.head()) * tasks_.query_tiles() + cta.at.tile());
  }
  bool take(Cta& cta) {
    if (next_ == tasks_.tasks()) return false;
    cta.place = tasks_.place(next_++);
    cta.first_head = cta.place.batch * of_.heads + cta.place.kv_head * of_.group();
    cta.walk = tasks_.walk(cta.place);
    cta.at = AttentionBackwardSteps(cta.walk, of_.group());
    cta.left = cta.at.steps();
    return true;
  }
  /// Queries of the CTA's step, the gradients of their outputs and their own, into the L2. The least recently
  /// used ones leave it.
  void load(Cta& cta) {
    constexpr std::size_t kTiles = 30'000'000 / (kBackwardTileQueries * 128 * (2 + 2 + 4));
    if (cta.loaded) return;
    cta.loaded = true;
    const std::size_t tile = unit(cta);
    const auto found = in_l2_.find(tile);
    if (found != in_l2_.end()) {
      by_use_.erase(found->second);
    } else {
      ++misses_;
    }
    by_use_.push_front(tile);
    in_l2_[tile] = by_use_.begin();
    if (by_use_.size() <= kTiles) return;
    in_l2_.erase(by_use_.back());
    by_use_.pop_back();
  }
  static void advance(Cta& cta) {
    --cta.left;
    cta.loaded = false;
    cta.at.advance();
  }

  const BackwardCase of_;
  const AttentionBackwardTasks tasks_;
  std::vector<std::int32_t> adds_;
  std::vector<Cta> ctas_;
  std::int32_t next_ = 0;
  std::int64_t steps_ = 0, misses_ = 0;
  std::list<std::size_t> by_use_;
  std::unordered_map<std::size_t, std::list<std::size_t>::iterator> in_l2_;
};

}  // namespace

TEST_CASE("attention backward tasks: every tile of keys once") {
  for (const BackwardCase& of : backward_cases()) {
    const AttentionBackwardTasks tasks = of.tasks();
    std::set<std::tuple<int, int, int>> seen;
    for (std::int32_t i = 0; i < tasks.tasks(); ++i) {
      const auto [batch, kv_head, tile, downwards] = tasks.place(i);
      CHECK((of.causal || !downwards));
      CHECK((batch >= 0 && batch < of.batch && kv_head >= 0 && kv_head < of.kv_heads));
      CHECK((tile >= 0 && tile < of.key_tiles()));
      seen.emplace(batch, kv_head, tile);
    }
    CHECK(seen.size() == static_cast<std::size_t>(of.batch * of.kv_heads * of.key_tiles()));
    CHECK(static_cast<std::size_t>(tasks.tasks()) == seen.size());
  }
}

TEST_CASE("attention backward tasks: a task walks the tiles of queries that see its keys, each in its turn") {
  for (const BackwardCase& of : backward_cases()) {
    const AttentionBackwardTasks tasks = of.tasks();
    // By head of keys and tile of queries: adds before each task's, in the order of tasks.
    std::map<std::tuple<int, int, int>, std::vector<std::int32_t>> turns;
    for (std::int32_t i = 0; i < tasks.tasks(); ++i) {
      const AttentionBackwardTasks::Place place = tasks.place(i);
      const AttentionBackwardWalk walk = tasks.walk(place);
      const std::int32_t first = walk.first, last = walk.last;
      for (std::int32_t query_tile = 0; query_tile < tasks.query_tiles(); ++query_tile) {
        const std::int32_t query = std::min((query_tile + 1) * kBackwardTileQueries, of.queries) - 1;
        const bool sees = !of.causal || place.tile * kBackwardTileKeys <= query + of.keys - of.queries;
        CHECK((query_tile >= std::min(first, last) && query_tile <= std::max(first, last)) == sees);
        if (sees) turns[{place.batch, place.kv_head, query_tile}].push_back(tasks.turn(place, query_tile));
      }
    }
    for (const auto& [tile, in_order] : turns) {
      CHECK(in_order.size() == static_cast<std::size_t>(tasks.adds(std::get<2>(tile))));
      for (std::size_t i = 0; i < in_order.size(); ++i) CHECK(in_order[i] == static_cast<std::int32_t>(i));
    }
  }
}

TEST_CASE("attention backward tasks: nobody waits in a circle, with any number of multiprocessors") {
  for (const BackwardCase& of : backward_cases()) {
    for (const std::int32_t ctas : {1, 2, 7, 40}) {
      BackwardSimulation simulation(of, ctas);
      CHECK(simulation.run() > 0);
      CHECK(simulation.all_added());
    }
  }
}

TEST_CASE("attention backward tasks: the second half of the keys upwards finds queries in the L2") {
  for (const std::int32_t sequence : {8192, 16384}) {
    double missed[2];
    for (const bool upwards : {false, true}) {
      BackwardSimulation simulation({1, 64, 8, sequence, sequence, true, upwards ? 132 : 0}, 132);
      const double busy = 132.0 * simulation.run() / static_cast<double>(simulation.steps());
      CHECK(busy < 1.08);
      missed[upwards] = simulation.missed();
    }
    CAPTURE(sequence);
    CAPTURE(missed[0]);
    CAPTURE(missed[1]);
    CHECK(missed[0] > 0.2);
    CHECK(missed[1] < 0.08);
  }
}

TEST_CASE("attention backward tasks: turns cost little, and multiprocessors end together") {
  struct Shape {
    std::int32_t sequence, heads, kv_heads;
    double full, causal;  // the part of the time in which multiprocessors make steps, at least
  };
  for (const Shape shape : {Shape{6144, 64, 64, 0.95, 0.98},
                            {12288, 64, 64, 0.95, 0.98},
                            {8192, 24, 24, 0.95, 0.98},
                            {8192, 64, 8, 0.95, 0.98},
                            {4096, 32, 8, 0.93, 0.93}}) {
    for (const bool causal : {false, true}) {
      BackwardSimulation simulation({1, shape.heads, shape.kv_heads, shape.sequence, shape.sequence, causal},
                                    132);
      const std::int32_t rounds = simulation.run();
      const double busy = double(simulation.steps()) / 132 / rounds;
      CAPTURE(shape.sequence);
      CAPTURE(shape.kv_heads);
      CAPTURE(causal);
      CAPTURE(busy);
      CHECK(busy > (causal ? shape.causal : shape.full));
    }
  }
}

}  // namespace mkernel::test
