// The way back: sums of a node return to their source, which adds the nodes.
#include <algorithm>

#include "kernels/cpu/memory/convert.h"
#include "kernels/ops/moe_dispatch_gemm/roles.h"

namespace mkernel::kernels {

/// out [n] = sum over the node's ranks, by local index, of what their experts made of one row.
void Moe::sum_row(std::uint32_t node, std::uint32_t source_local, std::int64_t row,
                  const std::int32_t* experts, std::vector<std::uint32_t>& ranks, float* out) const {
  const std::int64_t n = plan_.shape().n;
  contributors(plan_, node_, experts, ranks);
  std::fill_n(out, n, 0.0F);
  for (const std::uint32_t local : ranks) {
    const auto* sums = reinterpret_cast<const float*>(workspace_.node[local] +
                                                      plan_.workspace().partials(node, source_local));
    for (std::int64_t i = 0; i < n; ++i) out[i] += sums[row * n + i];
  }
}

Status Moe::return_sums(const Launch& launch, std::uint32_t node, std::vector<float>& sum) {
  constexpr const char* kRole = "inter_reduce";
  const MoeWorkspace& space = plan_.workspace();
  const std::uint32_t source = plan_.topology().rail_peer(rank_, node);
  MK_RETURN_IF_ERROR(wait_partials(launch, node, launch.epoch + 1, kRole));
  const MoeMeta seen = meta(launch, node, local_);
  if (seen.rows == 0) return endpoint_.signal(source, MoePlan::kReturnLane, kRole, launch.scope);

  const std::uint64_t out = space.sums_out(MoePlan::peer(node_, node));
  const std::uint64_t back = space.sums_in(MoePlan::peer(node, node_));
  std::vector<std::uint32_t> ranks;
  for (std::int64_t begin = 0; begin < seen.rows; begin += plan_.sums_per_put()) {
    const std::int64_t end = std::min(begin + plan_.sums_per_put(), seen.rows);
    for (std::int64_t row = begin; row < end; ++row) {
      sum_row(node, local_, row, seen.experts + row * plan_.shape().topk, ranks, sum.data());
      narrow(plan_.shape().dtype, sum.data(),
             workspace_.mine + out + static_cast<std::uint64_t>(row) * plan_.sum_bytes(), sum.size());
    }
    const std::uint64_t at = static_cast<std::uint64_t>(begin) * plan_.sum_bytes();
    MK_RETURN_IF_ERROR(endpoint_.put(
        source, MoePlan::kReturnLane, {workspace_.region, out + at}, {workspace_.region, back + at},
        static_cast<std::uint64_t>(end - begin) * plan_.sum_bytes(), kRole, launch.scope));
  }
  return {};
}

Status Moe::reduce(const Launch& launch) {
  const std::uint32_t nodes = plan_.topology().nodes();
  std::vector<float> sum(static_cast<std::size_t>(plan_.shape().n));
  for (std::uint32_t distance = 1; distance < nodes; ++distance) {
    // The node that was sent to first comes first: the mirror of dispatch().
    MK_RETURN_IF_ERROR(return_sums(launch, (node_ + nodes - distance) % nodes, sum));
  }
  return {};
}

/// Adds what `node` made of row `row` of this rank's rows there.
Status Moe::add_remote(const Launch& launch, std::uint32_t node, std::int64_t row,
                       std::vector<float>& widened, float* sum) const {
  const std::uint64_t put = returns_taken_[node] + static_cast<std::uint64_t>(row / plan_.sums_per_put()) + 1;
  MK_RETURN_IF_ERROR(endpoint_.wait_arrival(plan_.topology().rail_peer(rank_, node), MoePlan::kReturnLane,
                                            put, "combine", launch.scope));
  const std::byte* sums = workspace_.mine + plan_.workspace().sums_in(MoePlan::peer(node_, node));
  widen(plan_.shape().dtype, sums + static_cast<std::uint64_t>(row) * plan_.sum_bytes(), widened.data(),
        widened.size());
  for (std::size_t i = 0; i < widened.size(); ++i) sum[i] += widened[i];
  return {};
}

Status Moe::combine(const Launch& launch, const MoeArguments& arguments, const SendLists& lists) {
  const MoeShape& shape = plan_.shape();
  const std::uint32_t nodes = plan_.topology().nodes();
  std::vector<float> sum(static_cast<std::size_t>(shape.n)), part(sum.size());
  std::vector<std::int64_t> next(nodes, 0);  // row of the next token that went to a node
  std::vector<std::uint32_t> ranks;
  if (!lists[node_].empty()) MK_RETURN_IF_ERROR(wait_partials(launch, node_, launch.epoch + 1, "combine"));
  for (std::int64_t token = 0; token < arguments.tokens; ++token) {
    std::fill(sum.begin(), sum.end(), 0.0F);
    for (std::uint32_t node = 0; node < nodes; ++node) {
      const auto& list = lists[node];
      if (next[node] == static_cast<std::int64_t>(list.size())) continue;
      if (list[static_cast<std::size_t>(next[node])] != token) continue;
      const std::int64_t row = next[node]++;
      if (node == node_) {
        sum_row(node_, local_, row, arguments.topk + token * shape.topk, ranks, part.data());
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
      } else {
        MK_RETURN_IF_ERROR(add_remote(launch, node, row, part, sum.data()));
      }
    }
    narrow(shape.dtype, sum.data(),
           static_cast<std::byte*>(arguments.y) + static_cast<std::uint64_t>(token) * plan_.sum_bytes(),
           sum.size());
  }
  return wait_answers(launch, lists);
}

/// Every node answers, the ones that got no rows too: afterwards nobody reads this rank's rows or metadata
/// any more, here or there, and the next launch may write them without asking.
Status Moe::wait_answers(const Launch& launch, const SendLists& lists) {
  for (std::uint32_t node = 0; node < plan_.topology().nodes(); ++node) {
    if (node == node_) continue;
    returns_taken_[node] += plan_.return_puts(static_cast<std::int64_t>(lists[node].size()));
    MK_RETURN_IF_ERROR(endpoint_.wait_arrival(plan_.topology().rail_peer(rank_, node), MoePlan::kReturnLane,
                                              returns_taken_[node], "combine", launch.scope));
  }
  return wait_partials(launch, node_, launch.epoch + 1, "combine");
}

}  // namespace mkernel::kernels
