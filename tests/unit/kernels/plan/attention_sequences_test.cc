// Sequences of different lengths: which lengths are good, what a window shows, and the list of tasks.
#include "kernels/plan/attention_sequences.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

namespace mkernel::test {
namespace {

using namespace mkernel::kernels;

const std::vector<std::int32_t> kQueries{0, 5, 5, 300}, kKeys{0, 0, 9, 400};
AttentionLengths lengths_of(const std::vector<std::int32_t>& q, const std::vector<std::int32_t>& k) {
  return {q.data(), k.data(), 3, 300, 400};
}

}  // namespace

TEST_CASE("attention sequences: the first bad entry is the one that is below the one before, or beyond all") {
  const auto bad = [](std::vector<std::int32_t> q, std::vector<std::int32_t> k) {
    const AttentionLengths lengths = lengths_of(q, k);
    CHECK(attention_length_entries(lengths) == 8);
    for (std::int32_t i = 0; i < 8; ++i)
      if (const BadLength found = check_attention_length(lengths, i); found.number >= 0) return found;
    return BadLength{};
  };
  const auto is = [](const BadLength& found, std::int32_t number, std::int32_t least, std::int32_t most) {
    return found.number == number && found.least == least && found.most == most;
  };
  CHECK(bad(kQueries, kKeys).number == -1);
  CHECK(is(bad({1, 5, 5, 300}, kKeys), 0, 0, 0));
  CHECK(is(bad({0, 5, 4, 300}, kKeys), 2, 5, 300));
  CHECK(is(bad({0, 5, 5, 301}, {3, 2, 1, 0}), 3, 5, 300));
  CHECK(is(bad(kQueries, {0, -1, 9, 400}), 5, 0, 400));
  CHECK(is(bad(kQueries, {0, 0, 9, 401}), 7, 9, 400));
  CHECK(attention_length_entries({nullptr, nullptr, 3, 300, 400}) == 0);
}

TEST_CASE("attention sequences: where each lies, packed or all of one length") {
  const auto at = [](const AttentionLengths& lengths, std::int32_t sequence) {
    const AttentionSequence s = attention_sequence(lengths, sequence);
    return std::vector<std::int32_t>{s.query_first, s.queries, s.key_first, s.keys};
  };
  const AttentionLengths packed = lengths_of(kQueries, kKeys);
  CHECK(at(packed, 0) == std::vector<std::int32_t>{0, 5, 0, 0});
  CHECK(at(packed, 1) == std::vector<std::int32_t>{5, 0, 0, 9});
  CHECK(at(packed, 2) == std::vector<std::int32_t>{5, 295, 9, 391});
  CHECK(at({nullptr, nullptr, 3, 300, 400}, 2) == std::vector<std::int32_t>{600, 300, 800, 400});
}

TEST_CASE("attention sequences: a tile sees the keys that one of its queries sees, and no others") {
  constexpr std::int32_t kAll = AttentionWindow::kAll;
  for (const auto& [queries, keys] : {std::pair{7, 7}, {3, 9}, {9, 3}, {5, 0}, {1, 1}}) {
    const AttentionSequence sequence{0, queries, 0, keys};
    for (const std::int32_t left : {kAll, 0, 2, 100}) {
      for (const std::int32_t right : {kAll, 0, 1, 100}) {
        for (std::int32_t begin = 0; begin < queries; ++begin) {
          for (std::int32_t end = begin + 1; end <= queries; ++end) {
            std::set<std::int32_t> wanted;
            for (std::int32_t query = begin; query < end; ++query) {
              const std::int32_t own = query + keys - queries;
              for (std::int32_t key = 0; key < keys; ++key)
                if ((left == kAll || key >= own - left) && (right == kAll || key <= own + right))
                  wanted.insert(key);
            }
            const AttentionKeys seen = attention_window_keys(sequence, {left, right}, begin, end);
            CHECK(seen.end - seen.first == static_cast<std::int32_t>(wanted.size()));
            if (!wanted.empty()) CHECK(seen.first == *wanted.begin());
          }
        }
      }
    }
  }
}

TEST_CASE("attention sequences: every task is one tile of one head, sequences without queries have none") {
  constexpr std::int32_t kHeads = 6;
  std::vector<AttentionSlot> slots;
  std::int32_t tasks = 0;
  for (const std::int32_t queries : {0, 300, 0, 0, 1, 128, 0, 129, 0}) {
    slots.push_back({{0, queries, 0, 10}, tasks, 4});
    tasks += kHeads * ((queries + 127) / 128);
  }
  const auto count = static_cast<std::int32_t>(slots.size());
  slots.push_back({{}, tasks, 0});
  std::set<std::vector<std::int32_t>> seen;
  for (std::int32_t task = 0; task < tasks; ++task) {
    const std::int32_t at = attention_slot_of(slots.data(), count, task);
    const AttentionSlot& slot = slots[static_cast<std::size_t>(at)];
    const AttentionHeadTile tile = attention_slot_tile(slot, kHeads, task - slot.tasks_before);
    CHECK((tile.head >= 0 && tile.head < kHeads && tile.tile >= 0));
    CHECK(tile.tile * 128 < slot.sequence.queries);
    seen.insert({at, tile.head, tile.tile});
  }
  CHECK(seen.size() == static_cast<std::size_t>(tasks));
}

}  // namespace mkernel::test
