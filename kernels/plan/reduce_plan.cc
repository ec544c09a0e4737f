#include "kernels/plan/reduce_plan.h"

#include <algorithm>

#include "proto/abi/region_map.h"

namespace mkernel::kernels {

ReducePlan::ReducePlan(const Topology& topology, std::int64_t m, std::int64_t n, const ReduceOptions& options,
                       std::uint64_t base)
    : topology_(topology), base_(base) {
  const std::int64_t largest_block = ceil_div(m, topology.world());
  const std::int64_t tile_rows = std::min(options.tile_rows, largest_block);
  const std::int64_t tile_columns = std::min(options.tile_columns, n);
  for (std::uint32_t owner = 0; owner < topology.world(); ++owner) {
    grids_.push_back({block_range(m, topology.world(), owner).size(), n, tile_rows, tile_columns});
  }
  tile_elements_ = tile_rows * tile_columns;
  partial_ = topology.nodes() == 1 ? Partial::kFloat : options.partial;
  const auto tile_bytes = tile_elements_ * static_cast<std::int64_t>(partial_bytes());
  tiles_per_chunk_ = std::max<std::int64_t>(1, options.chunk_bytes / tile_bytes);
  std::int64_t longest = 1;
  for (std::uint32_t rank = 0; rank < topology.world(); ++rank) {
    longest = std::max(longest, stream_length(rank));
  }
  const std::uint64_t ranks = topology.ranks_per_node();
  const auto share = std::max<std::int64_t>(2, kReducerSlots / static_cast<std::int64_t>(ranks));
  window_ = std::min(options.window > 0 ? options.window : share, longest);

  slot_bytes_ = abi::align64(static_cast<std::uint64_t>(tile_elements_) * sizeof(float));
  block_bytes_ = abi::align64(static_cast<std::uint64_t>(largest_block * n) * partial_bytes());
  consumed_ = base_ + ranks * static_cast<std::uint64_t>(window_) * sizeof(SignalWord);
  slots_ = abi::align64(consumed_ + ranks * sizeof(SignalWord));
  staged_ = slots_ + ranks * static_cast<std::uint64_t>(window_) * slot_bytes_;
  partials_ = staged_ + topology.nodes() * block_bytes_;
}

ChunkSplit ReducePlan::chunks(std::uint32_t owner) const {
  return {grids_[owner].tiles(), tiles_per_chunk_};
}

std::vector<OwnedTile> ReducePlan::compute_order(std::uint32_t rank) const {
  const std::uint32_t ranks = topology_.ranks_per_node();
  std::vector<OwnedTile> order;
  for (std::uint32_t step = 0; step < topology_.nodes(); ++step) {
    const std::uint32_t node = owner_node(topology_.node_of(rank), step);
    std::int64_t most = 0;
    for (std::uint32_t local = 0; local < ranks; ++local) {
      most = std::max(most, grids_[topology_.rank_at(node, local)].tiles());
    }
    for (std::int64_t tile = 0; tile < most; ++tile) {
      for (std::uint32_t turn = 1; turn <= ranks; ++turn) {
        const std::uint32_t owner = topology_.rank_at(node, (topology_.local_of(rank) + turn) % ranks);
        if (tile < grids_[owner].tiles()) order.push_back({owner, tile});
      }
    }
  }
  return order;
}

std::vector<OwnedTile> ReducePlan::stream(std::uint32_t rank) const {
  std::vector<OwnedTile> order;
  for (std::uint32_t step = 0; step < topology_.nodes(); ++step) {
    const std::uint32_t owner = topology_.rail_peer(rank, owner_node(topology_.node_of(rank), step));
    for (std::int64_t tile = 0; tile < grids_[owner].tiles(); ++tile) order.push_back({owner, tile});
  }
  return order;
}

std::int64_t ReducePlan::stream_length(std::uint32_t rank) const {
  std::int64_t length = 0;
  for (std::uint32_t node = 0; node < topology_.nodes(); ++node) {
    length += grids_[topology_.rail_peer(rank, node)].tiles();
  }
  return length;
}

std::int64_t ReducePlan::position(std::uint32_t node, OwnedTile tile) const {
  std::int64_t before = 0;
  for (std::uint32_t step = 0;; ++step) {
    const std::uint32_t owner = topology_.rail_peer(tile.owner, owner_node(node, step));
    if (owner == tile.owner) return before + tile.tile;
    before += grids_[owner].tiles();
  }
}

std::uint64_t ReducePlan::slot_ready_offset(std::uint32_t source_local, std::uint64_t position) const {
  const auto window = static_cast<std::uint64_t>(window_);
  return base_ + (source_local * window + position % window) * sizeof(SignalWord);
}

std::uint64_t ReducePlan::consumed_offset(std::uint32_t reducer_local) const {
  return consumed_ + reducer_local * sizeof(SignalWord);
}

std::uint64_t ReducePlan::slot_offset(std::uint32_t source_local, std::uint64_t position) const {
  const auto window = static_cast<std::uint64_t>(window_);
  return slots_ + (source_local * window + position % window) * slot_bytes_;
}

std::uint64_t ReducePlan::tile_offset(OwnedTile tile) const {
  return static_cast<std::uint64_t>(grids_[tile.owner].packed_offset(tile.tile)) * partial_bytes();
}

}  // namespace mkernel::kernels
