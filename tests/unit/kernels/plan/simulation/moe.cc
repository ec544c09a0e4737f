#include "tests/unit/kernels/plan/simulation/moe.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace mkernel::test {
// ---- what is routed ----

MoeWorld::Plan MoeWorld::plan_of(const MoeLoad& load, const kernels::Topology& topology) {
  const auto world = static_cast<std::int32_t>(topology.world());
  const kernels::ExpertBlockRows cut{4, 2};
  Plan plan{.owners = {load.experts, world}, .cut = cut};
  plan.ranks_per_node = static_cast<std::int32_t>(topology.ranks_per_node());
  plan.pieces = load.pieces;
  plan.max_tokens = load.max_tokens;
  plan.topk = load.topk;
  // In the worst case all ranks send all their rows to one owner, where experts are padded.
  plan.capacity_rows = cut.padded(world * load.max_tokens * std::min(load.topk, plan.owners.max_local())) +
                       plan.owners.max_local() * cut.unit;
  if (load.pattern == MoeLoad::kOftenTooMany)
    plan.capacity_rows = cut.padded(std::max(2, load.max_tokens * load.topk * 3 / 4));
  plan.columns1 = load.columns1;
  plan.columns2 = load.columns2;
  plan.shared_columns1 = load.shared_columns1;
  plan.shared_bytes = static_cast<std::uint64_t>(load.shared_columns1) * kCell;
  plan.row_bytes = 2 * kCell;
  plan.hidden_bytes = load.columns2 > 0 ? static_cast<std::uint64_t>(load.columns1) * kCell : 0;
  plan.finished_bytes = static_cast<std::uint64_t>(plan.last_columns()) * kCell;
  return plan;
}

MoeWorld::MoeWorld(const MoeLoad& load, const kernels::Topology& topology, const std::vector<Plan>& plans,
                   const Settings& settings)
    : World(topology, settings, topology.nodes() > 1 ? 2 : 0), load_(load), plan_(plans[0]) {
  for (std::int32_t index = 0; index < world(); ++index) {
    add_rank(plan_.bytes(), kCell, static_cast<std::uint64_t>(load.max_tokens) * kCell, kCell);
    counts_.emplace_back();
  }
}

MoeTokens MoeWorld::draw_tokens(std::int32_t index, std::uint64_t epoch) const {
  std::mt19937_64 random(settings_.seed * 1000003 + epoch * 1009 + static_cast<std::uint64_t>(index));
  const auto below = [&](std::int32_t end) {
    return static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(end));
  };
  std::int32_t tokens = below(3) == 0 ? 0 : 1 + below(load_.max_tokens);
  if (load_.pattern == MoeLoad::kOneToken)
    tokens = epoch % static_cast<std::uint64_t>(world()) == static_cast<std::uint64_t>(index) ? 1 : 0;
  std::vector<std::int32_t> all(static_cast<std::size_t>(load_.experts));
  std::iota(all.begin(), all.end(), 0);
  const std::int32_t used =
      load_.pattern == MoeLoad::kFewExperts ? std::max(load_.topk, load_.experts / 3) : load_.experts;
  MoeTokens made{load_.topk, {}, {}};
  for (std::int32_t token = 0; token < tokens; ++token) {
    std::shuffle(all.begin(), all.begin() + used, random);
    if (load_.pattern == MoeLoad::kOneExpert)
      std::swap(all[0], *std::find(all.begin(), all.end(), load_.experts / 2));
    made.experts.insert(made.experts.end(), all.begin(), all.begin() + load_.topk);
  }
  made.weights.assign(made.experts.size(), 1.0F);
  const bool bad = load_.pattern == MoeLoad::kBadEntry && epoch % 2 == 1 && index == world() / 2;
  if (bad && tokens == 0) {
    made.experts.assign(static_cast<std::size_t>(load_.topk), load_.experts);
    made.weights.assign(made.experts.size(), 1.0F);
  } else if (bad) {
    made.weights.back() = std::numeric_limits<float>::quiet_NaN();
  }
  return made;
}

const MoeWorld::Launch& MoeWorld::launch(std::uint64_t epoch) {
  while (launches_.size() <= epoch) {
    Launch& made = launches_.emplace_back();
    for (std::int32_t index = 0; index < world(); ++index) {
      made.tokens.push_back(draw_tokens(index, launches_.size() - 1));
      kernels::ChunkedRouting& routing =
          made.routings.emplace_back(made.tokens.back().view(), plan_.order(index), 1);
      routing.count(0);
      made.refused |= routing.problem().kind != kernels::RoutingProblem::kNone;
      const std::vector<std::int32_t> counts = routing.counts();
      made.counts.insert(made.counts.end(), counts.begin(), counts.end());
    }
    made.table = std::make_unique<kernels::HostExpertTable>(plan_.owners, plan_.cut, made.counts);
    made.refused |= made.table->first_overflow(plan_.capacity_rows) >= 0;
    if (!made.refused) find_origins(made);
  }
  return launches_[static_cast<std::size_t>(epoch)];
}

void MoeWorld::find_origins(Launch& made) const {
  for (std::int32_t owner = 0; owner < world(); ++owner)
    made.origins.emplace_back(static_cast<std::size_t>(made.table->view().of_rank(owner).pool_rows()));
  for (std::int32_t index = 0; index < world(); ++index) {
    kernels::ChunkedRouting& routing = made.routings[static_cast<std::size_t>(index)];
    routing.place(0);
    const auto add = [&](std::int32_t entry, const kernels::ExpertRowOrigin& origin) {
      const kernels::PoolPlace place = pushed(made, index, routing.row(entry), origin).place;
      made.origins[static_cast<std::size_t>(place.owner)][static_cast<std::size_t>(place.row)] = origin;
    };
    for (std::int32_t i = 0; i < routing.pushes(); ++i)
      add(routing.push(i).entry, {index, routing.push(i).entry});
    const kernels::PushOrder order = plan_.order(index);
    for (std::int32_t turn = 0; turn < plan_.others(); ++turn) {
      for (std::int32_t row = 0; row < routing.crossings(turn); ++row) {
        const std::int32_t token = routing.crossing(turn, row);
        std::int32_t at = plan_.crossed_entry(order.as_seen_from(turn), routing.returning(turn, token));
        for (const std::int32_t entry : routing.entries(turn, token))
          add(entry, {order.rail_peer(turn), at++});
      }
    }
  }
}

Span MoeWorld::result_of(std::int32_t index, std::uint64_t epoch) {
  const Launch& of = launch(epoch);
  if (of.refused) return {};
  return {0, static_cast<std::uint64_t>(of.tokens[static_cast<std::size_t>(index)].tokens()) * kCell};
}

// ---- a launch ----

void MoeWorld::begin_launch(std::int32_t index, std::uint64_t epoch) {
  const Launch& of = launch(epoch);
  if (index == 0) ++(of.refused ? refused_ : computed_);
  counts(index).launches.resize(static_cast<std::size_t>(epoch) + 1);
  own(index, epoch).routing = std::make_unique<kernels::ChunkedRouting>(
      of.tokens[static_cast<std::size_t>(index)].view(), plan_.order(index), load_.dispatch_ctas);
  for (std::int32_t number = 0; number < ctas(index); ++number)
    scheduler_.spawn(index, "CTA", cta(index, epoch, number));
}

Task MoeWorld::cta(std::int32_t index, std::uint64_t epoch, std::int32_t number) {
  Cta shared;
  const bool crosses = number == 0 && plan_.others() > 0;
  if (crosses) {
    scheduler_.spawn(index, "forward counts", forward_counts(index, epoch, shared));
    scheduler_.spawn(index, "inter_send", inter_send(index, epoch, shared));
  }
  const bool sums_beside = load_.sums_beside && number >= load_.dispatch_ctas;
  if (sums_beside) scheduler_.spawn(index, "summing warp beside", sum_beside(index, epoch, shared));
  co_await work(index, epoch, number, shared);
  if (sums_beside) co_await scheduler_.meet(shared.beside, 1);
  if (crosses) co_await scheduler_.meet(shared.crossed, 2);
  end_cta(index);
}

Task MoeWorld::work(std::int32_t index, std::uint64_t epoch, std::int32_t number, Cta& shared) {
  const bool dispatches = number < load_.dispatch_ctas;
  if (dispatches) co_await route(index, epoch, number, shared);
  if (number == 0 && !shared.gave_up) co_await build_table(index, epoch, shared);
  // Tasks of the shared expert do not wait for the table.
  const bool computes_first = !dispatches && !has(Fault::kSumsFirst);
  if (computes_first) co_await compute(index, epoch, shared);
  if (shared.gave_up || !co_await scheduler_.wait(counts(index).tabled, Plan::stamp(epoch))) co_return;
  if (dispatches) co_await add_lacking_rows(index, epoch, number);
  if (launch(epoch).refused) co_return;
  if (!co_await scheduler_.wait(counts(index).placed, dispatching(epoch))) co_return;
  if (dispatches) co_await push(index, epoch, shared);
  const bool sums_first = has(Fault::kSumsFirst) || (dispatches && load_.early_sums);
  if (sums_first) co_await sum(index, epoch, shared);
  if (!computes_first) co_await compute(index, epoch, shared);
  if (!sums_first) co_await sum(index, epoch, shared);
}

// ---- dispatch ----

/// The CTA's chunk of tokens, and the counts for some of the ranks.
Task MoeWorld::route(std::int32_t index, std::uint64_t epoch, std::int32_t number, Cta& shared) {
  kernels::ChunkedRouting& routing = *own(index, epoch).routing;
  co_await scheduler_.step();
  routing.count(number);
  if (number == 0 && !has(Fault::kWorkNotZeroed)) {
    for (std::int32_t& counter : counts(index).work[(epoch + 1) & 1]) counter = 0;
  }
  co_await scheduler_.step();
  scheduler_.add(counts(index).chunks, 1);
  if (!co_await scheduler_.wait(counts(index).chunks, dispatching(epoch))) {
    shared.gave_up = true;
    co_return;
  }
  for (std::int32_t ahead = 1 + number; ahead <= ranks_per_node(); ahead += load_.dispatch_ctas)
    co_await send_counts(index, epoch, rank_at(node_of(index), local_of(index) + ahead));
  if (routing.problem().kind == kernels::RoutingProblem::kNone) routing.place(number);
  co_await scheduler_.step();
  scheduler_.add(counts(index).placed, 1);
}

Task MoeWorld::send_counts(std::int32_t index, std::uint64_t epoch, std::int32_t to) {
  const Span span{counts_at(epoch, index), plan_.counts_bytes()};
  Word& counted = word(to, plan_.counted(index));
  if (has(Fault::kCountFirst)) scheduler_.set(counted, Plan::stamp(epoch));
  begin_write(memory(to), span);
  co_await scheduler_.step();
  memory(to).end_write(span, stamp(epoch, Content::kCounts, index, 0));
  co_await scheduler_.step();
  scheduler_.set(counted, Plan::stamp(epoch));
}

/// One CTA reads the counts of all, for all.
Task MoeWorld::build_table(std::int32_t index, std::uint64_t epoch, Cta& shared) {
  Private& mine = own(index, epoch);
  if (!has(Fault::kRowsBeforeCounts)) {
    for (std::int32_t source = 0; source < world() && !shared.gave_up; ++source)
      shared.gave_up = !co_await scheduler_.wait(word(index, plan_.counted(source)), Plan::stamp(epoch));
    if (shared.gave_up) co_return;
    for (const bool again : {false, true}) {
      for (std::int32_t source = 0; source < world(); ++source) {
        mine.right &= holds(index, epoch, memory(index), {counts_at(epoch, source), plan_.counts_bytes()},
                            stamp(epoch, Content::kCounts, source, 0), "counts");
      }
      if (!again) co_await scheduler_.step();
    }
  }
  const Launch& of = launch(epoch);
  mine.mine = of.table->view().of_rank(index);
  std::vector<std::int32_t> near_rows;
  for (std::int32_t local = 0; local < mine.mine.experts; ++local) {
    near_rows.push_back(kernels::rows_of_sources(plan_.order(index), of.counts.data(), ranks_per_node(),
                                                 plan_.owners.first(index) + local));
  }
  mine.tasks = std::make_unique<kernels::HostExpertTasks>(
      mine.mine, kernels::HostExpertSections(mine.mine, load_.sections, near_rows.data()), plan_.columns1,
      plan_.columns2, load_.lead);
  co_await scheduler_.step();
  scheduler_.set(counts(index).tabled, Plan::stamp(epoch));
}

/// Every block of the pool, used or not, is raised to whole blocks in every launch.
Task MoeWorld::add_lacking_rows(std::int32_t index, std::uint64_t epoch, std::int32_t number) {
  const bool refused = launch(epoch).refused;
  if (has(Fault::kLackingRows) || (refused && has(Fault::kRefusalUncounted))) co_return;
  for (std::int32_t block = number; block < plan_.max_blocks(); block += load_.dispatch_ctas) {
    const kernels::OwnedExperts* mine = refused ? nullptr : &own(index, epoch).mine;
    scheduler_.add(word(index, plan_.arrived(block)),
                   static_cast<std::uint64_t>(plan_.lacking_rows(mine, block)));
    if (block % 3 == 0) co_await scheduler_.step();
  }
}

Task MoeWorld::push(std::int32_t index, std::uint64_t epoch, Cta& shared) {
  for (std::int32_t warp = 0; warp < load_.push_warps; ++warp)
    scheduler_.spawn(index, "pushing warp", push_warp(index, epoch, shared));
  co_await scheduler_.meet(shared.pushed, static_cast<std::uint64_t>(load_.push_warps));
}

Task MoeWorld::push_warp(std::int32_t index, std::uint64_t epoch, Cta& shared) {
  const kernels::ChunkedRouting& routing = *own(index, epoch).routing;
  const std::int32_t first = load_.sections.first_experts(plan_.owners.max_local()) * plan_.ranks_per_node;
  Pushes pushes{.end = routing.pushes_before(first)};
  if (has(Fault::kForwardsFirst)) co_await forward(index, epoch, pushes);
  co_await stage(index, epoch, pushes);
  while (pushes.left) co_await push_unit(index, epoch, pushes);
  pushes = {.taken = pushes.taken, .end = routing.pushes()};
  co_await forward(index, epoch, pushes);
  while (pushes.left) co_await push_unit(index, epoch, pushes);
  scheduler_.add(shared.pushed, 1);
}

/// A unit of rows that follow each other, unless none is left before the end.
Task MoeWorld::push_unit(std::int32_t index, std::uint64_t epoch, Pushes& pushes) {
  const kernels::ChunkedRouting& routing = *own(index, epoch).routing;
  co_await scheduler_.step();
  if (pushes.taken < 0) pushes.taken = take(index, epoch, kPushing) * load_.push_unit;
  pushes.left = pushes.taken < pushes.end;
  if (!pushes.left) co_return;
  const std::int32_t first = std::exchange(pushes.taken, -1);
  std::vector<Pushed> unit;
  for (std::int32_t i = first; i < std::min(first + load_.push_unit, routing.pushes()); ++i)
    unit.push_back(pushed(launch(epoch), index, routing.push(i), {index, routing.push(i).entry}));
  co_await write_rows(epoch, unit, true);
}

MoeWorld::Pushed MoeWorld::pushed(const Launch& of, std::int32_t source,
                                  const kernels::ChunkedRouting::Push& push,
                                  const kernels::ExpertRowOrigin& origin) const {
  const kernels::PushOrder order = plan_.order(plan_.owners.owner(push.expert));
  return {origin,
          kernels::pool_place(of.table->view(), order, of.counts.data(), source, push.expert, push.index)};
}

/// All rows of a unit, a release, then the counts of their blocks.
Task MoeWorld::write_rows(std::uint64_t epoch, std::vector<Pushed> unit, bool right) {
  const auto signal = [&] {
    for (const Pushed& each : unit)
      scheduler_.add(word(each.place.owner, plan_.arrived(each.place.block)), 1);
  };
  if (has(Fault::kCountFirst)) signal();
  for (const Pushed& each : unit) {
    begin_write(memory(each.place.owner), {plan_.row(each.place.row), plan_.row_bytes});
    begin_write(memory(each.place.owner), {plan_.origin(each.place.row), kCell});
  }
  co_await scheduler_.step();
  for (const Pushed& each : unit) {
    memory(each.place.owner)
        .end_write({plan_.row(each.place.row), plan_.row_bytes}, row_stamp(epoch, each.origin), right);
    memory(each.place.owner)
        .end_write({plan_.origin(each.place.row), kCell}, origin_stamp(epoch, each.origin), right);
  }
  co_await scheduler_.step();
  if (!has(Fault::kCountFirst)) signal();
}

}  // namespace mkernel::test
