#include "tests/unit/kernels/plan/simulation/world.h"

#include <cstdint>
#include <string>

namespace mkernel::test {

void World::add_rank(std::uint64_t word_bytes, std::uint64_t data_bytes, std::uint64_t result_bytes,
                     std::uint64_t cell_bytes) {
  constexpr std::uint64_t kAlignment = kernels::kLentAlignment;
  lent_at_ = (word_bytes + kAlignment - 1) / kAlignment * kAlignment;
  const std::uint64_t lent_bytes = kernels::lent_workspace_bytes(data_bytes);
  half_bytes_ = kernels::lent_half_bytes(lent_bytes);
  ranks_.emplace_back(lent_at_ + lent_bytes, result_bytes, cell_bytes);
}

std::string World::run() {
  const auto world = static_cast<std::int32_t>(topology_.world());
  for (std::int32_t from = 0; from < world; ++from) {
    for (std::int32_t step = 1; step < nodes(); ++step) {
      for (std::int32_t lane = 0; lane < lanes_; ++lane) {
        const std::int32_t to = rank_at(node_of(from) + step, local_of(from));
        Channel& made = channels_[{from, to, lane}];
        made.from = from;
        made.to = to;
        made.lane = lane;
        rank(from).out.push_back(&made);
        rank(to).in.push_back(&made);
      }
    }
  }
  for (std::int32_t index = 0; index < world; ++index) scheduler_.spawn(index, "launches", launches(index));
  const std::string error = scheduler_.run();
  return error.empty() && settings_.expire_one_in == 0 ? check_counts() : error;
}

/// The launches of a rank, one behind the other in its stream.
Task World::launches(std::int32_t index) {
  SimulatedRank& mine = rank(index);
  for (std::uint64_t epoch = 0; epoch < settings_.launches; ++epoch) {
    co_await scheduler_.step();
    if (mine.stopped) continue;  // it only counts itself out
    scheduler_.spawn(index, "poller", poller(index));
    begin_launch(index, epoch);
    co_await scheduler_.meet(mine.over, (epoch + 1) * static_cast<std::uint64_t>(ctas(index) + 1));
    check_result(index, epoch);
    mine.exited_before = mine.exited.value;
    mine.stopped = scheduler_.aborted(index) && !has(Fault::kGoesOn);
  }
}

std::int32_t World::failed_ranks() const {
  std::int32_t failed = 0;
  for (std::int32_t index = 0; index < static_cast<std::int32_t>(topology_.world()); ++index)
    failed += scheduler_.aborted(index) ? 1 : 0;
  return failed;
}

Task World::poller(std::int32_t index) {
  SimulatedRank& mine = rank(index);
  const std::uint64_t all = mine.exited_before + leavers(index) - (has(Fault::kOneLeaverLess) ? 1 : 0);
  for (;;) {
    const std::uint64_t news = mine.news.value;
    for (Channel* channel : mine.in) scheduler_.set(channel->arrivals_seen, channel->arrivals);
    for (Channel* channel : mine.out) scheduler_.set(channel->completions_seen, channel->completions);
    if (mine.exited.value >= all) break;
    co_await scheduler_.meet(mine.news, news + 1);
  }
  cta_over(index);
}

void World::check_result(std::int32_t index, std::uint64_t epoch) {
  if (scheduler_.aborted(index)) return;  // and says so
  ++good_launches_;
  Memory& result = rank(index).result;
  const Span all = result_of(index, epoch);
  const Stamp first = stamp(epoch, Content::kResult, 0, 0);
  if (result.holds(all, first)) return;
  lied_ = true;
  if (settings_.expire_one_in == 0) {
    scheduler_.report("rank " + std::to_string(index) + " ends launch " + std::to_string(epoch) +
                      " with a wrong result: " + result.describe(all, first));
  }
}

bool World::holds(std::int32_t reader, std::uint64_t epoch, Memory& memory, const Span& span, Stamp first,
                  const char* what) {
  if (memory.holds(span, first)) return true;
  if (settings_.expire_one_in == 0) {
    scheduler_.report("rank " + std::to_string(reader) + " reads " + what + " in launch " +
                      std::to_string(epoch) + ", but " + memory.describe(span, first));
  }
  return false;
}

void World::write_result(std::int32_t index, std::uint64_t epoch, const Span& span, bool right) {
  Memory& result = rank(index).result;
  const Stamp first = stamp(epoch, Content::kResult, 0, result.cells(static_cast<std::int64_t>(span.at)));
  if (span.bytes > 0 && result.holds(span, first)) scheduler_.report("an element of c is computed twice");
  begin_write(result, span);
  result.end_write(span, first, right);
}

void World::put(Channel& channel, std::uint64_t from, std::uint64_t to, std::uint64_t bytes) {
  const Put put{channel.posted++, from, to, bytes, rank(channel.from).workspace.read({from, bytes})};
  channel.visible.push_back(false);
  channel.completed.push_back(false);
  const auto fabric = static_cast<std::int32_t>(topology_.world());
  scheduler_.spawn(fabric + Scheduler::kPuts, "put", carry(channel, put));
}

/// The source of a put is read until the put is completed.
void World::check_source(Channel& channel, const Put& put) {
  if (rank(channel.from).workspace.read({put.from, put.bytes}) == put.stamps || has(Fault::kGoesOn)) return;
  scheduler_.report("rank " + std::to_string(channel.from) + " overwrites the source of put " +
                    std::to_string(put.index) + " to rank " + std::to_string(channel.to) +
                    " before it is completed");
}

/// A put on its way: written at the receiver, then counted there when all before it are.
Task World::carry(Channel& channel, Put put) {
  Memory& memory = rank(channel.to).workspace;
  check_source(channel, put);
  begin_write(memory, {put.to, put.bytes});
  co_await scheduler_.step();
  check_source(channel, put);
  const auto fabric = static_cast<std::int32_t>(topology_.world());
  scheduler_.spawn(fabric + Scheduler::kCompletions, "completion", complete(channel, put));
  co_await scheduler_.step();
  memory.end_write({put.to, put.bytes}, put.stamps);
  channel.visible[put.index] = true;
  co_await scheduler_.step();
  while (channel.arrivals < channel.posted && channel.visible[channel.arrivals]) ++channel.arrivals;
  scheduler_.add(rank(channel.to).news, 1);
}

/// The sender hears that its source is free, before or after the receiver hears of the put.
Task World::complete(Channel& channel, Put put) {
  co_await scheduler_.step();
  check_source(channel, put);
  channel.completed[put.index] = true;
  while (channel.completions < channel.posted && channel.completed[channel.completions])
    ++channel.completions;
  scheduler_.add(rank(channel.from).news, 1);
}

}  // namespace mkernel::test
