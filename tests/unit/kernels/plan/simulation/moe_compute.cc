// Tiles of the two products and sums of finished rows, of MoeWorld; and what its counts end at.
#include <cstdint>
#include <string>
#include <vector>

#include "tests/unit/kernels/plan/simulation/moe.h"

namespace mkernel::test {
// ---- tiles ----

kernels::SharedExpertTiles MoeWorld::shared_expert_tiles(std::int32_t index, std::uint64_t epoch) {
  const std::int32_t tokens = launch(epoch).tokens[static_cast<std::size_t>(index)].tokens();
  return {plan_.shared_blocks(tokens), plan_.shared_columns1, plan_.columns2};
}

MoeWorld::Tile MoeWorld::task_at(std::int32_t index, std::uint64_t epoch, std::int32_t number) {
  const kernels::SharedExpertTiles shared = shared_expert_tiles(index, epoch);
  const auto& of_experts = own(index, epoch).tasks;
  const kernels::LayerTasks tasks{shared, of_experts ? of_experts->tasks : kernels::ExpertTasks{}};
  return tasks.task(has(Fault::kSecondFirst) ? tasks.tasks() - 1 - number : number);
}

std::vector<MoeWorld::Row> MoeWorld::rows_of(std::int32_t index, std::uint64_t epoch, const Tile& task) {
  const std::int32_t tokens = launch(epoch).tokens[static_cast<std::size_t>(index)].tokens();
  const auto rows =
      task.shared ? plan_.shared_block(tokens, task.block) : own(index, epoch).mine.block(task.block);
  std::vector<Row> found;
  for (std::int32_t row = rows.first_row; row < rows.first_row + rows.rows; ++row) {
    if (task.shared) {
      found.push_back({row, {index, plan_.shared_entry(row)}});
    } else {
      const auto& origins = launch(epoch).origins[static_cast<std::size_t>(index)];
      found.push_back({row, origins[static_cast<std::size_t>(row)]});
    }
  }
  return found;
}

void MoeWorld::begin_tile(std::int32_t at_rank, const Span& span, Stamp first) {
  if (memory(at_rank).holds(span, first)) scheduler_.report("a tile is computed twice");
  begin_write(memory(at_rank), span);
}

bool MoeWorld::inputs_hold(std::int32_t index, std::uint64_t epoch, const Tile& task) {
  bool right = true;
  for (const Row& row : rows_of(index, epoch, task)) {
    if (task.second) {
      const std::uint64_t bytes = task.shared ? plan_.shared_bytes : plan_.hidden_bytes;
      right &= holds(index, epoch, memory(index), {hidden(task, row.number), bytes},
                     tile_stamp(epoch, Content::kHidden, row.origin, 0), "a row of h");
    } else if (!task.shared) {
      right &= holds(index, epoch, memory(index), {plan_.row(row.number), plan_.row_bytes},
                     row_stamp(epoch, row.origin), "a row");
    }
    if (task.shared) continue;  // its rows are the rank's own, which nobody writes
    right &= holds(index, epoch, memory(index), {plan_.origin(row.number), kCell},
                   origin_stamp(epoch, row.origin), "an origin");
  }
  return right;
}

/// Loads and stores go on beside each other: a tile is loaded while the one before it is computed and stored.
Task MoeWorld::compute(std::int32_t index, std::uint64_t epoch, Cta& shared) {
  scheduler_.spawn(index, "load", load(index, epoch, shared));
  scheduler_.spawn(index, "store", store(index, epoch, shared));
  co_await scheduler_.meet(shared.computed, 2);
}

Task MoeWorld::load(std::int32_t index, std::uint64_t epoch, Cta& shared) {
  for (std::size_t i = 0; !shared.gave_up; ++i) {
    while (shared.taken.size() <= i + static_cast<std::size_t>(load_.taken_ahead)) {
      shared.taken.push_back(take(index, epoch, kTiles));
      co_await scheduler_.step();
    }
    bool any = true;
    co_await wait_task(index, epoch, shared.taken[i], shared, any);
    if (shared.gave_up || !any) break;
    if (i > 0) co_await scheduler_.meet(shared.stored, i - 1);
    const Tile task = task_at(index, epoch, shared.taken[i]);
    co_await wait_inputs(index, epoch, task, shared);
    if (shared.gave_up) break;
    bool right = inputs_hold(index, epoch, task);
    co_await scheduler_.step();
    right &= inputs_hold(index, epoch, task);
    shared.right.push_back(right);
    scheduler_.add(shared.loaded, 1);
  }
  shared.all_loaded = true;
  scheduler_.add(shared.loaded, 2);  // nobody waits for more
  scheduler_.add(shared.computed, 1);
}

/// Waits for the table, if it takes one to know task `number`. `any`: there is such a task.
Task MoeWorld::wait_task(std::int32_t index, std::uint64_t epoch, std::int32_t number, Cta& shared,
                         bool& any) {
  const kernels::SharedExpertTiles tiles = shared_expert_tiles(index, epoch);
  if (number < tiles.first()) co_return;
  if (!co_await scheduler_.wait(counts(index).tabled, Plan::stamp(epoch))) {
    shared.gave_up = true;
    co_return;
  }
  any = !launch(epoch).refused &&
        number < tiles.first() + tiles.second() + own(index, epoch).tasks->tasks.tasks();
}

Task MoeWorld::wait_inputs(std::int32_t index, std::uint64_t epoch, Tile task, Cta& shared) {
  bool here = true;
  if (task.second) {
    const std::int32_t columns = task.shared ? plan_.shared_columns1 : plan_.columns1;
    for (std::int32_t column = 0; here && column < columns && !has(Fault::kHiddenUnwaited); ++column)
      here = co_await scheduler_.wait(word(index, hidden_word(task, column)), Plan::stamp(epoch));
  } else if (!task.shared && !has(Fault::kBlockUnwaited)) {
    here = co_await scheduler_.wait(word(index, plan_.arrived(task.block)), plan_.arrived_count(epoch));
  }
  shared.gave_up |= !here;
}

Task MoeWorld::store(std::int32_t index, std::uint64_t epoch, Cta& shared) {
  for (std::size_t i = 0;; ++i) {
    co_await scheduler_.meet(shared.loaded, i + (has(Fault::kStoreWaits) ? 2 : 1));
    if (i == shared.right.size()) break;
    const Tile task = task_at(index, epoch, shared.taken[i]);
    if (plan_.columns2 > 0 && !task.second) {
      co_await store_hidden(index, epoch, task, shared.right[i]);
    } else {
      co_await store_finished(index, epoch, task, shared.right[i]);
    }
    scheduler_.add(shared.stored, 1);
  }
  scheduler_.add(shared.computed, 1);
}

Task MoeWorld::store_hidden(std::int32_t index, std::uint64_t epoch, Tile task, bool right) {
  const auto tile_of = [&](const Row& row) {
    return Span{hidden(task, row.number) + static_cast<std::uint64_t>(task.column) * kCell, kCell};
  };
  Word& ready = word(index, hidden_word(task, task.column));
  const std::vector<Row> rows = rows_of(index, epoch, task);
  if (has(Fault::kCountFirst)) scheduler_.set(ready, Plan::stamp(epoch));
  for (const Row& row : rows)
    begin_tile(index, tile_of(row), tile_stamp(epoch, Content::kHidden, row.origin, task.column));
  co_await scheduler_.step();
  for (const Row& row : rows) {
    memory(index).end_write(tile_of(row), tile_stamp(epoch, Content::kHidden, row.origin, task.column),
                            right);
  }
  co_await scheduler_.step();
  scheduler_.set(ready, Plan::stamp(epoch));
}

/// Rows of the last product go home. Who stores the last column tile of a block signals its rows.
Task MoeWorld::store_finished(std::int32_t index, std::uint64_t epoch, Tile task, bool right) {
  const auto tile_of = [&](const kernels::ExpertRowOrigin& origin) {
    return Span{plan_.finished(origin.entry) + static_cast<std::uint64_t>(task.column) * kCell, kCell};
  };
  const auto stamp_of = [&](const Row& row) {
    return tile_stamp(epoch, Content::kFinishedRow, row.origin, task.column);
  };
  const std::vector<Row> rows = rows_of(index, epoch, task);
  for (const Row& row : rows) begin_tile(row.origin.rank, tile_of(row.origin), stamp_of(row));
  co_await scheduler_.step();
  for (const Row& row : rows) memory(row.origin.rank).end_write(tile_of(row.origin), stamp_of(row), right);
  co_await scheduler_.step();
  Word& stored = word(index, stored_word(task));
  const std::uint64_t before = stored.value;
  scheduler_.add(stored, 1);
  const auto columns = static_cast<std::uint64_t>(plan_.last_columns());
  if (has(Fault::kFirstColumnSignals) ? before % columns > 0 : !plan_.last_column(before)) co_return;
  co_await scheduler_.step();
  for (const Row& row : rows)
    scheduler_.set(word(row.origin.rank, plan_.finished_word(row.origin.entry)), Plan::stamp(epoch));
}

// ---- sums ----

Task MoeWorld::sum(std::int32_t index, std::uint64_t epoch, Cta& shared) {
  for (std::int32_t warp = 0; warp < load_.sum_warps; ++warp)
    scheduler_.spawn(index, "summing warp", sum_warp(index, epoch, shared));
  co_await scheduler_.meet(shared.summed, static_cast<std::uint64_t>(load_.sum_warps));
}

Task MoeWorld::sum_warp(std::int32_t index, std::uint64_t epoch, Cta& shared) {
  co_await sum_tokens(index, epoch);
  scheduler_.add(shared.summed, 1);
}

Task MoeWorld::sum_tokens(std::int32_t index, std::uint64_t epoch) {
  if (has(Fault::kOwnSumsFirst)) co_await sum_own(index, epoch);
  co_await sum_crossed(index, epoch);
  co_await sum_own(index, epoch);
}

/// From the beginning on, while the CTA computes.
Task MoeWorld::sum_beside(std::int32_t index, std::uint64_t epoch, Cta& shared) {
  bool sums = co_await scheduler_.wait(counts(index).tabled, Plan::stamp(epoch));
  sums = sums && !launch(epoch).refused;
  if (sums) sums = co_await scheduler_.wait(counts(index).placed, dispatching(epoch));
  if (sums) co_await sum_tokens(index, epoch);
  scheduler_.add(shared.beside, 1);
}

/// Tokens in the order of their last expert: the finished rows of this node's experts, and of every other
/// node their sum, and the row of the shared expert.
Task MoeWorld::sum_own(std::int32_t index, std::uint64_t epoch) {
  const kernels::ChunkedRouting& routing = *own(index, epoch).routing;
  const std::vector<std::int32_t>& order = routing.token_order();
  for (;;) {
    co_await scheduler_.step();
    const std::int32_t number = take(index, epoch, kOwnSums);
    if (number >= static_cast<std::int32_t>(order.size())) co_return;
    const std::int32_t token = order[static_cast<std::size_t>(number)];
    const std::vector<std::int32_t> near = routing.entries(plan_.others(), token);
    for (const std::int32_t entry : near) {
      if (has(Fault::kSumsUnwaited)) break;
      if (!co_await scheduler_.wait(word(index, plan_.finished_word(entry)), Plan::stamp(epoch))) co_return;
    }
    if (plan_.shared_columns1 > 0 && !has(Fault::kSharedUnwaited)) {
      Word& finished = word(index, plan_.finished_word(plan_.shared_entry(token)));
      if (!co_await scheduler_.wait(finished, Plan::stamp(epoch))) co_return;
    }
    for (std::int32_t turn = 0; turn < plan_.others(); ++turn) {
      const std::int32_t returning = routing.returning(turn, token);
      if (returning < 0 || has(Fault::kNoArrivals)) continue;
      const std::int32_t piece = plan_.piece_of(returning, routing.crossings(turn));
      Channel& sums = channel(plan_.order(index).rail_peer(turn), index, 1);
      if (!co_await scheduler_.wait(sums.arrivals_seen, plan_.sums_arrivals(epoch, piece))) co_return;
    }
    bool right = own(index, epoch).right && own_rows_hold(index, epoch, token, near);
    co_await scheduler_.step();
    right = right && own_rows_hold(index, epoch, token, near);
    write_result(index, epoch, {static_cast<std::uint64_t>(token) * kCell, kCell}, right);
  }
}

bool MoeWorld::own_rows_hold(std::int32_t index, std::uint64_t epoch, std::int32_t token,
                             const std::vector<std::int32_t>& near) {
  bool right = true;
  const auto check = [&](std::int32_t entry, const char* what) {
    right &= holds(index, epoch, memory(index), {plan_.finished(entry), plan_.finished_bytes},
                   tile_stamp(epoch, Content::kFinishedRow, {index, entry}, 0), what);
  };
  for (const std::int32_t entry : near) check(entry, "a finished row");
  if (plan_.shared_columns1 > 0) check(plan_.shared_entry(token), "a row of the shared expert");
  const kernels::PushOrder order = plan_.order(index);
  for (std::int32_t turn = 0; turn < plan_.others(); ++turn) {
    const std::int32_t returning = own(index, epoch).routing->returning(turn, token);
    if (returning < 0) continue;
    right &=
        holds(index, epoch, memory(index), {plan_.sum_in(turn, returning), plan_.finished_bytes},
              sum_stamp(epoch, order.rail_peer(turn), order.as_seen_from(turn), returning), "a node's sum");
  }
  return right;
}

// ---- the end ----

std::string MoeWorld::check_counts() {
  const std::uint64_t launches = settings_.launches;
  std::string wrong;
  const auto check = [&](std::int32_t index, const char* what, std::uint64_t value, std::uint64_t expected) {
    if (value == expected) return;
    wrong = std::string(what) + " of rank " + std::to_string(index) + " ends at " + std::to_string(value) +
            ", not " + std::to_string(expected);
  };
  const auto pieces = static_cast<std::uint64_t>(plan_.pieces);
  for (const auto& [key, each] : channels()) {
    const std::uint64_t puts = launches * (each.lane == 0 ? pieces + 1 : pieces);
    check(each.from, "puts", each.posted, puts);
    check(each.from, "completions", each.completions, puts);
  }
  for (std::int32_t index = 0; index < world(); ++index) {
    for (std::int32_t source = 0; source < world(); ++source)
      check(index, "counted[]", word(index, plan_.counted(source)).value, launches);
    for (std::int32_t block = 0; block < plan_.max_blocks(); ++block) {
      check(index, "arrived[]", word(index, plan_.arrived(block)).value, plan_.arrived_count(launches - 1));
      std::uint64_t used = 0;
      for (std::uint64_t epoch = 0; epoch < launches; ++epoch)
        used += !launch(epoch).refused && block < own(index, epoch).mine.all_blocks() ? 1 : 0;
      check(index, "stored[]", word(index, plan_.stored(block)).value,
            used * static_cast<std::uint64_t>(plan_.last_columns()));
    }
    for (std::int32_t block = 0; block < plan_.shared_blocks(plan_.max_tokens); ++block) {
      std::uint64_t used = 0;
      for (std::uint64_t epoch = 0; epoch < launches; ++epoch)
        used += !launch(epoch).refused && block < shared_expert_tiles(index, epoch).blocks ? 1 : 0;
      check(index, "shared_stored[]", word(index, plan_.shared_stored(block)).value,
            used * static_cast<std::uint64_t>(plan_.last_columns()));
    }
    check(index, "placed", counts(index).placed.value, dispatching(launches - 1));
    check(index, "tabled", counts(index).tabled.value, launches);
  }
  return wrong;
}

}  // namespace mkernel::test
