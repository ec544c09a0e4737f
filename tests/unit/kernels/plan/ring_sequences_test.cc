// Ring attention over sequences of different lengths: who holds which rows, what every tile sees, and the
// list of tasks.
#include "kernels/plan/ring_sequences.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "kernels/plan/positions.h"

namespace mkernel::test {
namespace {

using namespace mkernel::kernels;

/// Rows of `source`, from its first one of the sequence on, whose positions the query at `position` sees.
std::int32_t seen_rows(const Positions& held, std::int64_t position) {
  std::int32_t seen = 0;
  for (std::int64_t row = 0; row < held.size(); ++row) seen += held.at(row) <= position ? 1 : 0;
  return seen;
}

}  // namespace

TEST_CASE("ring sequences: every row of a rank is in one tile, and no tile spans two parts") {
  for (const bool causal : {false, true}) {
    for (const std::int32_t rows : {0, 2, 126, 128, 130, 254, 256, 258, 770}) {
      CAPTURE(causal);
      CAPTURE(rows);
      std::vector<int> times(static_cast<std::size_t>(rows));
      for (std::int32_t i = 0; i < ring_tiles(rows, causal); ++i) {
        const RingTile tile = ring_tile(rows, causal, i);
        CHECK((tile.query < tile.query_end && tile.query_end - tile.query <= kAttentionTileQueries));
        const std::int32_t part_rows = rows / ring_parts(causal);
        CHECK(tile.query / part_rows == tile.part);
        CHECK((tile.query_end - 1) / part_rows == tile.part);
        for (std::int32_t row = tile.query; row < tile.query_end; ++row)
          ++times[static_cast<std::size_t>(row)];
      }
      CHECK(std::all_of(times.begin(), times.end(), [](int n) { return n == 1; }));
    }
  }
}

TEST_CASE("ring sequences: what a query sees of every rank is what the positions say") {
  for (const std::int32_t world : {1, 2, 3, 8}) {
    for (const std::int32_t rows : {2, 6, 130, 514}) {
      for (std::int32_t rank = 0; rank < world; ++rank) {
        const Positions own = held_positions(std::int64_t{rows} * world, true, world, rank);
        REQUIRE(own.size() == rows);
        for (std::int32_t i = 0; i < ring_tiles(rows, true); ++i) {
          const RingTile tile = ring_tile(rows, true, i);
          CHECK(tile.visible(rows, true) == seen_rows(own, own.at(tile.query)));
          CHECK(tile.keys(rows, true) == seen_rows(own, own.at(tile.query_end - 1)));
          for (std::int32_t source = 0; source < world; ++source) {
            if (source == rank) continue;
            const Positions held = held_positions(std::int64_t{rows} * world, true, world, source);
            const std::int32_t keys = ring_keys(rows / 2, true, tile.part, source < rank);
            CHECK(keys == seen_rows(held, own.at(tile.query)));
            CHECK(keys == seen_rows(held, own.at(tile.query_end - 1)));
          }
        }
      }
    }
  }
  CHECK(RingTile{0, 5, 9}.keys(20, false) == 20);
  CHECK(RingTile{0, 5, 9}.visible(20, false) == 20);
  CHECK(ring_keys(20, false, 0, false) == 20);
}

TEST_CASE("ring sequences: odd lengths are bad where two parts are needed, and only there") {
  const auto bad = [](const std::vector<std::int32_t>& entries, bool causal) {
    const AttentionLengths lengths{entries.data(), entries.data(), 3, 40, 40};
    CHECK(ring_length_entries(lengths) == 4);
    for (std::int32_t i = 0; i < ring_length_entries(lengths); ++i)
      if (const BadLength found = check_ring_length(lengths, causal, i); found.number >= 0)
        return std::vector<std::int32_t>{found.number, found.least, found.most, found.value};
    return std::vector<std::int32_t>{};
  };
  CHECK(bad({0, 6, 6, 40}, true).empty());
  CHECK(bad({0, 5, 12, 39}, false).empty());
  CHECK(bad({0, 5, 12, 40}, true) == std::vector<std::int32_t>{1, 0, 40, 5});
  CHECK(bad({0, 6, 12, 41}, true) == std::vector<std::int32_t>{3, 12, 40, 41});
  CHECK(bad({0, 6, 4, 40}, false) == std::vector<std::int32_t>{2, 6, 40, 4});
  CHECK(bad({1, 6, 6, 40}, true) == std::vector<std::int32_t>{0, 0, 0, 1});
}

TEST_CASE("ring sequences: every task is one tile of one head, long sequences and late queries first") {
  for (const bool causal : {false, true}) {
    for (const std::int32_t section_heads : {1, 2, 3, 6}) {
      constexpr std::int32_t kHeads = 6;
      std::vector<AttentionSlot> slots;
      std::int32_t tiles = 0;
      for (const std::int32_t rows : {600, 258, 256, 128, 2, 0, 0}) {
        slots.push_back({{0, rows, 0, rows}, tiles, section_heads});
        tiles += ring_tiles(rows, causal);
      }
      const auto count = static_cast<std::int32_t>(slots.size());
      slots.push_back({{}, tiles, 0});
      std::set<std::vector<std::int32_t>> seen;
      std::vector<std::int32_t> before;
      for (std::int32_t task = 0; task < ring_tasks(slots.data(), count, kHeads); ++task) {
        const RingPlace place = ring_place(slots.data(), count, kHeads, causal, task);
        REQUIRE((place.slot >= 0 && place.slot < count && place.head >= 0 && place.head < kHeads));
        const std::int32_t rows = slots[static_cast<std::size_t>(place.slot)].sequence.queries;
        CHECK((place.tile >= 0 && place.tile < ring_tiles(rows, causal)));
        seen.insert({place.slot, place.head, place.tile});
        // In the order of sections, sequences, tiles from the last one on, and heads.
        const std::vector<std::int32_t> now{place.head / section_heads, place.slot, -place.tile, place.head};
        CHECK(before < now);
        before = now;
      }
      CHECK(seen.size() == static_cast<std::size_t>(kHeads * tiles));
    }
  }
}

}  // namespace mkernel::test
