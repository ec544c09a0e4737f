// The gradients of own keys and values: what all ranks have computed of them, added up in the order of ranks
// by whichever warps have time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/lent_workspace.h"
#include "kernels/cuda/comm/endpoint.cuh"
#include "kernels/cuda/ptx/vector.cuh"
#include "kernels/cuda/reduce/sum_piece.cuh"
#include "kernels/cuda/sync/wait.cuh"
#include "kernels/ops/ring_attention/backward/parameters.h"

namespace mkernel::kernels {

/// 64 keys of one head, and 64 columns of one tensor.
struct KeySumPiece {
  RingBackwardTasks::Place place;  ///< the task that computes these keys
  std::int32_t row;                ///< the first one, in its part
  std::int32_t rows;               ///< none behind the last tile of a part
  std::int32_t unit;               ///< KeyPartialsPlan's
  std::int32_t tensor, box;

  /// Where it lies in its unit.
  __device__ __forceinline__ std::int32_t inside(const KeyPartialsPlan& partials) const {
    return (tensor * partials.boxes + box) * KeyPartialsPlan::kBoxBytes;
  }
};

/// Those of all own keys.
__device__ __forceinline__ std::int32_t key_sum_pieces(const RingBackwardParameters& p) {
  constexpr std::int32_t kGroups = kBackwardTileKeys / KeyPartialsPlan::kRows;
  return p.tasks.own_tasks() * kGroups * KeyPartialsPlan::kTensors * p.partials.boxes;
}

/// In the order in which all ranks compute tiles of keys of another one.
__device__ __forceinline__ KeySumPiece key_sum_piece(const RingBackwardParameters& p, std::int32_t index) {
  constexpr std::int32_t kGroups = kBackwardTileKeys / KeyPartialsPlan::kRows;
  const KvGatherPlan& gather = p.gather;
  const std::int32_t boxes = p.partials.boxes, of_unit = KeyPartialsPlan::kTensors * boxes;
  KeySumPiece piece;
  piece.place = p.tasks.place(gather, index / of_unit / kGroups);
  piece.row = piece.place.tile * kBackwardTileKeys + index / of_unit % kGroups * KeyPartialsPlan::kRows;
  piece.rows = min(gather.part_rows[gather.rank][piece.place.part] - piece.row, KeyPartialsPlan::kRows);
  piece.unit = KeyPartialsPlan::unit(gather, gather.rank, piece.place.part, piece.place.head, piece.row);
  piece.tensor = index % of_unit / boxes;
  piece.box = index % boxes;
  return piece;
}

__device__ __forceinline__ bool has_partial(const RingBackwardParameters& p, std::int32_t writer,
                                            const KeySumPiece& piece) {
  return RingBackwardTasks::is_seen(p.gather, writer, p.gather.rank, piece.place.part);
}

/// Whole warp: each lane has acquired what it waited for; the barrier hands that on to the others.
__device__ __forceinline__ bool all_have_come(bool mine) {
  __syncwarp();
  return __all_sync(~0U, mine);
}

/// Whole warp: until what every rank has of the piece lies in its slot here. False when it gave up.
__device__ __forceinline__ bool wait_key_partials(const RingBackwardParameters& p, const KeySumPiece& piece) {
  const std::uint64_t count = KeyPartialsPlan::count(p.endpoint.control->epoch);
  bool mine = true;
  for (auto writer = static_cast<std::int32_t>(threadIdx.x % 32); writer < p.gather.world; writer += 32) {
    if (!has_partial(p, writer, piece)) continue;
    const std::byte* word = p.words[p.local_rank] + p.partials.word_offset(writer, piece.unit);
    // The writer's waits for keys come before.
    mine &= wait_at_least(
        reinterpret_cast<const std::uint64_t*>(word), count,
        {DeviceRole::kCompute, DeviceTag::kTileReady, writer, static_cast<std::uint32_t>(piece.unit)},
        at_stage(wait_scope(p.endpoint), 1));
  }
  return all_have_come(mine);
}

/// Whole warp: adds up 64 rows of 128 bytes. A lane takes 16 bytes of several places at a time, of several
/// parts at once, so that many loads are in flight. Of `parts.count` parts those that parts.has(w) have byte
/// `inside` of the piece at parts.at(w, inside). `store(row, place, sums)`: 16 bytes of a row, which has
/// eight such places.
template <class Config, class Parts, class Store>
__device__ __forceinline__ void add_key_parts(const Parts& parts, const Store& store) {
  constexpr int kPlaces = 4, kParts = 4, kLaneBytes = 16;
  constexpr int kRowsAtOnce = 32 * kLaneBytes / 128;  // of a place
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
#pragma unroll 1
  for (int round = 0; round < KeyPartialsPlan::kRows; round += kPlaces * kRowsAtOnce) {
    float sum[kPlaces][8] = {};
    const int first = round * 128 + lane * kLaneBytes;
    for (std::int32_t w = 0; w < parts.count; w += kParts) {
      uint4 summand[kParts][kPlaces];
#pragma unroll
      for (int j = 0; j < kParts; ++j) {
        const bool there = w + j < parts.count && parts.has(w + j);
#pragma unroll
        for (int i = 0; i < kPlaces; ++i) {
          summand[j][i] = {};
          if (there) summand[j][i] = ptx::ld_once_v4(parts.at(w + j, first) + i * 32 * kLaneBytes);
        }
      }
#pragma unroll
      for (int j = 0; j < kParts; ++j) {
#pragma unroll
        for (int i = 0; i < kPlaces; ++i) add_piece<Config::kInput>(sum[i], summand[j][i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) store(round + i * kRowsAtOnce + lane / 8, lane % 8, sum[i]);
  }
}

/// Where a piece lies in the first slot of its unit, in the half of this launch.
__device__ __forceinline__ const std::byte* key_slots(const RingBackwardParameters& p,
                                                      const KeySumPiece& piece) {
  return p.lent[p.local_rank] + lent_half_at(p.endpoint.lent->launches, p.half_bytes) +
         p.partials.slot_offset(0, piece.unit) + piece.inside(p.partials);
}

/// Whole warp: the sums of a piece of own keys into the gradients.
template <class Config, class Parts>
__device__ __forceinline__ void add_own_key_parts(const RingBackwardParameters& p, const KeySumPiece& piece,
                                                  const Parts& parts) {
  const KvGatherPlan& gather = p.gather;
  const std::int32_t batch = piece.place.head / gather.kv_heads, kv_head = piece.place.head % gather.kv_heads;
  const std::int32_t first = batch * gather.positions(gather.rank) + piece.row +
                             (piece.place.part == 0 ? 0 : gather.part_rows[gather.rank][0]);
  const std::int64_t pitch = std::int64_t{gather.kv_heads} * gather.row_bytes;
  std::byte* const to = p.d_rows[piece.tensor] + first * pitch + kv_head * gather.row_bytes + piece.box * 128;
  add_key_parts<Config>(parts, [&](int row, int place, const float(&sums)[8]) {
    const int column = (place ^ row % 8) * 16;  // as the copy engine swizzles rows of 128 bytes
    if (row < piece.rows) ptx::st_v4(to + row * pitch + column, round_piece<Config::kInput>(sums));
  });
}

/// Whole warp: what all ranks have of the piece.
template <class Config>
__device__ __forceinline__ void add_key_partials(const RingBackwardParameters& p, const KeySumPiece& piece) {
  struct {
    const RingBackwardParameters& p;
    const KeySumPiece& piece;
    const std::byte* slots;
    std::uint64_t slot_bytes;
    std::int32_t count;

    __device__ __forceinline__ bool has(std::int32_t writer) const { return has_partial(p, writer, piece); }
    __device__ __forceinline__ const std::byte* at(std::int32_t writer, int inside) const {
      return slots + inside + writer * slot_bytes;
    }
  } const parts{p, piece, key_slots(p, piece), p.partials.max_units * p.partials.unit_bytes(),
                p.gather.world};
  add_own_key_parts<Config>(p, piece, parts);
}

/// Whole warp: piece number `index`.
template <class Config>
__device__ __forceinline__ void sum_keys(const RingBackwardParameters& p, std::int32_t index) {
  const KeySumPiece piece = key_sum_piece(p, index);
  if (piece.rows > 0 && wait_key_partials(p, piece)) add_key_partials<Config>(p, piece);
}

}  // namespace mkernel::kernels
