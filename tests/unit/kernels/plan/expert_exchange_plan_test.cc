// Words, data and puts of the exchange between the ranks of a mixture of experts.
#include "kernels/plan/expert_exchange_plan.h"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "kernels/plan/expert_table.h"

namespace mkernel::kernels {

TEST_CASE("experts: words and data of the exchange do not overlap, and a block's count is the epoch's") {
  ExpertExchangePlan plan{.owners = {5, 2},
                          .ranks_per_node = 2,
                          .cut = {8, 4},
                          .capacity_rows = 24,
                          .max_tokens = 6,
                          .topk = 2,
                          .pieces = 4,
                          .columns1 = 3,
                          .columns2 = 2,
                          .row_bytes = 16,
                          .hidden_bytes = 48,
                          .finished_bytes = 32};
  CHECK(plan.max_blocks() == 4);
  for (const auto& [ranks_per_node, shared_columns] : {std::pair{2, 0}, {1, 0}, {2, 3}, {1, 4}}) {
    plan.ranks_per_node = ranks_per_node;
    plan.shared_columns1 = shared_columns;
    plan.shared_bytes = shared_columns * std::uint64_t{16};
    const std::int32_t shared_blocks = shared_columns > 0 ? 1 : 0;
    CHECK(plan.shared_blocks(plan.max_tokens) == shared_blocks);
    std::set<std::uint64_t> words;
    std::size_t count = 0;
    const auto add = [&](std::uint64_t at) {
      words.insert(at);
      ++count;
      CHECK(at % 8 == 0);
      CHECK(at < plan.word_bytes());
    };
    for (std::int32_t source = 0; source < 2; ++source) add(plan.counted(source));
    for (std::int32_t block = 0; block < 4; ++block) {
      add(plan.arrived(block));
      add(plan.stored(block));
      for (std::int32_t column = 0; column < 3; ++column) add(plan.hidden_word(block, column));
    }
    for (std::int32_t block = 0; block < shared_blocks; ++block) {
      add(plan.shared_stored(block));
      for (std::int32_t column = 0; column < shared_columns; ++column)
        add(plan.shared_hidden_word(block, column));
    }
    CHECK(plan.entries() == plan.nodes() * 12 + (shared_columns > 0 ? 6 : 0));
    for (std::int32_t entry = 0; entry < plan.entries(); ++entry) add(plan.finished_word(entry));
    for (std::int32_t turn = 0; turn < plan.others(); ++turn) {
      for (std::int32_t row = 0; row < plan.max_tokens; ++row) {
        add(plan.staged_word(turn, row));
        add(plan.forwarded_word(turn, row));
        add(plan.summed_word(turn, row));
      }
    }
    CHECK(words.size() == count);

    CHECK(plan.counts(0, 0) == plan.word_bytes());
    CHECK(plan.counts(1, 0) == plan.counts(0, 1) + plan.counts_bytes());
    CHECK(plan.counts(2, 1) == plan.counts(0, 1));
    CHECK(plan.row(0) >= plan.counts(1, 1) + 16 + 5 * 4);
    CHECK(plan.origin(0) >= plan.row(24));
    CHECK(plan.hidden(0) >= plan.origin(24));
    CHECK(plan.shared_hidden(0) >= plan.hidden(24));
    CHECK(plan.finished(0) >= plan.shared_hidden(6));
    CHECK(plan.crossing_out(0, 0) >= plan.finished(plan.entries()));
    CHECK(plan.crossing_in(0, 0) == plan.crossing_out(plan.others(), 0));
    CHECK(plan.sum_out(0, 0) >= plan.crossing_in(plan.others(), 0));
    CHECK(plan.bytes() >= plan.sum_in(plan.others(), 0));
  }
  CHECK(plan.crossed_entry(0, 1) == 14);
  for (const std::int32_t rows : {1, 3, 4, 7, 100}) {
    for (std::int32_t row = 0; row < rows; ++row) {
      const std::int32_t piece = plan.piece_of(row, rows);
      CHECK(plan.piece_begin(piece, rows) <= row);
      CHECK(row < plan.piece_begin(piece + 1, rows));
    }
    CHECK(plan.piece_begin(4, rows) == rows);
  }
  CHECK(plan.rows_arrivals(2, 3) == plan.counts_arrivals(3) - 1);
  CHECK(plan.sums_arrivals(2, 3) == 12);

  const std::vector<std::int32_t> counts{3, 0, 0, 0, 0, 6, 0, 0, 0, 0};
  const HostExpertTable table(plan.owners, plan.cut, counts);
  const OwnedExperts mine = table.view().of_rank(0);
  CHECK(plan.lacking_rows(&mine, 0) == 0);
  CHECK(plan.lacking_rows(&mine, 1) == 7);
  CHECK(plan.lacking_rows(&mine, 2) == 8);
  CHECK(plan.lacking_rows(nullptr, 0) == 8);
  CHECK(plan.arrived_count(4) == 40);
  CHECK_FALSE(plan.last_column(2));
  CHECK(plan.last_column(3));
}

}  // namespace mkernel::kernels
