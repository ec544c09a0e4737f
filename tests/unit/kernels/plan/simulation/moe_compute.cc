// Tiles of the two products and sums of finished rows, of MoeWorld; and what its counts end at.
#include <cstdint>
#include <string>
#include <vector>

#include "tests/unit/kernels/plan/simulation/moe.h"

namespace mkernel::test {
// ---- tiles ----

MoeWorld::Tile MoeWorld::task_at(std::int32_t index, std::uint64_t epoch, std::int32_t number) {
  const kernels::ExpertTasks& tasks = own(index, epoch).tasks->tasks;
  return tasks.task(has(Fault::kSecondFirst) ? tasks.tasks() - 1 - number : number);
}

void MoeWorld::begin_tile(std::int32_t at_rank, const Span& span, Stamp first) {
  if (memory(at_rank).holds(span, first)) scheduler_.report("a tile is computed twice");
  begin_write(memory(at_rank), span);
}

bool MoeWorld::inputs_hold(std::int32_t index, std::uint64_t epoch, const Tile& task) {
  bool right = true;
  for_each_row(index, epoch, task.block, [&](std::int32_t row, const kernels::ExpertRowOrigin& origin) {
    if (task.second) {
      right &= holds(index, epoch, memory(index), {plan_.hidden(row), plan_.hidden_bytes},
                     tile_stamp(epoch, Content::kHidden, origin, 0), "a row of h");
    } else {
      right &= holds(index, epoch, memory(index), {plan_.row(row), plan_.row_bytes}, row_stamp(epoch, origin),
                     "a row");
    }
    right &= holds(index, epoch, memory(index), {plan_.origin(row), kCell}, origin_stamp(epoch, origin),
                   "an origin");
  });
  return right;
}

/// Loads and stores go on beside each other: a tile is loaded while the one before it is computed and stored.
Task MoeWorld::compute(std::int32_t index, std::uint64_t epoch, Cta& shared) {
  scheduler_.spawn(index, "load", load(index, epoch, shared));
  scheduler_.spawn(index, "store", store(index, epoch, shared));
  co_await scheduler_.meet(shared.computed, 2);
}

Task MoeWorld::load(std::int32_t index, std::uint64_t epoch, Cta& shared) {
  const std::int32_t all = own(index, epoch).tasks->tasks.tasks();
  for (std::size_t i = 0; !shared.gave_up; ++i) {
    while (shared.taken.size() <= i + static_cast<std::size_t>(load_.taken_ahead)) {
      shared.taken.push_back(take(index, epoch, kTiles));
      co_await scheduler_.step();
    }
    if (shared.taken[i] >= all) break;
    if (i > 0) co_await scheduler_.meet(shared.stored, i - 1);
    const Tile task = task_at(index, epoch, shared.taken[i]);
    bool here = true;
    if (task.second) {
      for (std::int32_t column = 0; here && column < plan_.columns1 && !has(Fault::kHiddenUnwaited); ++column)
        here =
            co_await scheduler_.wait(word(index, plan_.hidden_word(task.block, column)), Plan::stamp(epoch));
    } else if (!has(Fault::kBlockUnwaited)) {
      here = co_await scheduler_.wait(word(index, plan_.arrived(task.block)), plan_.arrived_count(epoch));
    }
    shared.gave_up |= !here;
    if (!here) break;
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
  const std::uint64_t before = static_cast<std::uint64_t>(task.column) * kCell;
  Word& ready = word(index, plan_.hidden_word(task.block, task.column));
  if (has(Fault::kCountFirst)) scheduler_.set(ready, Plan::stamp(epoch));
  for_each_row(index, epoch, task.block, [&](std::int32_t row, const kernels::ExpertRowOrigin& origin) {
    begin_tile(index, {plan_.hidden(row) + before, kCell},
               tile_stamp(epoch, Content::kHidden, origin, task.column));
  });
  co_await scheduler_.step();
  for_each_row(index, epoch, task.block, [&](std::int32_t row, const kernels::ExpertRowOrigin& origin) {
    memory(index).end_write({plan_.hidden(row) + before, kCell},
                            tile_stamp(epoch, Content::kHidden, origin, task.column), right);
  });
  co_await scheduler_.step();
  scheduler_.set(ready, Plan::stamp(epoch));
}

/// Rows of the last product go home. Who stores the last column tile of a block signals its rows.
Task MoeWorld::store_finished(std::int32_t index, std::uint64_t epoch, Tile task, bool right) {
  const auto tile_of = [&](const kernels::ExpertRowOrigin& origin) {
    return Span{plan_.finished(origin.entry) + static_cast<std::uint64_t>(task.column) * kCell, kCell};
  };
  for_each_row(index, epoch, task.block, [&](std::int32_t, const kernels::ExpertRowOrigin& origin) {
    begin_tile(origin.rank, tile_of(origin), tile_stamp(epoch, Content::kFinishedRow, origin, task.column));
  });
  co_await scheduler_.step();
  for_each_row(index, epoch, task.block, [&](std::int32_t, const kernels::ExpertRowOrigin& origin) {
    memory(origin.rank)
        .end_write(tile_of(origin), tile_stamp(epoch, Content::kFinishedRow, origin, task.column), right);
  });
  co_await scheduler_.step();
  Word& stored = word(index, plan_.stored(task.block));
  const std::uint64_t before = stored.value;
  scheduler_.add(stored, 1);
  const auto columns = static_cast<std::uint64_t>(plan_.last_columns());
  if (has(Fault::kFirstColumnSignals) ? before % columns > 0 : !plan_.last_column(before)) co_return;
  co_await scheduler_.step();
  for_each_row(index, epoch, task.block, [&](std::int32_t, const kernels::ExpertRowOrigin& origin) {
    scheduler_.set(word(origin.rank, plan_.finished_word(origin.entry)), Plan::stamp(epoch));
  });
}

// ---- sums ----

Task MoeWorld::sum(std::int32_t index, std::uint64_t epoch, Cta& shared) {
  for (std::int32_t warp = 0; warp < load_.sum_warps; ++warp)
    scheduler_.spawn(index, "summing warp", sum_warp(index, epoch, shared));
  co_await scheduler_.meet(shared.summed, static_cast<std::uint64_t>(load_.sum_warps));
}

Task MoeWorld::sum_warp(std::int32_t index, std::uint64_t epoch, Cta& shared) {
  if (has(Fault::kOwnSumsFirst)) co_await sum_own(index, epoch);
  co_await sum_crossed(index, epoch);
  co_await sum_own(index, epoch);
  scheduler_.add(shared.summed, 1);
}

/// Tokens in the order of their last expert: the finished rows of this node's experts, and of every other
/// node their sum.
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
  for (const std::int32_t entry : near) {
    right &= holds(index, epoch, memory(index), {plan_.finished(entry), plan_.finished_bytes},
                   tile_stamp(epoch, Content::kFinishedRow, {index, entry}, 0), "a finished row");
  }
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
    check(index, "placed", counts(index).placed.value, dispatching(launches - 1));
    check(index, "tabled", counts(index).tabled.value, launches);
  }
  return wrong;
}

}  // namespace mkernel::test
