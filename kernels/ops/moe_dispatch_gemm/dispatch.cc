// What the dispatching CTAs do: route tokens, exchange counts, build the table, push rows.
#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/cpu/memory/convert.h"
#include "kernels/ops/moe_dispatch_gemm/roles.h"
#include "kernels/plan/chunked_routing.h"
#include "kernels/plan/cuts.h"
#include "kernels/plan/expert_table.h"

namespace mkernel::kernels {
namespace {

constexpr const char* kDispatchRole = "intra_comm";

std::int32_t most(const std::vector<std::int32_t>& numbers) {
  return numbers.empty() ? 0 : *std::max_element(numbers.begin(), numbers.end());
}

std::vector<std::int32_t> crossings_of(const ChunkedRouting& routing, std::int32_t others) {
  std::vector<std::int32_t> found;
  for (std::int32_t turn = 0; turn < others; ++turn) found.push_back(routing.crossings(turn));
  return found;
}

/// By local expert of `rank`: rows of the ranks of its node.
std::vector<std::int32_t> near_rows(const ExpertExchangePlan& exchange, std::int32_t rank,
                                    const std::vector<std::int32_t>& counts) {
  std::vector<std::int32_t> rows;
  const std::int32_t first = exchange.owners.first(rank);
  for (std::int32_t local = 0; local < exchange.owners.count(rank); ++local) {
    rows.push_back(
        rows_of_sources(exchange.order(rank), counts.data(), exchange.ranks_per_node, first + local));
  }
  return rows;
}

}  // namespace

MoeLaunch::Work::Work(const MoePlan& plan, std::int32_t rank, const ChunkedRouting& routing,
                      std::int32_t tokens, Counts read, HostExpertTable built)
    : counts(std::move(read)),
      host_table(std::move(built)),
      table(host_table.view()),
      mine(table.of_rank(rank)),
      expert_tasks(mine, {mine, plan.sections, near_rows(plan.exchange, rank, counts.rows).data()},
                   plan.exchange.columns1, plan.exchange.columns2, plan.lead),
      tasks{plan.shared_expert_tiles(tokens), expert_tasks.tasks},
      crossing(crossings_of(routing, plan.exchange.others())),
      staging(most(crossing) * plan.exchange.others()),
      pushing((routing.pushes() + kPushUnitRows - 1) / kPushUnitRows),
      forwarding(plan.exchange.pieces * plan.exchange.others()),
      tiles(tasks.tasks() - tasks.early()),
      crossed_sums(most(counts.crossed) * plan.exchange.others()),
      own_sums(tokens) {
  for (const std::int32_t rows : counts.crossed) crossed_row.emplace_back(rows);
}

MoeLaunch::MoeLaunch(const MoePlan& plan, const SymmetricView& workspace, Endpoint& endpoint,
                     ExpertLayer& layer, const MoeArguments& arguments, const Launch& launch)
    : plan_(plan),
      exchange_(plan.exchange),
      workspace_(workspace),
      endpoint_(endpoint),
      layer_(layer),
      arguments_(arguments),
      launch_(launch),
      me_(static_cast<std::int32_t>(launch.scope.rank)),
      order_(plan.exchange.order(me_)),
      routing_({arguments.topk, arguments.weights, static_cast<std::int32_t>(arguments.tokens),
                static_cast<std::int32_t>(plan.shape.topk)},
               order_, plan.dispatch_ctas),
      early_(plan.shared_expert_tiles(arguments.tokens).first()) {}

MoeLaunch::~MoeLaunch() = default;

Status MoeLaunch::wait_table(const char* role) const {
  return wait(tabled_.value, 1, {role, "the table of blocks", me_}, 2);
}

Status MoeLaunch::wait_placed(const char* role) const {
  return wait(placed_.value, static_cast<std::uint64_t>(plan_.dispatch_ctas), {role, "placed chunks", me_},
              1);
}

Status MoeLaunch::dispatch(std::int32_t number) {
  MK_RETURN_IF_ERROR(route(number));
  if (number == 0) MK_RETURN_IF_ERROR(build_table());
  MK_RETURN_IF_ERROR(wait_table(kDispatchRole));
  add_lacking_rows(number);
  if (work_ == nullptr) return {};
  MK_RETURN_IF_ERROR(wait_placed(kDispatchRole));
  stage();
  push();
  MK_RETURN_IF_ERROR(forward());
  return sum();
}

/// The CTA's chunk of tokens, and the counts for some of the ranks.
Status MoeLaunch::route(std::int32_t number) {
  routing_.count(number);
  signal_add(chunks_, 1);
  MK_RETURN_IF_ERROR(wait(chunks_.value, static_cast<std::uint64_t>(plan_.dispatch_ctas),
                          {kDispatchRole, "counted chunks", me_}, 1));
  for (std::int32_t ahead = 1 + number; ahead <= order_.ranks_per_node; ahead += plan_.dispatch_ctas)
    send_counts(order_.neighbour(ahead));
  if (routing_.problem().kind == RoutingProblem::kNone) routing_.place(number);
  signal_add(placed_, 1);
  return {};
}

void MoeLaunch::send_counts(std::int32_t to) const {
  std::byte* at = memory(to) + exchange_.counts(launch_.epoch, me_);
  const RoutingProblem problem = routing_.problem();
  const std::vector<std::int32_t> rows = routing_.counts();
  std::vector<std::int32_t> crossings(static_cast<std::size_t>(exchange_.nodes()));  // by node
  for (std::int32_t turn = 0; turn < exchange_.others(); ++turn)
    crossings[static_cast<std::size_t>(order_.node(order_.rail_peer(turn)))] = routing_.crossings(turn);
  std::memcpy(at, &problem, sizeof problem);
  std::memcpy(at + ExpertExchangePlan::kRowsInCounts, rows.data(), rows.size() * 4);
  std::memcpy(at + exchange_.crossings_in_counts(), crossings.data(), crossings.size() * 4);
  signal_set(word(to, exchange_.counted(me_)), stamp());
}

/// First those of this node, which hand on the counts of others: a rank that is missing is named itself.
Status MoeLaunch::wait_counts() const {
  for (std::int32_t turn = 0; turn < exchange_.owners.world; ++turn) {
    const std::int32_t first = order_.node(me_) * order_.ranks_per_node;
    const std::int32_t source = order_.seats.rank((first + turn) % exchange_.owners.world);
    const std::int64_t via =
        topology().via(static_cast<std::uint32_t>(source), static_cast<std::uint32_t>(me_));
    MK_RETURN_IF_ERROR(wait(word(me_, exchange_.counted(source)), stamp(),
                            {.role = kDispatchRole, .tag = "counts", .peer = source, .via = via},
                            turn < order_.ranks_per_node ? 0 : 1));
  }
  return {};
}

/// One thread reads the counts of all, for all.
Status MoeLaunch::build_table() {
  MK_RETURN_IF_ERROR(wait_counts());
  Counts counts = read_counts();
  HostExpertTable table(exchange_.owners, exchange_.cut, counts.rows);
  refusal_ = refusal_of(counts.problems, table, exchange_.capacity_rows);
  if (refusal_.ok()) {
    work_ = std::make_unique<Work>(plan_, me_, routing_, static_cast<std::int32_t>(arguments_.tokens),
                                   std::move(counts), std::move(table));
  }
  signal_set(tabled_, 1);
  return {};
}

MoeLaunch::Counts MoeLaunch::read_counts() const {
  const auto experts = static_cast<std::size_t>(exchange_.owners.experts);
  const auto world = static_cast<std::size_t>(exchange_.owners.world);
  Counts read{std::vector<std::int32_t>(world * experts), std::vector<RoutingProblem>(world), {}};
  const auto at = [&](std::int32_t source) { return memory(me_) + exchange_.counts(launch_.epoch, source); };
  for (std::size_t source = 0; source < world; ++source) {
    const std::byte* from = at(static_cast<std::int32_t>(source));
    std::memcpy(&read.problems[source], from, sizeof(RoutingProblem));
    std::memcpy(&read.rows[source * experts], from + ExpertExchangePlan::kRowsInCounts, experts * 4);
  }
  for (std::int32_t turn = 0; turn < exchange_.others(); ++turn) {
    const auto node = static_cast<std::uint64_t>(order_.node(me_));
    std::memcpy(&read.crossed.emplace_back(),
                at(order_.rail_peer(turn)) + exchange_.crossings_in_counts() + node * 4, 4);
  }
  return read;
}

/// Every block of the pool, used or not, is raised to whole blocks in every launch.
void MoeLaunch::add_lacking_rows(std::int32_t number) const {
  const OwnedExperts* mine = work_ != nullptr ? &work_->mine : nullptr;
  for (std::int32_t block = number; block < exchange_.max_blocks(); block += plan_.dispatch_ctas) {
    signal_add(word(me_, exchange_.arrived(block)),
               static_cast<std::uint64_t>(exchange_.lacking_rows(mine, block)));
  }
}

PoolPlace MoeLaunch::place_of(std::int32_t source, std::int32_t expert, std::int32_t index) const {
  return pool_place(work_->table, order_, work_->counts.rows.data(), source, expert, index);
}

/// Units of rows that follow each other.
void MoeLaunch::push() {
  const auto* x = static_cast<const std::byte*>(arguments_.x);
  const std::int32_t pushes = routing_.pushes();
  std::vector<PoolPlace> places;
  for (std::int32_t unit = work_->pushing.next(); unit < work_->pushing.all(); unit = work_->pushing.next()) {
    places.clear();
    const std::int32_t first = unit * kPushUnitRows;
    for (std::int32_t i = first; i < std::min(first + kPushUnitRows, pushes); ++i) {
      const ChunkedRouting::Push push = routing_.push(i);
      places.push_back(place_of(me_, push.expert, push.index));
      write_row(places.back(), {me_, push.entry}, x + push.entry / plan_.shape.topk * plan_.shape.hidden * 2,
                arguments_.weights[push.entry]);
    }
    signal_rows(places);
  }
}

void MoeLaunch::write_row(const PoolPlace& place, const ExpertRowOrigin& origin, const std::byte* row,
                          float weight) const {
  std::byte* pool = memory(place.owner);
  const auto elements = static_cast<std::size_t>(plan_.shape.hidden);
  if (plan_.shape.weights_on_input) {
    std::vector<float> scaled(elements);
    widen(plan_.shape.dtype, row, scaled.data(), elements);
    for (float& element : scaled) element *= weight;
    narrow(plan_.shape.dtype, scaled.data(), pool + exchange_.row(place.row), elements);
  } else {
    std::memcpy(pool + exchange_.row(place.row), row, elements * 2);
  }
  std::memcpy(pool + exchange_.origin(place.row), &origin, sizeof origin);
}

/// Rows that are written: one signal for those that follow each other in one block.
void MoeLaunch::signal_rows(std::span<const PoolPlace> places) const {
  for (std::size_t begin = 0, end = 0; begin < places.size(); begin = end) {
    const auto [owner, block, row] = places[begin];
    while (end < places.size() && places[end].owner == owner && places[end].block == block) ++end;
    signal_add(word(owner, exchange_.arrived(block)), end - begin);
  }
}

}  // namespace mkernel::kernels
