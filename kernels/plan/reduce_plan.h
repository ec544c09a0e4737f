// Plan of the two-level reduce-scatter: every rank has a partial product [m, n]; rank d gets the sum of rows
// block_range(m, world, d).
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/signal.h"
#include "kernels/base/types.h"
#include "kernels/plan/tiles.h"
#include "kernels/plan/topology.h"

namespace mkernel::kernels {

/// How a node's partial sum travels to the owner.
enum class Partial : std::uint32_t {
  kIoType,  ///< rounded to the operation's type: half the bytes on the wire
  kFloat,   ///< fp32
};

/// Slots of a reducer, shared by the ranks of its node: as many tiles can be computed at a time.
inline constexpr std::int64_t kReducerSlots = 32;

struct ReduceOptions {
  Partial partial = Partial::kIoType;
  std::int64_t tile_rows = kTileRows;
  std::int64_t tile_columns = kTileColumns;
  std::int64_t chunk_bytes = kChunkBytes;
  std::int64_t window = 0;  ///< slots per source at the node's reducer, 0 = its share of kReducerSlots
};

/// Tile `tile` of the rows that `owner` gets.
struct OwnedTile {
  std::uint32_t owner = 0;
  std::int64_t tile = 0;
  friend bool operator==(const OwnedTile&, const OwnedTile&) = default;
};

/// Pure; the same on every rank. The reducer of an owner on some node is the rank of that node with the
/// owner's local index. Its part of the symmetric workspace, on every rank:
///   slot_ready[source local][slot]  SignalWord: 1 + the last stream position written to that slot
///   consumed[reducer local]         SignalWord: stream positions that reducer has summed
///   slot[source local][slot]        one fp32 tile from a rank of this node
///   staged[node]                    node partial for the owner on `node`, packed tiles
///   partial[epoch parity][node]     the owner's: node partials, packed tiles
/// A reducer's stream is every tile that it reduces, over all launches; slot = position % window. The window
/// bounds the memory and keeps a fast rank from overwriting what the reducer still reads.
class ReducePlan {
 public:
  ReducePlan(const Topology& topology, std::int64_t m, std::int64_t n, const ReduceOptions& options,
             std::uint64_t base);

  const TileGrid& grid(std::uint32_t owner) const { return grids_[owner]; }
  const std::vector<TileGrid>& grids() const { return grids_; }
  /// Chunks of the owner's tiles, one put each; also the puts per launch of channel (reducer -> owner).
  ChunkSplit chunks(std::uint32_t owner) const;

  /// Order in which `rank` computes: tiles of the next node first, of its own node last; on each node one
  /// tile of every owner in turn, beginning with the neighbour's.
  std::vector<OwnedTile> compute_order(std::uint32_t rank) const;

  /// Order in which reducer `rank` reduces in one launch; compute_order() of every rank of the node goes
  /// through it in the same order, so a window of any size makes progress.
  std::vector<OwnedTile> stream(std::uint32_t rank) const;
  std::int64_t stream_length(std::uint32_t rank) const;
  /// Place of `tile` in the stream of the reducer on `node`.
  std::int64_t position(std::uint32_t node, OwnedTile tile) const;

  std::int64_t window() const { return window_; }
  /// fp32 when all ranks share a node: nothing travels, so nothing is rounded twice.
  Partial partial() const { return partial_; }
  std::uint64_t partial_bytes() const { return partial_ == Partial::kFloat ? sizeof(float) : 2; }
  /// Elements of the largest tile.
  std::int64_t tile_elements() const { return tile_elements_; }

  std::uint64_t slot_ready_offset(std::uint32_t source_local, std::uint64_t position) const;
  std::uint64_t consumed_offset(std::uint32_t reducer_local) const;
  std::uint64_t slot_offset(std::uint32_t source_local, std::uint64_t position) const;
  /// Of tile `tile.tile` within what a node sends to its owner; packed, so a chunk is contiguous.
  std::uint64_t tile_offset(OwnedTile tile) const;
  std::uint64_t staged_offset(std::uint32_t node) const { return staged_ + node * block_bytes_; }
  std::uint64_t partial_offset(std::uint64_t epoch, std::uint32_t node) const {
    return partials_ + ((epoch & 1) * topology_.nodes() + node) * block_bytes_;
  }
  /// End of the plan's part of the workspace.
  std::uint64_t end() const { return partials_ + 2 * topology_.nodes() * block_bytes_; }

 private:
  /// Owner nodes in the order in which a node sends to them: the next one first, itself last.
  std::uint32_t owner_node(std::uint32_t node, std::uint32_t step) const {
    return (node + 1 + step) % topology_.nodes();
  }

  Topology topology_;
  std::vector<TileGrid> grids_;  ///< by owner
  std::int64_t window_ = 1;
  Partial partial_ = Partial::kIoType;
  std::int64_t tiles_per_chunk_ = 1;
  std::int64_t tile_elements_ = 0;
  std::uint64_t base_ = 0, consumed_ = 0, slots_ = 0, staged_ = 0, partials_ = 0;
  std::uint64_t slot_bytes_ = 0;
  std::uint64_t block_bytes_ = 0;  ///< of the largest owner's packed tiles
};

}  // namespace mkernel::kernels
