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
#include "kernels/ops/ring_attention/ring_backward_parameters.h"

namespace mkernel::kernels {

/// 64 keys of one head, and 64 columns of one tensor.
struct KeySumPiece {
  RingBackwardTasks::Place place;  ///< of the task of own keys
  std::int32_t row;                ///< the first one, in its part
  std::int32_t rows;               ///< none behind the last tile of a part
  std::int32_t unit;               ///< KeyPartialsPlan's
  std::int32_t tensor, box;
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
  // Each lane has acquired what it waited for; the barrier hands that on to the others.
  __syncwarp();
  return __all_sync(~0U, mine);
}

/// Whole warp: the sums of a piece, rounded once, into the gradients. A lane takes 16 bytes of several places
/// at a time, of several ranks at once, so that many loads are in flight.
template <class Config>
__device__ __forceinline__ void add_key_partials(const RingBackwardParameters& p, const KeySumPiece& piece) {
  constexpr int kPlaces = 4, kWriters = 4, kLaneBytes = 16;
  constexpr int kRowsAtOnce = 32 * kLaneBytes / 128;  // of a place
  const KvGatherPlan& gather = p.gather;
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
  const std::uint64_t slot_bytes = p.partials.max_units * p.partials.unit_bytes();
  const std::byte* const slots = p.lent[p.local_rank] +
                                 lent_half_at(p.endpoint.lent->launches, p.half_bytes) +
                                 p.partials.slot_offset(0, piece.unit) +
                                 (piece.tensor * p.partials.boxes + piece.box) * KeyPartialsPlan::kBoxBytes;
  const std::int32_t batch = piece.place.head / gather.kv_heads, kv_head = piece.place.head % gather.kv_heads;
  const std::int32_t first = batch * gather.positions(gather.rank) + piece.row +
                             (piece.place.part == 0 ? 0 : gather.part_rows[gather.rank][0]);
  const std::int64_t pitch = std::int64_t{gather.kv_heads} * gather.row_bytes;
  std::byte* const to = p.d_rows[piece.tensor] + first * pitch + kv_head * gather.row_bytes + piece.box * 128;
#pragma unroll 1
  for (int round = 0; round < KeyPartialsPlan::kRows; round += kPlaces * kRowsAtOnce) {
    float sum[kPlaces][8] = {};
    const std::byte* const from = slots + round * 128 + lane * kLaneBytes;
    for (std::int32_t w = 0; w < gather.world; w += kWriters) {
      uint4 summand[kWriters][kPlaces];
#pragma unroll
      for (int j = 0; j < kWriters; ++j) {
        const bool there = w + j < gather.world && has_partial(p, w + j, piece);
#pragma unroll
        for (int i = 0; i < kPlaces; ++i) {
          summand[j][i] = {};
          if (there) summand[j][i] = ptx::ld_once_v4(from + (w + j) * slot_bytes + i * 32 * kLaneBytes);
        }
      }
#pragma unroll
      for (int j = 0; j < kWriters; ++j) {
#pragma unroll
        for (int i = 0; i < kPlaces; ++i) add_piece<Config::kInput>(sum[i], summand[j][i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) {
      const int row = round + i * kRowsAtOnce + lane / 8;
      const int column = (lane % 8 ^ row % 8) * kLaneBytes;  // as the copy engine swizzles rows of 128 bytes
      if (row < piece.rows) ptx::st_v4(to + row * pitch + column, round_piece<Config::kInput>(sum[i]));
    }
  }
}

/// Whole warp: piece number `index`.
template <class Config>
__device__ __forceinline__ void sum_keys(const RingBackwardParameters& p, std::int32_t index) {
  const KeySumPiece piece = key_sum_piece(p, index);
  if (piece.rows > 0 && wait_key_partials(p, piece)) add_key_partials<Config>(p, piece);
}

}  // namespace mkernel::kernels
