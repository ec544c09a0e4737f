// The queries of a rank in a backward pass, and their gradients: what kernels keep in global memory.
#pragma once

#include <cstdint>

#include "kernels/base/divisor.h"
#include "kernels/base/types.h"
#include "kernels/cuda/attention/sm90_backward_rows.h"
#include "kernels/cuda/memory/tensor_map.h"
#include "proto/abi/host_device.h"

namespace mkernel::kernels {

/// Memory of this rank alone, by parity of the epoch: a launch uses one, and zeroes the other for the next
/// launch.
struct AttentionBackwardCounters {
  std::uint64_t next_task[2] = {};
  std::uint64_t next_unit[2] = {};  ///< of the work that is left when there are no more tasks
};

/// The queries of a rank, cut into tiles: first those of one part, then those of another one, which may be
/// empty. Heads are those of all sequences.
struct AttentionBackwardQueries {
  TensorMap row_map;  ///< of `rows`, backward_rows_view(); of no queries there is none
  AttentionBackwardCounters* counters;
  std::uint64_t* prepared;      ///< [heads]: tiles whose rows are known; over all launches
  std::uint64_t* added;         ///< [heads][tiles of queries][units]: adds of a launch, added_word()
  AttentionBackwardRows* rows;  ///< [heads][tiles of queries]
  float* sums;                  ///< [heads][tiles of queries][units], in the order of registers
  const void* out;              ///< [batch, queries, heads, head_dim]
  const void* d_out_rows;       ///< as out; what the map is of
  const float* lse;             ///< [batch, heads, queries]
  void* d_q;                    ///< as out
  float scale;                  ///< of the scores
  float scale_log2;             ///< times log2(e)
  std::int32_t queries;         ///< of a sequence
  std::int32_t first_queries;   ///< of these, those of the first part
  std::int32_t first_tiles;     ///< of the first part
  std::int32_t all_heads;       ///< of the queries of all sequences
  std::int32_t row_bytes;       ///< of all heads of a position
  Divisor heads;                ///< of the queries
  Divisor query_tiles;          ///< of a head
  std::int32_t group;           ///< heads of queries that share keys and values
  /// CTAs that prepare rows. NOTES: ptxas (13.0) keeps a size that it reads from the grid in a register for
  /// the whole kernel, and spills it.
  std::int32_t preparing;

  /// After so many adds of a launch; it only grows.
  static MK_HOST_DEVICE std::uint64_t added_word(std::uint64_t epoch, std::int32_t adds) {
    return (epoch << 24) + static_cast<std::uint64_t>(adds);  // of less than 2^31 keys, in tiles of 128
  }

  struct Rows {
    std::int32_t begin, end;
  };
  MK_HOST_DEVICE Rows rows_of_tile(std::int32_t tile) const {
    const bool second = tile >= first_tiles;
    const std::int32_t end = second ? queries : first_queries;
    const std::int32_t begin =
        second ? first_queries + (tile - first_tiles) * kBackwardTileQueries : tile * kBackwardTileQueries;
    return {begin, end - begin < kBackwardTileQueries ? end : begin + kBackwardTileQueries};
  }
};

/// Queries of a sequence, by part.
struct AttentionBackwardParts {
  std::int64_t queries[2];

  std::int64_t tiles(int part) const {
    return (queries[part] + kBackwardTileQueries - 1) / kBackwardTileQueries;
  }
};

/// Where what a launch keeps in global memory lies behind the counters.
struct AttentionBackwardScratch {
  std::int64_t prepared, added, rows, sums;  ///< offsets of the arrays above
  std::int64_t bytes;                        ///< of all
};
AttentionBackwardScratch attention_backward_scratch(const AttentionShape& shape,
                                                    const AttentionBackwardParts& parts);
/// All that is the same in every launch. `memory`: attention_backward_scratch() of it, zeroed once.
void describe_backward_queries(const AttentionShape& shape, const AttentionBackwardParts& parts, void* memory,
                               AttentionBackwardQueries& described);
/// What row_map is of, a tile of queries in a row, without swizzle.
MatrixView backward_rows_view(const AttentionBackwardQueries& described);

}  // namespace mkernel::kernels
