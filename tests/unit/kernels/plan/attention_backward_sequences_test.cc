#include "kernels/plan/attention_backward_sequences.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/ops/ring_attention/attention_slots.h"

namespace mkernel::test {
namespace {

using namespace mkernel::kernels;

/// Sequences that meet every border: none of either, of one row, those that end with a tile and within one.
struct Packed {
  std::vector<std::int32_t> q{0, 5, 5, 135, 136, 264, 341, 341, 641, 746, 746},
      k{0, 9, 49, 179, 499, 627, 627, 627, 827, 1025, 1025};

  AttentionLengths lengths() const {
    return {q.data(), k.data(), static_cast<std::int32_t>(q.size()) - 1, 760, 1030};
  }
};

/// Every mask, windows that hide everything else up to nothing, and heads that share keys or do not.
template <class Run>
void for_every_list(const Run& run) {
  for (const std::int32_t group : {1, 3}) {
    for (const bool causal : {false, true}) run(AttentionBackwardTaskList{4, group, 128, causal});
    for (const std::int32_t left : {0, 1, 63, 64, 127, 128, 200, 1029})
      for (const std::int32_t right : {0, 1, 64, 129, 759})
        run(AttentionBackwardTaskList{4, group, 128, false, {left, right}});
  }
}

/// Whether a query of the tile sees a key of the other one, which has no gaps: query by query.
bool sees(const AttentionBackwardTaskList& list, const AttentionSequence& sequence, std::int32_t query_tile,
          std::int32_t key_tile) {
  const AttentionWindow window =
      list.has_window() ? list.window : AttentionWindow{.right = list.causal ? 0 : AttentionWindow::kAll};
  const std::int32_t begin = query_tile * kBackwardTileQueries;
  for (std::int32_t i = begin; i < std::min(begin + kBackwardTileQueries, sequence.queries); ++i) {
    const AttentionKeys keys = attention_window_keys(sequence, window, i, i + 1);
    if (keys.first < std::min(keys.end, (key_tile + 1) * kBackwardTileKeys) &&
        key_tile * kBackwardTileKeys < keys.end)
      return true;
  }
  return false;
}

/// Multiprocessors that take the tasks of a list in order. In every round each makes one step, unless it is
/// not its turn to add: adds of a round are seen in the next one.
class ListSimulation {
 public:
  ListSimulation(const AttentionBackwardTaskList& list, const AttentionLengths& lengths, std::size_t ctas)
      : list_(list), slots_(attention_slots(list, lengths)), ctas_(ctas) {}

  /// The part of the time in which they make steps; 0: everybody waits.
  double run() {
    std::int64_t steps = 0;
    for (std::int64_t round = 1;; ++round) {
      std::vector<Unit> added;
      bool busy = false;
      for (Cta& cta : ctas_) {
        if (cta.left == 0) take(cta);
        if (cta.left == 0) continue;
        busy = true;
        const Unit unit = unit_of(cta);
        if (adds_[unit] != turn_of(cta)) continue;
        added.push_back(unit);
        --cta.left;
        cta.at.advance();
      }
      if (!busy) return double(steps) / double(round - 1) / double(ctas_.size());
      if (added.empty()) return 0;
      for (const Unit& unit : added) ++adds_[unit];
      steps += std::ssize(added);
    }
  }
  /// Whether every tile of queries of every head has had the adds that it waits for in the end.
  bool all_added(const AttentionLengths& lengths) const {
    std::int64_t all = 0, done = 0;
    const auto numbers =
        static_cast<std::int32_t>(attention_first_query_tile(lengths.all_queries, lengths.sequences));
    for (std::int32_t tile = 0; tile < numbers; ++tile)
      all += attention_query_tile(lengths, list_.causal, tile, list_.window).adds;
    for (const auto& [unit, adds] : adds_) done += adds;
    return done == all * list_.kv_heads * list_.group;
  }

 private:
  using Unit = std::pair<std::int32_t, std::int32_t>;  // a head, and the number of a tile of queries

  struct Cta {
    AttentionBackwardSlot slot;
    AttentionBackwardTaskList::Place place;
    AttentionBackwardSteps at{place.walk, 1};
    std::int32_t left = 0;
  };

  void take(Cta& cta) {
    if (next_ == slots_.back().tasks_before) return;
    const auto count = static_cast<std::int32_t>(slots_.size()) - 1;
    cta.slot = slots_[static_cast<std::size_t>(attention_slot_of(slots_.data(), count, next_))];
    cta.place = list_.place(cta.slot, next_++ - cta.slot.tasks_before);
    cta.at = AttentionBackwardSteps(cta.place.walk, list_.group);
    cta.left = cta.at.steps();
  }
  Unit unit_of(const Cta& cta) const {
    return {cta.place.kv_head * list_.group + cta.at.head(), cta.slot.first_tile + cta.at.tile()};
  }
  std::int32_t turn_of(const Cta& cta) const {
    if (!list_.has_window()) return cta.place.turn;
    const AttentionSequence& sequence = cta.slot.sequence;
    return cta.place.turn -
           AttentionBackwardWindowTiles{sequence.queries, sequence.keys, list_.window}.first_key_tile(
               cta.at.tile());
  }

  const AttentionBackwardTaskList list_;
  const std::vector<AttentionBackwardSlot> slots_;
  std::vector<Cta> ctas_;
  std::map<Unit, std::int32_t> adds_;
  std::int32_t next_ = 0;
};

}  // namespace

TEST_CASE("attention backward sequences: a number is of one tile of queries at most, and all rows have one") {
  const Packed packed;
  const AttentionLengths lengths = packed.lengths();
  std::vector<int> seen(746);
  const auto numbers = static_cast<std::int32_t>(attention_first_query_tile(760, lengths.sequences));
  for (std::int32_t tile = 0; tile < numbers; ++tile) {
    const AttentionQueryTile at = attention_query_tile(lengths, false, tile);
    REQUIRE(at.end - at.begin <= kBackwardTileQueries);
    for (std::int32_t row = at.begin; row < at.end; ++row) {
      ++seen[static_cast<std::size_t>(row)];
      // None has rows of two sequences.
      const auto of = std::upper_bound(packed.q.begin(), packed.q.end(), row);
      CHECK((at.begin >= *(of - 1) && at.end <= *of));
    }
  }
  CHECK(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
}

TEST_CASE("attention backward sequences: every tile of keys that a query sees once, each add in its turn") {
  const Packed packed;
  const AttentionLengths lengths = packed.lengths();
  for_every_list([&](const AttentionBackwardTaskList& list) {
    const std::vector<AttentionBackwardSlot> slots = attention_slots(list, lengths);
    const auto count = static_cast<std::int32_t>(slots.size()) - 1;
    std::set<std::tuple<int, int>> tiles;  // head and first row of keys
    // By head and number of the tile of queries: adds before each task's, in the order of tasks.
    std::map<std::pair<int, int>, std::vector<std::int32_t>> turns;
    for (std::int32_t task = 0; task < slots.back().tasks_before; ++task) {
      const AttentionBackwardSlot& slot =
          slots[static_cast<std::size_t>(attention_slot_of(slots.data(), count, task))];
      const auto place = list.place(slot, task - slot.tasks_before);
      const AttentionSequence& sequence = slot.sequence;
      REQUIRE((place.kv_head >= 0 && place.kv_head < list.kv_heads));
      REQUIRE((place.tile >= 0 && place.tile * kBackwardTileKeys < sequence.keys));
      tiles.emplace(place.kv_head, sequence.key_first + place.tile * kBackwardTileKeys);
      const auto [first, last] = std::minmax(place.walk.first, place.walk.last);
      for (std::int32_t tile = 0; tile * kBackwardTileQueries < sequence.queries; ++tile) {
        const bool seen = sees(list, sequence, tile, place.tile);
        CHECK((tile >= first && tile <= last) == seen);
        if (!seen) continue;
        const AttentionBackwardWindowTiles of{sequence.queries, sequence.keys, list.window};
        turns[{place.kv_head, slot.first_tile + tile}].push_back(
            place.turn - (list.has_window() ? of.first_key_tile(tile) : 0));
      }
    }
    std::size_t all = 0;
    for (std::int32_t i = 0; i < lengths.sequences; ++i) {
      const AttentionSequence sequence = attention_sequence(lengths, i);
      for (std::int32_t tile = 0; tile < AttentionBackwardTiles::key_tiles(sequence.keys); ++tile) {
        bool seen = false;
        for (std::int32_t query = 0; query * kBackwardTileQueries < sequence.queries; ++query)
          seen = seen || sees(list, sequence, query, tile);
        // Without a window the last query sees every key.
        if (sequence.queries > 0) CHECK((tile >= list.unseen_tiles(sequence)) == seen);
        if (seen) all += static_cast<std::size_t>(list.kv_heads);
      }
    }
    CHECK(tiles.size() == all);
    CHECK(slots.back().tasks_before == static_cast<std::int32_t>(all));
    for (const auto& [tile, in_order] : turns) {
      CHECK(static_cast<std::int32_t>(in_order.size()) ==
            attention_query_tile(lengths, list.causal, tile.second, list.window).adds);
      for (std::size_t i = 0; i < in_order.size(); ++i) CHECK(in_order[i] == static_cast<std::int32_t>(i));
    }
  });
}

TEST_CASE("attention backward sequences: nobody waits in a circle, with any number of multiprocessors") {
  const Packed packed;
  for_every_list([&](const AttentionBackwardTaskList& list) {
    for (const std::size_t ctas : {1, 2, 7, 40}) {
      ListSimulation simulation(list, packed.lengths(), ctas);
      CHECK(simulation.run() > 0);
      CHECK(simulation.all_added(packed.lengths()));
    }
  });
}

TEST_CASE("attention backward sequences: turns cost little with a window, and multiprocessors end together") {
  constexpr AttentionWindow kWindows[] = {{127, 0}, {1023, 0}, {4095, 0}, {512, 512}, {16383, 0}};
  for (const AttentionWindow& window : kWindows) {
    for (const std::int32_t heads : {32, 8}) {
      const AttentionBackwardTaskList list{heads, 32 / heads, 128, false, window};
      const AttentionLengths lengths{nullptr, nullptr, 1, 16384, 16384};
      ListSimulation simulation(list, lengths, 132);
      const double busy = simulation.run();
      CAPTURE(window.left);
      CAPTURE(window.right);
      CAPTURE(heads);
      CAPTURE(busy);
      CHECK(busy > 0.93);
    }
  }
}

TEST_CASE("attention backward sequences: those with most queries come first") {
  const Packed packed;
  const std::vector<AttentionBackwardSlot> slots =
      attention_slots(AttentionBackwardTaskList{2, 1, 64, true}, packed.lengths());
  for (std::size_t i = 1; i + 1 < slots.size(); ++i)
    CHECK(slots[i - 1].sequence.queries >= slots[i].sequence.queries);
}

}  // namespace mkernel::test
