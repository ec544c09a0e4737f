// Plan of AG+GEMM: c[m, n] = allgather(a[m_rank, k]) x b[k, n].
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/plan/gather_plan.h"
#include "kernels/plan/tiles.h"
#include "kernels/plan/topology.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

struct AgGemmOptions {
  std::int64_t tile_rows = kTileRows;
  std::int64_t tile_columns = kTileColumns;
  std::int64_t chunk_bytes = kChunkBytes;
};

/// Pure; the same on every rank. A stream is a rank's rows of a; a chunk is whole rows; a tile of c needs
/// the rows of one source. Lane 0: rows to the rail peers.
class AgGemmPlan {
 public:
  static constexpr std::uint32_t kLanes = 1;

  /// Errors: check_shape().
  static Result<AgGemmPlan> make(const GemmShape& shape, const Topology& topology,
                                 const AgGemmOptions& options = {});

  const GatherPlan& gather() const { return gather_; }
  std::uint64_t workspace_bytes() const { return gather_.end(); }

  /// Rows of a, and of c, that `source` contributes.
  Range rows(std::uint32_t source) const { return block_range(shape_.m, gather_.sources(), source); }
  /// Rows of chunk `index` of `source`, counted from its first row.
  Range chunk_rows(std::uint32_t source, std::uint64_t index) const;
  /// Tiles of c that need rows of `source`; rows counted from its first row.
  const TileGrid& grid(std::uint32_t source) const { return grids_[source]; }
  /// How many chunks of `source` tile `tile` needs; never fewer than the tile before it.
  std::uint64_t chunks_needed(std::uint32_t source, std::int64_t tile) const;

 private:
  AgGemmPlan(const GemmShape& shape, const Topology& topology, const AgGemmOptions& options);
  ChunkSplit split(std::uint32_t source) const { return {rows(source).size(), rows_per_chunk_}; }

  GemmShape shape_;
  std::int64_t rows_per_chunk_ = 1;
  std::vector<TileGrid> grids_;
  GatherPlan gather_;
};

}  // namespace mkernel::kernels
