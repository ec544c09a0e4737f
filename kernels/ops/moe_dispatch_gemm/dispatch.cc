// The way out: pack and send the rows of this rank's tokens, show the node what arrives from other nodes.
#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/ops/moe_dispatch_gemm/roles.h"

namespace mkernel::kernels {

void Moe::pack_meta(const Launch& launch, const MoeArguments& arguments, std::uint32_t node,
                    const std::vector<std::int64_t>& list, std::byte* area) const {
  const std::int64_t topk = plan_.shape().topk;
  const MoeHeader header{launch.epoch + 1, list.size(), rows_sent_[node], {}};
  std::memcpy(area, &header, sizeof header);
  auto* experts = reinterpret_cast<std::int32_t*>(area + sizeof header);
  auto* weights = reinterpret_cast<float*>(experts + static_cast<std::int64_t>(list.size()) * topk);
  for (const std::int64_t token : list) {
    experts = std::copy_n(arguments.topk + token * topk, topk, experts);
    weights = std::copy_n(arguments.weights + token * topk, topk, weights);
  }
}

void Moe::pack_rows(const MoeArguments& arguments, const std::vector<std::int64_t>& list, Range rows,
                    std::byte* area) const {
  const auto* x = static_cast<const std::byte*>(arguments.x);
  const std::uint64_t bytes = plan_.row_bytes();
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const auto token = static_cast<std::uint64_t>(list[static_cast<std::size_t>(row)]);
    std::memcpy(area + static_cast<std::uint64_t>(row) * bytes, x + token * bytes, bytes);
  }
}

Status Moe::dispatch_remote(const Launch& launch, const MoeArguments& arguments, std::uint32_t node,
                            const std::vector<std::int64_t>& list) {
  constexpr const char* kRole = "inter_send";
  const MoeWorkspace& space = plan_.workspace();
  const std::uint32_t target = plan_.topology().rail_peer(rank_, node);
  const std::uint32_t peer = MoePlan::peer(node_, node);
  const auto rows = static_cast<std::int64_t>(list.size());
  if (rows == 0) return endpoint_.signal(target, MoePlan::kDispatchLane, kRole, launch.scope);

  pack_meta(launch, arguments, node, list, workspace_.mine + space.meta_out(peer));
  MK_RETURN_IF_ERROR(endpoint_.put(target, MoePlan::kDispatchLane, {workspace_.region, space.meta_out(peer)},
                                   {workspace_.region, space.meta_in(node_)}, plan_.meta_bytes(rows), kRole,
                                   launch.scope));
  for (std::int64_t begin = 0; begin < rows; begin += plan_.rows_per_put()) {
    const Range chunk{begin, std::min(begin + plan_.rows_per_put(), rows)};
    pack_rows(arguments, list, chunk, workspace_.mine + space.rows_out(peer));
    const std::uint64_t at = static_cast<std::uint64_t>(begin) * plan_.row_bytes();
    MK_RETURN_IF_ERROR(
        endpoint_.put(target, MoePlan::kDispatchLane, {workspace_.region, space.rows_out(peer) + at},
                      {workspace_.region, space.rows_in(node_) + at},
                      static_cast<std::uint64_t>(chunk.size()) * plan_.row_bytes(), kRole, launch.scope));
  }
  return {};
}

void Moe::dispatch_local(const Launch& launch, const MoeArguments& arguments,
                         const std::vector<std::int64_t>& list) {
  const MoeWorkspace& space = plan_.workspace();
  pack_meta(launch, arguments, node_, list, workspace_.mine + space.meta_in(node_));
  signal_set(word(local_, space.meta_ready(node_)), launch.epoch + 1);
  const auto rows = static_cast<std::int64_t>(list.size());
  for (std::int64_t begin = 0; begin < rows; begin += plan_.rows_per_put()) {
    const Range chunk{begin, std::min(begin + plan_.rows_per_put(), rows)};
    pack_rows(arguments, list, chunk, workspace_.mine + space.rows_in(node_));
    signal_set(word(local_, space.rows_ready(node_)),
               rows_sent_[node_] + static_cast<std::uint64_t>(chunk.end));
  }
}

Status Moe::dispatch(const Launch& launch, const MoeArguments& arguments, const SendLists& lists) {
  const std::uint32_t nodes = plan_.topology().nodes();
  for (std::uint32_t distance = 1; distance < nodes; ++distance) {
    const std::uint32_t node = (node_ + distance) % nodes;
    MK_RETURN_IF_ERROR(dispatch_remote(launch, arguments, node, lists[node]));
    rows_sent_[node] += lists[node].size();
  }
  dispatch_local(launch, arguments, lists[node_]);
  rows_sent_[node_] += lists[node_].size();
  return {};
}

/// What has arrived from one node in this launch.
struct Moe::Incoming {
  std::uint32_t node = 0;
  bool meta = false;
  std::int64_t rows = 0;
  std::int64_t shown = 0;  // rows of this launch that the node has been shown
  std::uint64_t puts = 1;  // of this launch that are taken: at first the metadata is awaited
  bool complete() const { return meta && shown == rows; }
};

/// Shows the node what is new from `from`; true when there was something.
bool Moe::take_arrivals(const Launch& launch, Incoming& from) {
  const MoeWorkspace& space = plan_.workspace();
  const std::uint32_t source = plan_.topology().rail_peer(rank_, from.node);
  const std::uint64_t before = puts_taken_[from.node];
  const std::uint64_t arrived = endpoint_.arrived(source, MoePlan::kDispatchLane);
  if (arrived < before + from.puts + (from.meta ? 1 : 0)) return false;
  const MoeMeta seen = meta(launch, from.node, local_);
  if (!from.meta) {
    from.meta = true;
    from.rows = seen.rows;
    signal_set(word(local_, space.meta_ready(from.node)), launch.epoch + 1);
  }
  from.puts = std::min(arrived - before, plan_.dispatch_puts(from.rows));
  from.shown = std::min(from.rows, static_cast<std::int64_t>(from.puts - 1) * plan_.rows_per_put());
  if (from.shown > 0) {
    signal_set(word(local_, space.rows_ready(from.node)),
               seen.first_row + static_cast<std::uint64_t>(from.shown));
  }
  return true;
}

Status Moe::receive(const Launch& launch) {
  std::vector<Incoming> incoming;
  for (std::uint32_t node = 0; node < plan_.topology().nodes(); ++node) {
    if (node != node_) incoming.push_back({.node = node});
  }
  std::uint64_t progress = 0;
  const auto look = [&] {
    for (Incoming& from : incoming) progress += !from.complete() && take_arrivals(launch, from) ? 1 : 0;
    return progress;
  };
  while (true) {
    const auto missing =
        std::find_if(incoming.begin(), incoming.end(), [](const Incoming& from) { return !from.complete(); });
    if (missing == incoming.end()) break;
    const std::uint32_t source = plan_.topology().rail_peer(rank_, missing->node);
    MK_RETURN_IF_ERROR(wait_until(look, progress + 1,
                                  {"inter_recv", "arrivals", source, MoePlan::kDispatchLane}, launch.scope));
  }
  for (const Incoming& from : incoming) puts_taken_[from.node] += plan_.dispatch_puts(from.rows);
  return {};
}

}  // namespace mkernel::kernels
