// Weighted sums of finished rows: in fp32, of the experts of a node in top-k order, then by node, then of the
// shared expert.
#include <algorithm>

#include "kernels/cpu/memory/convert.h"
#include "kernels/ops/moe_dispatch_gemm/roles.h"

namespace mkernel::kernels {
namespace {

constexpr const char* kSumRole = "inter_reduce";

}  // namespace

/// Room for the sum of one token.
struct MoeLaunch::Sum {
  Sum(DataType type, std::int64_t n)
      : dtype(type), total(static_cast<std::size_t>(n)), row(static_cast<std::size_t>(n)) {}

  void begin() { std::fill(total.begin(), total.end(), 0.0F); }
  void add(const std::byte* from, float weight) {
    widen(dtype, from, row.data(), row.size());
    for (std::size_t i = 0; i < row.size(); ++i) total[i] += weight * row[i];
  }
  void store(std::byte* to) const { narrow(dtype, total.data(), to, total.size()); }

  const DataType dtype;
  std::vector<float> total, row;
};

/// What crossed comes first: other nodes wait for it.
Status MoeLaunch::sum() {
  Sum room(plan_.shape.dtype, plan_.shape.n);
  WorkCounter& crossed = work_->crossed_sums;
  for (std::int32_t number = crossed.next(); number < crossed.all(); number = crossed.next()) {
    const std::int32_t turn = number % exchange_.others(), returning = number / exchange_.others();
    if (returning >= work_->counts.crossed[static_cast<std::size_t>(turn)]) continue;
    MK_RETURN_IF_ERROR(sum_crossed(turn, returning, room));
  }
  WorkCounter& own = work_->own_sums;
  for (std::int32_t number = own.next(); number < own.all(); number = own.next())
    MK_RETURN_IF_ERROR(sum_own(routing_.token_order()[static_cast<std::size_t>(number)], room));
  return {};
}

/// Once the finished row is here.
Status MoeLaunch::add_finished(std::int32_t entry, std::int32_t owner, float weight, Sum& sum) const {
  MK_RETURN_IF_ERROR(
      wait(word(me_, exchange_.finished_word(entry)), stamp(), {kSumRole, "a finished row", owner}, 3));
  sum.add(memory(me_) + exchange_.finished(entry), weight);
  return {};
}

/// What the finished row of an expert is multiplied by, when `weight` is its weight.
float MoeLaunch::weight_of_sum(float weight) const {
  return plan_.shape.weights_on_input ? 1 : weight;
}

Status MoeLaunch::sum_crossed(std::int32_t turn, std::int32_t returning, Sum& sum) const {
  MK_RETURN_IF_ERROR(wait(word(me_, exchange_.forwarded_word(turn, returning)), stamp(),
                          {kSumRole, "a forwarded row", me_}, 2));
  const std::int32_t row =
      work_->crossed_row[static_cast<std::size_t>(turn)][static_cast<std::size_t>(returning)];
  const std::byte* in = memory(me_) + exchange_.crossing_in(turn, row);
  const auto& head = *reinterpret_cast<const CrossingHead*>(in);
  const auto* entries = reinterpret_cast<const CrossingEntry*>(in + sizeof head);
  sum.begin();
  for (std::int32_t i = 0; i < head.entries; ++i) {
    MK_RETURN_IF_ERROR(add_finished(exchange_.crossed_entry(turn, returning) + i,
                                    exchange_.owners.owner(entries[i].expert),
                                    weight_of_sum(entries[i].weight), sum));
  }
  sum.store(memory(me_) + exchange_.sum_out(turn, returning));
  signal_set(word(me_, exchange_.summed_word(turn, returning)), stamp());
  return {};
}

/// The rows of this node's experts, then the sums of the other nodes, from the next one on, then the row of
/// the shared expert.
Status MoeLaunch::sum_own(std::int32_t token, Sum& sum) const {
  sum.begin();
  for (const std::int32_t entry : routing_.entries(exchange_.others(), token))
    MK_RETURN_IF_ERROR(add_finished(entry, exchange_.owners.owner(arguments_.topk[entry]),
                                    weight_of_sum(arguments_.weights[entry]), sum));
  for (std::int32_t turn = 0; turn < exchange_.others(); ++turn) {
    const std::int32_t returning = routing_.returning(turn, token);
    if (returning < 0) continue;
    const std::int32_t piece = exchange_.piece_of(returning, work_->crossing[static_cast<std::size_t>(turn)]);
    MK_RETURN_IF_ERROR(endpoint_.wait_arrival(
        static_cast<std::uint32_t>(order_.rail_peer(turn)), ExpertExchangePlan::kSumsLane,
        exchange_.sums_arrivals(launch_.epoch, piece), kSumRole, launch_.at_stage(4)));
    sum.add(memory(me_) + exchange_.sum_in(turn, returning), 1);
  }
  if (plan_.shared()) {
    const float weight = arguments_.shared_weights == nullptr ? 1 : arguments_.shared_weights[token];
    MK_RETURN_IF_ERROR(add_finished(exchange_.shared_entry(token), me_, weight, sum));
  }
  sum.store(static_cast<std::byte*>(arguments_.y) + token * plan_.shape.n * 2);
  return {};
}

}  // namespace mkernel::kernels
