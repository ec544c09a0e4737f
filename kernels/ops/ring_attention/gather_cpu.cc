#include "kernels/ops/ring_attention/gather_cpu.h"

#include <algorithm>
#include <cstring>

#include "kernels/base/signal.h"
#include "kernels/plan/cuts.h"

namespace mkernel::kernels {
void cut_on_cpu(RingPlan& plan, std::int64_t most_bytes) {
  KvGatherPlan& gather = plan.gather;
  std::int64_t rows = std::max<std::int64_t>(1, most_bytes / gather.row_bytes);
  if (rows > kAttentionTile) rows -= rows % kAttentionTile;
  gather.cut(static_cast<std::int32_t>(std::min<std::int64_t>(rows, std::max(1, plan.most_positions()))));
  // One thread pushes: it does not wait for other nodes while it has own chunks.
  gather.own_between = gather.chunks();
}

CpuKvGather::CpuKvGather(const RingPlan& plan, const Topology& topology, const SymmetricView& workspace,
                         const SymmetricView& lent, Endpoint& endpoint, const void* k, const void* v,
                         const Launch& launch)
    : plan_(plan),
      topology_(topology),
      workspace_(workspace),
      lent_(lent),
      endpoint_(endpoint),
      own_{k, v},
      launch_(launch),
      me_(plan.gather.rank),
      local_(topology.local_of(static_cast<std::uint32_t>(me_))) {
  const auto rank = static_cast<std::uint32_t>(me_);
  for (std::uint32_t step = 1; step < topology.nodes(); ++step)
    rail_peers_.push_back(topology.rail_peer(rank, (topology.node_of(rank) + step) % topology.nodes()));
}

void CpuKvGather::start(Launch& launch) const {
  if (gather().world > 1) launch.roles.start("intra_comm", [this] { return push(); });
  if (gather().rails() > 0) launch.roles.start("inter_send", [this] { return send(); });
}

std::uint64_t& CpuKvGather::ready(std::byte* workspace, std::int32_t source, std::int32_t tensor,
                                  std::int32_t chunk) const {
  return reinterpret_cast<std::uint64_t*>(workspace + gather().ready_offset(source, tensor))[chunk];
}

std::byte* CpuKvGather::chunk_at(std::byte* lent, std::int32_t source, std::int32_t tensor,
                                 std::int32_t chunk) const {
  return lent + launch_.half_at + gather().slab_offset(source, tensor) + gather().chunk_offset(source, chunk);
}

/// Chunks of other nodes come through others, whose own waits end before this one.
Status CpuKvGather::wait_word(std::int32_t source, std::int32_t tensor, std::int32_t chunk,
                              const char* role) const {
  const auto from = static_cast<std::uint32_t>(source), to = static_cast<std::uint32_t>(me_);
  const bool far = topology_.node_of(from) != topology_.node_of(to);
  return wait_at_least(ready(workspace_.mine, source, tensor, chunk), gather().count(launch_.epoch),
                       {.role = role, .tag = "a chunk", .peer = source, .via = topology_.via(from, to)},
                       launch_.at_stage(far ? 1 : 0));
}

Status CpuKvGather::wait(std::int32_t source, std::int32_t chunk, const char* role) const {
  for (std::int32_t tensor = 0; tensor < KvGatherPlan::kTensors && source != me_; ++tensor)
    MK_RETURN_IF_ERROR(wait_word(source, tensor, chunk, role));
  return {};
}

HeadRows CpuKvGather::rows(std::int32_t source, std::int32_t tensor, std::int32_t head) const {
  const AttentionShape& shape = plan_.shape;
  if (source == me_) {
    return head_rows(shape, own_[tensor], shape.kv_heads, gather().positions(me_), head / gather().kv_heads,
                     head % gather().kv_heads);
  }
  return {chunk_at(lent_.mine, source, tensor, gather().first_chunk(head)), shape.head_dim, shape.head_dim,
          shape.dtype};
}

/// Own rows lie together in the slab only; those of others already do.
void CpuKvGather::copy_chunk(std::int32_t source, std::int32_t tensor, std::int32_t chunk,
                             std::byte* to) const {
  const auto row_bytes = static_cast<std::size_t>(gather().row_bytes);
  if (source != me_) {
    std::memcpy(to, chunk_at(lent_.mine, source, tensor, chunk), gather().chunk_bytes(source, chunk));
    return;
  }
  const HeadRows from = rows(me_, tensor, gather().head_of(chunk)).from(gather().chunk_row(chunk));
  for (std::int32_t row = 0; row < gather().chunk_rows(me_, chunk); ++row, to += row_bytes)
    std::memcpy(to, from.from(row).data, row_bytes);
}

/// To the ranks of the node, from the next one on, so that no rank is written by all. Own chunks last to the
/// own slab, where they are put from.
void CpuKvGather::push_chunk(std::int32_t source, std::int32_t tensor, std::int32_t chunk) const {
  const std::uint32_t ranks = topology_.ranks_per_node();
  const bool to_own_slab = source == me_ && gather().rails() > 0;
  for (std::uint32_t turn = 1; turn <= ranks; ++turn) {
    const std::uint32_t target = (local_ + turn) % ranks;
    if (target != local_ || to_own_slab)
      copy_chunk(source, tensor, chunk, chunk_at(lent_.node[target], source, tensor, chunk));
    signal_add(ready(workspace_.node[target], source, tensor, chunk), 1);
  }
}

Status CpuKvGather::push() const {
  for (std::int32_t i = 0; i < gather().turns() && !launch_.roles.stop(); ++i) {
    // Its plan has no first heads: a thread copies to one rank after the other in any case.
    const auto [stream, chunk, all] = gather().turn(i);
    const std::int32_t group = stream / KvGatherPlan::kTensors, tensor = stream % KvGatherPlan::kTensors;
    // The node before this one begins with it.
    const std::int32_t source =
        group == 0
            ? me_
            : static_cast<std::int32_t>(rail_peers_[static_cast<std::size_t>(gather().rails() - group)]);
    if (group > 0) {
      MK_RETURN_IF_ERROR(endpoint_.wait_arrival(static_cast<std::uint32_t>(source), 0,
                                                gather().arrivals(launch_.epoch, tensor, chunk), "inter_recv",
                                                launch_.scope));
    }
    push_chunk(source, tensor, chunk);
  }
  for (std::int32_t step = 1; step < gather().world; ++step) {
    for (std::int32_t chunk = 0; chunk < gather().chunks(); ++chunk)
      MK_RETURN_IF_ERROR(wait(gather().source(step), chunk, "intra_comm"));
  }
  return {};
}

Status CpuKvGather::send() const {
  for (std::int32_t chunk = 0; chunk < gather().chunks(); ++chunk) {
    for (std::int32_t tensor = 0; tensor < KvGatherPlan::kTensors; ++tensor) {
      MK_RETURN_IF_ERROR(wait_word(me_, tensor, chunk, "inter_send"));
      const Place place{lent_.region, launch_.half_at + gather().slab_offset(me_, tensor) +
                                          gather().chunk_offset(me_, chunk)};
      for (const std::uint32_t peer : rail_peers_) {
        MK_RETURN_IF_ERROR(endpoint_.put(peer, 0, place, place, gather().chunk_bytes(me_, chunk),
                                         "inter_send", launch_.scope));
      }
    }
  }
  for (const std::uint32_t peer : rail_peers_) {
    MK_RETURN_IF_ERROR(endpoint_.wait_completed(peer, 0, (launch_.epoch + 1) * gather().puts(), "inter_send",
                                                launch_.scope));
  }
  return {};
}

}  // namespace mkernel::kernels
