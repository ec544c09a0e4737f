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

/// Every mask, and heads that share keys or do not.
template <class Run>
void for_every_list(const Run& run) {
  for (const bool causal : {false, true})
    for (const std::int32_t group : {1, 3}) run(AttentionBackwardTaskList{4, group, 128, causal});
}

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
        const std::int32_t query = std::min((tile + 1) * kBackwardTileQueries, sequence.queries) - 1;
        const bool sees =
            !list.causal || place.tile * kBackwardTileKeys <= query + sequence.keys - sequence.queries;
        CHECK((tile >= first && tile <= last) == sees);
        if (sees) turns[{place.kv_head, slot.first_tile + tile}].push_back(place.turn);
      }
    }
    std::size_t all = 0;
    for (std::int32_t i = 0; i < lengths.sequences; ++i) {
      const AttentionSequence sequence = attention_sequence(lengths, i);
      if (sequence.queries > 0)
        all += static_cast<std::size_t>(AttentionBackwardTiles::key_tiles(sequence.keys) * list.kv_heads);
    }
    CHECK(tiles.size() == all);
    CHECK(slots.back().tasks_before == static_cast<std::int32_t>(all));
    for (const auto& [tile, in_order] : turns) {
      CHECK(static_cast<std::int32_t>(in_order.size()) ==
            attention_query_tile(lengths, list.causal, tile.second).adds);
      for (std::size_t i = 0; i < in_order.size(); ++i) CHECK(in_order[i] == static_cast<std::int32_t>(i));
    }
  });
}

TEST_CASE("attention backward sequences: those with most queries come first") {
  const Packed packed;
  const std::vector<AttentionBackwardSlot> slots =
      attention_slots(AttentionBackwardTaskList{2, 1, 64, true}, packed.lengths());
  for (std::size_t i = 1; i + 1 < slots.size(); ++i)
    CHECK(slots[i - 1].sequence.queries >= slots[i].sequence.queries);
}

}  // namespace mkernel::test
