// What crosses nodes, of MoeWorld: counts, rows that are staged, put and forwarded, sums that return.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "tests/unit/kernels/plan/simulation/moe.h"

namespace mkernel::test {

MoeWorld::Crossed MoeWorld::crossed(std::int32_t index, std::uint64_t epoch, std::int32_t turn) {
  const Launch& of = launch(epoch);
  const kernels::PushOrder order = plan_.order(index);
  const std::int32_t source = order.rail_peer(turn), seen = order.as_seen_from(turn);
  const kernels::ChunkedRouting& routing = of.routings[static_cast<std::size_t>(source)];
  return {&routing, turn, source, seen, of.refused ? 0 : routing.crossings(seen)};
}

std::int32_t MoeWorld::most_crossed(std::int32_t index, std::uint64_t epoch) {
  std::int32_t most = 0;
  for (std::int32_t turn = 0; turn < plan_.others(); ++turn)
    most = std::max(most, crossed(index, epoch, turn).rows);
  return most;
}

/// The counts of this rank's rail peers, for the ranks of its node: only this rank may read what a NIC wrote
/// into its memory.
Task MoeWorld::forward_counts(std::int32_t index, std::uint64_t epoch, Cta& shared) {
  for (std::int32_t turn = 0; turn < plan_.others(); ++turn) {
    const std::int32_t source = plan_.order(index).rail_peer(turn);
    Word& arrivals = channel(source, index, 0).arrivals_seen;
    if (!has(Fault::kNoArrivals) && !co_await scheduler_.wait(arrivals, plan_.counts_arrivals(epoch))) break;
    const Span span{counts_at(epoch, source), plan_.counts_bytes()};
    const Stamp first = stamp(epoch, Content::kCounts, source, 0);
    for (std::int32_t ahead = 1; ahead < ranks_per_node(); ++ahead) {
      const std::int32_t to = rank_at(node_of(index), local_of(index) + ahead);
      bool right = holds(index, epoch, memory(index), span, first, "counts");
      begin_write(memory(to), span);
      co_await scheduler_.step();
      right &= holds(index, epoch, memory(index), span, first, "counts");
      memory(to).end_write(span, first, right);
      co_await scheduler_.step();
      scheduler_.set(word(to, plan_.counted(source)), Plan::stamp(epoch));
    }
    scheduler_.set(word(index, plan_.counted(source)), Plan::stamp(epoch));
  }
  scheduler_.add(shared.crossed, 1);
}

/// Tokens in the order in which they cross, each behind what the rail peer must know of it; and between them
/// units of `pushes`.
Task MoeWorld::stage(std::int32_t index, std::uint64_t epoch, Pushes& pushes) {
  const kernels::ChunkedRouting& routing = *own(index, epoch).routing;
  std::int32_t most = 0;
  for (std::int32_t turn = 0; turn < plan_.others(); ++turn) most = std::max(most, routing.crossings(turn));
  for (;;) {
    co_await scheduler_.step();
    const std::int32_t number = take(index, epoch, kStaging);
    if (number >= most * plan_.others()) co_return;
    const std::int32_t turn = number % plan_.others(), row = number / plan_.others();
    if (row >= routing.crossings(turn)) continue;
    const Span span{plan_.crossing_out(turn, row), plan_.crossing_bytes()};
    begin_write(memory(index), span);
    co_await scheduler_.step();
    memory(index).end_write(span, crossing_stamp(epoch, index, turn, row));
    co_await scheduler_.step();
    scheduler_.set(word(index, plan_.staged_word(turn, row)), Plan::stamp(epoch));
    if (pushes.left) co_await push_unit(index, epoch, pushes);
  }
}

/// Pieces as they arrive: copies of their rows into the pools of this node. While one is on its way, rows of
/// `pushes` are pushed.
Task MoeWorld::forward(std::int32_t index, std::uint64_t epoch, Pushes& pushes) {
  for (;;) {
    co_await scheduler_.step();
    const std::int32_t number = take(index, epoch, kForwarding);
    if (number >= plan_.pieces * plan_.others()) co_return;
    const std::int32_t piece = number / plan_.others();
    const Crossed from = crossed(index, epoch, number % plan_.others());
    Word& arrivals = channel(from.source, index, 0).arrivals_seen;
    const std::uint64_t count = plan_.rows_arrivals(epoch, piece);
    while (arrivals.value < count && pushes.left) co_await push_unit(index, epoch, pushes);
    if (!has(Fault::kNoArrivals) && !co_await scheduler_.wait(arrivals, count)) co_return;
    const std::int32_t end = plan_.piece_begin(piece + 1, from.rows);
    for (std::int32_t row = plan_.piece_begin(piece, from.rows); row < end; ++row) {
      const bool right =
          holds(index, epoch, memory(index), {plan_.crossing_in(from.turn, row), plan_.crossing_bytes()},
                crossing_stamp(epoch, from.source, from.seen, row), "a row that crossed");
      const std::int32_t token = from.routing->crossing(from.seen, row);
      const std::int32_t returning = from.routing->returning(from.seen, token);
      std::int32_t at = plan_.crossed_entry(from.turn, returning);
      std::vector<Pushed> unit;
      for (const std::int32_t entry : from.routing->entries(from.seen, token))
        unit.push_back(pushed(launch(epoch), from.source, from.routing->row(entry), {index, at++}));
      co_await write_rows(epoch, unit, right);
      scheduler_.set(word(index, plan_.forwarded_word(from.turn, returning)), Plan::stamp(epoch));
    }
  }
}

/// The finished rows of tokens that crossed, in the order in which their sums return.
Task MoeWorld::sum_crossed(std::int32_t index, std::uint64_t epoch) {
  for (;;) {
    co_await scheduler_.step();
    const std::int32_t number = take(index, epoch, kCrossedSums);
    if (number >= most_crossed(index, epoch) * plan_.others()) co_return;
    const std::int32_t returning = number / plan_.others();
    const Crossed from = crossed(index, epoch, number % plan_.others());
    if (returning >= from.rows) continue;
    if (!co_await scheduler_.wait(word(index, plan_.forwarded_word(from.turn, returning)),
                                  Plan::stamp(epoch)))
      co_return;
    std::int32_t token = 0;
    while (from.routing->returning(from.seen, token) != returning) ++token;
    const auto rows = static_cast<std::int32_t>(from.routing->entries(from.seen, token).size());
    const std::int32_t entry = plan_.crossed_entry(from.turn, returning);
    for (std::int32_t i = 0; i < rows && !has(Fault::kSumsUnwaited); ++i) {
      if (!co_await scheduler_.wait(word(index, plan_.finished_word(entry + i)), Plan::stamp(epoch)))
        co_return;
    }
    bool right = true;
    const Span sum{plan_.sum_out(from.turn, returning), plan_.finished_bytes};
    for (const bool again : {false, true}) {
      right &= holds(index, epoch, memory(index),
                     {plan_.finished(entry), static_cast<std::uint64_t>(rows) * plan_.finished_bytes},
                     tile_stamp(epoch, Content::kFinishedRow, {index, entry}, 0), "a finished row");
      if (again) break;
      begin_write(memory(index), sum);
      co_await scheduler_.step();
    }
    memory(index).end_write(sum, sum_stamp(epoch, index, from.turn, returning), right);
    co_await scheduler_.step();
    scheduler_.set(word(index, plan_.summed_word(from.turn, returning)), Plan::stamp(epoch));
  }
}

Task MoeWorld::inter_send(std::int32_t index, std::uint64_t epoch, Cta& shared) {
  co_await put_all(index, epoch);
  scheduler_.add(shared.crossed, 1);
}

/// Everything that this rank puts: its counts, its rows, then the sums of what crossed to it.
Task MoeWorld::put_all(std::int32_t index, std::uint64_t epoch) {
  const kernels::PushOrder order = plan_.order(index);
  const std::uint64_t ready = Plan::stamp(epoch);
  if (!co_await scheduler_.wait(word(index, plan_.counted(index)), ready)) co_return;
  for (std::int32_t turn = 0; turn < plan_.others(); ++turn) {
    const std::uint64_t at = counts_at(epoch, index);
    put(channel(index, order.rail_peer(turn), 0), at, at, plan_.counts_bytes());
    co_await scheduler_.step();
  }
  if (!co_await scheduler_.wait(counts(index).tabled, ready)) co_return;
  if (!co_await scheduler_.wait(counts(index).placed, dispatching(epoch))) co_return;
  for (const std::int32_t lane : {0, 1}) {
    for (std::int32_t number = 0; number < plan_.pieces * plan_.others(); ++number) {
      const std::int32_t piece = number / plan_.others(), turn = number % plan_.others();
      const Crossed in = crossed(index, epoch, turn);
      std::int32_t rows = lane == 0 ? own(index, epoch).routing->crossings(turn) : in.rows;
      if (launch(epoch).refused) rows = 0;
      const std::int32_t begin = plan_.piece_begin(piece, rows), end = plan_.piece_begin(piece + 1, rows);
      for (std::int32_t row = begin; row < end; ++row) {
        const std::uint64_t at = lane == 0 ? plan_.staged_word(turn, row) : plan_.summed_word(turn, row);
        if (!co_await scheduler_.wait(word(index, at), ready)) co_return;
      }
      const std::uint64_t bytes = lane == 0 ? plan_.crossing_bytes() : plan_.finished_bytes;
      put(channel(index, in.source, lane),
          lane == 0 ? plan_.crossing_out(turn, begin) : plan_.sum_out(turn, begin),
          lane == 0 ? plan_.crossing_in(in.seen, begin) : plan_.sum_in(in.seen, begin),
          static_cast<std::uint64_t>(end - begin) * bytes);
      co_await scheduler_.step();
    }
  }
  for (std::int32_t turn = 0; turn < plan_.others() && !has(Fault::kNoCompletions); ++turn) {
    const std::int32_t peer = order.rail_peer(turn);
    if (!co_await scheduler_.wait(channel(index, peer, 0).completions_seen,
                                  plan_.rows_arrivals(epoch, plan_.pieces - 1)))
      co_return;
    if (!co_await scheduler_.wait(channel(index, peer, 1).completions_seen,
                                  plan_.sums_arrivals(epoch, plan_.pieces - 1)))
      co_return;
  }
}

}  // namespace mkernel::test
