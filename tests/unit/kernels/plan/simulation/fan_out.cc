// The roles of FanOutWorld, in the order of kernels/cuda/comm/fan_out.cuh.
#include "tests/unit/kernels/plan/simulation/fan_out.h"

#include <cstdint>
#include <string>
#include <vector>

namespace mkernel::test {

std::vector<FanOutWorld::Chunk> FanOutWorld::push_order(std::int32_t index) const {
  std::vector<Chunk> chunks;
  for (std::int32_t i = 0; i < turns(index); ++i) {
    Chunk chunk = chunk_of(index, turn(index, i));
    chunk.target = target(index, i);
    if (chunk.chunk < chunks_of(chunk.source)) chunks.push_back(chunk);
  }
  return chunks;
}

void FanOutWorld::begin_launch(std::int32_t index, std::uint64_t epoch) {
  for (std::int32_t cta = 0; cta < ctas(index); ++cta) {
    if (cta < comm_ctas(index)) {
      scheduler_.spawn(index, "pushing CTA", pushing_cta(index, epoch, cta));
    } else {
      scheduler_.spawn(index, "computing CTA", computing_cta(index, epoch, cta));
    }
  }
}

Task FanOutWorld::computing_cta(std::int32_t index, std::uint64_t epoch, std::int32_t cta) {
  co_await compute(index, epoch, cta);
  end_cta(index);
}

Task FanOutWorld::pushing_cta(std::int32_t index, std::uint64_t epoch, std::int32_t cta) {
  Pushing shared{index, cta, epoch};
  const bool first = cta == 0, sends = first && rails() > 0;
  scheduler_.spawn(index, "load", load(shared));
  for (std::uint64_t storer = 0; storer < kStorers; ++storer)
    scheduler_.spawn(index, "store", store(shared, storer));
  if (sends) scheduler_.spawn(index, "inter_send", inter_send(shared));
  for (std::uint64_t number = 0; number < besides(index, cta); ++number)
    scheduler_.spawn(index, "beside", do_beside(shared, number));
  co_await scheduler_.meet(shared.ended, 1 + kStorers + (sends ? 1 : 0) + besides(index, cta));
  if (first && !first_computes(index)) {
    cta_over(index);
  } else {
    co_await compute(index, epoch, cta);
    if (first) co_await wait_at_end(index, epoch);
    end_cta(index);
  }
}

Task FanOutWorld::do_beside(Pushing& shared, std::uint64_t number) {
  co_await beside(shared, number);
  end_warp(shared);
}

/// Chunks into stages; those of rail peers when they have arrived.
Task FanOutWorld::load(Pushing& shared) {
  const std::int32_t index = shared.rank;
  const std::vector<Chunk> order = push_order(index);
  bool came = true;
  for (std::uint64_t number = 0; number < order.size(); ++number) {
    const Chunk chunk = order[number];
    const bool far = chunk.source != index;
    if (came && far && !has(Fault::kNoArrivals)) {
      came = co_await scheduler_.wait(channel(chunk.source, index, 0).arrivals_seen,
                                      arrivals(shared.epoch, chunk));
      if (!came) shared.lost = number;
    }
    if (number >= stages_) co_await scheduler_.meet(shared.freed, number + 1 - stages_);
    for (int looks = 0; came && far && looks < 2; ++looks) {  // as it begins, as it ends
      for_each_row(index, shared.epoch, chunk, shared.share, [&](const Span& span, Stamp first) {
        holds(index, shared.epoch, rank(index).workspace, span, first, "rows to push on");
      });
      co_await scheduler_.step();
    }
    scheduler_.add(shared.loaded, 1);
  }
  end_warp(shared);
}

/// Every third chunk from its stage to the other ranks of the node, and own rows to where they are kept.
Task FanOutWorld::store(Pushing& shared, std::uint64_t storer) {
  const std::int32_t index = shared.rank;
  const std::vector<Chunk> order = push_order(index);
  for (std::uint64_t number = storer; number < order.size(); number += kStorers) {
    co_await scheduler_.meet(shared.issued, number);
    co_await scheduler_.meet(shared.loaded, number + 1);
    const Chunk chunk = order[number];
    const bool came = number < shared.lost;
    std::vector<std::int32_t> targets;
    for (std::int32_t t = 1; t < ranks_per_node(); ++t)
      if (goes_to(chunk, t)) targets.push_back(rank_at(node_of(index), local_of(index) + t));
    if (chunk.source == index && keeps_own(index)) targets.push_back(index);
    if (came && has(Fault::kCountFirst)) co_await signal(shared, chunk);
    for (const std::int32_t target : targets) {
      if (!came) break;
      for_each_row(target, shared.epoch, chunk, shared.share,
                   [&](const Span& span, Stamp) { begin_write(rank(target).workspace, span); });
    }
    scheduler_.add(shared.issued, 1);
    co_await scheduler_.step();
    scheduler_.add(shared.freed, 1);
    for (const std::int32_t target : targets) {
      if (!came) break;
      co_await scheduler_.step();
      for_each_row(target, shared.epoch, chunk, shared.share,
                   [&](const Span& span, Stamp first) { rank(target).workspace.end_write(span, first); });
    }
    if (came && !has(Fault::kCountFirst)) co_await signal(shared, chunk);
  }
  if (shared.share == 0 && storer == 0 && !first_computes(index)) co_await wait_at_end(index, shared.epoch);
  end_warp(shared);
}

/// A share of a chunk is at all ranks of the node that need it.
Task FanOutWorld::signal(Pushing& shared, Chunk chunk) {
  for (std::int32_t t = 1; t <= ranks_per_node(); ++t) {
    const std::int32_t target = rank_at(node_of(shared.rank), local_of(shared.rank) + t);
    if (!goes_to(chunk, t) || (target == shared.rank && !keeps_own(target))) continue;
    co_await scheduler_.step();
    scheduler_.add(ready(target, chunk), 1);
  }
}

Task FanOutWorld::end_sending(Pushing& shared, bool gave_up, std::uint64_t puts) {
  for (std::int32_t i = 0; i < rails() && !gave_up && !has(Fault::kNoCompletions); ++i) {
    Channel& sent = channel(shared.rank, rail(shared.rank, i), 0);
    gave_up = !co_await scheduler_.wait(sent.completions_seen, puts);
  }
  end_warp(shared);
}

std::string FanOutWorld::check_channel(const Channel& channel, std::uint64_t puts) {
  if (channel.posted == puts && channel.arrivals == puts && channel.completions == puts) return "";
  return "a channel carries " + std::to_string(channel.posted) + " puts, not " + std::to_string(puts);
}

std::string FanOutWorld::check_ready(std::int32_t index, std::int32_t source, std::int32_t tensors) {
  if (source == index && !keeps_own(index)) return "";  // its rows are in place
  for (std::int32_t chunk = 0; chunk < chunks_of(source); ++chunk) {
    for (std::int32_t tensor = 0; tensor < tensors; ++tensor) {
      const std::uint64_t value = ready(index, {source, tensor, chunk}).value;
      if (value == ready_count(settings_.launches - 1)) continue;
      return "ready[" + std::to_string(source) + "][" + std::to_string(chunk) + "] of rank " +
             std::to_string(index) + " ends at " + std::to_string(value);
    }
  }
  return "";
}

}  // namespace mkernel::test
