#include "kernels/cpu/exchange/reduce.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "kernels/cpu/memory/convert.h"

namespace mkernel::kernels {
namespace {

/// Elements that are summed at a time: they stay in the first-level cache.
constexpr std::int64_t kStrip = 1024;

/// Stages of the waits: for the ranks of the node 0, for the node's sum 1, for the sums of other nodes 2.
constexpr int kAfterNode = 1;
constexpr int kAfterSend = 2;

}  // namespace

Reduce::Reduce(const ReducePlan& plan, const Topology& topology, DataType dtype, const GroupView& group,
               const SymmetricView& workspace, Endpoint& endpoint, std::uint32_t lane)
    : plan_(plan),
      topology_(topology),
      dtype_(dtype),
      workspace_(workspace),
      endpoint_(endpoint),
      rank_(group.rank()),
      node_(topology.node_of(rank_)),
      local_(topology.local_of(rank_)),
      lane_(lane),
      compute_order_(plan.compute_order(rank_)),
      stream_(plan.stream(rank_)) {}

SignalWord& Reduce::word(std::uint32_t local, std::uint64_t offset) const {
  return *reinterpret_cast<SignalWord*>(workspace_.node[local] + offset);
}

/// A stream position of this launch, counted over all launches.
std::uint64_t Reduce::sequence(const Launch& launch, std::uint32_t reducer, std::int64_t position) const {
  return launch.epoch * static_cast<std::uint64_t>(plan_.stream_length(reducer)) +
         static_cast<std::uint64_t>(position);
}

std::uint32_t Reduce::reducer_of(OwnedTile tile) const {
  return topology_.rail_peer(tile.owner, node_);
}

Result<float*> Reduce::acquire_slot(const Launch& launch, OwnedTile tile) const {
  const std::uint32_t reducer = reducer_of(tile);
  const std::uint64_t at = sequence(launch, reducer, plan_.position(node_, tile));
  const auto window = static_cast<std::uint64_t>(plan_.window());
  const std::uint32_t at_local = topology_.local_of(reducer);
  if (at >= window) {
    const Status status =
        wait_at_least(word(local_, plan_.consumed_offset(at_local)).value, at + 1 - window,
                      {"compute", "consumed slots", reducer, -1}, launch.at_stage(kAfterNode));
    if (!status.ok()) return status;
  }
  return reinterpret_cast<float*>(workspace_.node[at_local] + plan_.slot_offset(local_, at));
}

void Reduce::publish_slot(const Launch& launch, OwnedTile tile) const {
  const std::uint32_t reducer = reducer_of(tile);
  const std::uint64_t at = sequence(launch, reducer, plan_.position(node_, tile));
  signal_set(word(topology_.local_of(reducer), plan_.slot_ready_offset(local_, at)), at + 1);
}

void Reduce::store_partial(const float* in, std::byte* out, std::int64_t count) const {
  if (plan_.partial() == Partial::kFloat) {
    std::memcpy(out, in, static_cast<std::size_t>(count) * sizeof(float));
  } else {
    narrow(dtype_, in, out, static_cast<std::size_t>(count));
  }
}

void Reduce::load_partial(const std::byte* in, float* out, std::int64_t count) const {
  if (plan_.partial() == Partial::kFloat) {
    std::memcpy(out, in, static_cast<std::size_t>(count) * sizeof(float));
  } else {
    widen(dtype_, in, out, static_cast<std::size_t>(count));
  }
}

/// out = sum over the node's ranks, in rank order: the same bits whoever was first.
void Reduce::sum_slots(std::uint64_t position, std::int64_t elements, std::byte* out) const {
  float sum[kStrip];
  for (std::int64_t begin = 0; begin < elements; begin += kStrip) {
    const std::int64_t count = std::min(kStrip, elements - begin);
    for (std::uint32_t source = 0; source < topology_.ranks_per_node(); ++source) {
      const float* in =
          reinterpret_cast<const float*>(workspace_.mine + plan_.slot_offset(source, position)) + begin;
      for (std::int64_t i = 0; i < count; ++i) sum[i] = source == 0 ? in[i] : sum[i] + in[i];
    }
    store_partial(sum, out + static_cast<std::uint64_t>(begin) * plan_.partial_bytes(), count);
  }
}

Status Reduce::sum_node(const Launch& launch) {
  for (std::size_t i = 0; i < stream_.size(); ++i) {
    const OwnedTile tile = stream_[i];
    const std::uint64_t at = sequence(launch, rank_, static_cast<std::int64_t>(i));
    for (std::uint32_t source = 0; source < topology_.ranks_per_node(); ++source) {
      MK_RETURN_IF_ERROR(wait_at_least(word(local_, plan_.slot_ready_offset(source, at)).value, at + 1,
                                       {"intra_comm", "partial tiles", topology_.rank_at(node_, source), -1},
                                       launch.scope));
    }
    const std::uint64_t block = tile.owner == rank_ ? plan_.partial_offset(launch.epoch, node_)
                                                    : plan_.staged_offset(topology_.node_of(tile.owner));
    sum_slots(at, plan_.grid(tile.owner).tile(tile.tile).elements(),
              workspace_.mine + block + plan_.tile_offset(tile));
    signal_set(reduced_, at + 1);
    for (std::uint32_t source = 0; source < topology_.ranks_per_node(); ++source) {
      signal_set(word(source, plan_.consumed_offset(local_)), at + 1);
    }
  }
  return {};
}

Status Reduce::send_partials(const Launch& launch) {
  for (std::uint32_t step = 1; step < topology_.nodes(); ++step) {
    const std::uint32_t owner = topology_.rail_peer(rank_, (node_ + step) % topology_.nodes());
    // The owner's launch e - 2 read the same half of its partials: it must have ended.
    if (launch.epoch >= 2) {
      MK_RETURN_IF_ERROR(endpoint_.wait_arrival(owner, lane_ + 1, launch.epoch - 1, "inter_send",
                                                launch.at_stage(kAfterSend)));
    }
    const ChunkSplit split = plan_.chunks(owner);
    for (std::int64_t chunk = 0; chunk < split.chunks(); ++chunk) {
      const Range tiles = split.chunk(chunk);
      // The count of positions up to and with the chunk's last tile; an empty chunk waits for nothing.
      const std::uint64_t written = sequence(launch, rank_, plan_.position(node_, {owner, tiles.end}));
      if (tiles.size() > 0) {
        MK_RETURN_IF_ERROR(wait_at_least(reduced_.value, written, {"inter_send", "node partials", rank_, -1},
                                         launch.at_stage(kAfterSend)));
      }
      const std::uint64_t begin = plan_.tile_offset({owner, tiles.begin});
      const std::uint64_t end = plan_.tile_offset({owner, tiles.end});
      MK_RETURN_IF_ERROR(endpoint_.put(
          owner, lane_, {workspace_.region, plan_.staged_offset(topology_.node_of(owner)) + begin},
          {workspace_.region, plan_.partial_offset(launch.epoch, node_) + begin}, end - begin, "inter_send",
          launch.scope));
    }
  }
  return {};
}

Status Reduce::wait_partials(const Launch& launch, std::int64_t chunk) const {
  const ChunkSplit split = plan_.chunks(rank_);
  const std::uint64_t arrived =
      launch.epoch * static_cast<std::uint64_t>(split.chunks()) + static_cast<std::uint64_t>(chunk) + 1;
  for (std::uint32_t node = 0; node < topology_.nodes(); ++node) {
    if (node == node_) continue;
    MK_RETURN_IF_ERROR(endpoint_.wait_arrival(topology_.rail_peer(rank_, node), lane_, arrived,
                                              "inter_reduce", launch.at_stage(kAfterSend)));
  }
  const Range tiles = split.chunk(chunk);
  if (tiles.size() == 0) return {};
  return wait_at_least(reduced_.value, sequence(launch, rank_, plan_.position(node_, {rank_, tiles.end})),
                       {"inter_reduce", "node partials", rank_, -1}, launch.at_stage(kAfterSend));
}

/// out = sum over the nodes, in node order.
void Reduce::sum_partials(const Launch& launch, std::int64_t tile, float* out) const {
  float part[kStrip];
  const std::int64_t elements = plan_.grid(rank_).tile(tile).elements();
  for (std::int64_t begin = 0; begin < elements; begin += kStrip) {
    const std::int64_t count = std::min(kStrip, elements - begin);
    for (std::uint32_t node = 0; node < topology_.nodes(); ++node) {
      const std::byte* in = workspace_.mine + plan_.partial_offset(launch.epoch, node) +
                            plan_.tile_offset({rank_, tile}) +
                            static_cast<std::uint64_t>(begin) * plan_.partial_bytes();
      load_partial(in, part, count);
      for (std::int64_t i = 0; i < count; ++i) {
        out[begin + i] = node == 0 ? part[i] : out[begin + i] + part[i];
      }
    }
  }
}

Status Reduce::sum_world(const Launch& launch, const OnTile& on_tile, const OnChunk& on_chunk) {
  const auto sum = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(plan_.tile_elements()));
  const ChunkSplit split = plan_.chunks(rank_);
  for (std::int64_t chunk = 0; chunk < split.chunks(); ++chunk) {
    MK_RETURN_IF_ERROR(wait_partials(launch, chunk));
    for (std::int64_t tile = split.chunk(chunk).begin; tile < split.chunk(chunk).end; ++tile) {
      sum_partials(launch, tile, sum.get());
      on_tile(tile, sum.get());
    }
    MK_RETURN_IF_ERROR(on_chunk(chunk));
  }
  for (std::uint32_t step = 1; step < topology_.nodes(); ++step) {
    const std::uint32_t peer = topology_.rail_peer(rank_, (node_ + step) % topology_.nodes());
    MK_RETURN_IF_ERROR(endpoint_.signal(peer, lane_ + 1, "inter_reduce", launch.scope));
  }
  return {};
}

}  // namespace mkernel::kernels
