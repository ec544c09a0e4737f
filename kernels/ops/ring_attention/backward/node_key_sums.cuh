// Over several nodes: the sums of what the ranks of a node have of the gradients of other nodes' keys and
// values, which are put to their owners; and the gradients of own keys and values, to which those come. The
// plan is plan/put_key_partials_plan.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/lent_workspace.h"
#include "kernels/cuda/comm/endpoint.cuh"
#include "kernels/cuda/ptx/fence.cuh"
#include "kernels/cuda/ptx/global.cuh"
#include "kernels/cuda/ptx/vector.cuh"
#include "kernels/cuda/sync/claim.cuh"
#include "kernels/cuda/sync/wait.cuh"
#include "kernels/ops/ring_attention/backward/key_sums.cuh"
#include "kernels/ops/ring_attention/backward/parameters.h"

namespace mkernel::kernels {

/// Sums wait for tasks, which wait for keys; puts wait for sums, and owners for puts. The later waits end
/// later.
enum KeySumStage : std::uint32_t { kAfterTasks = 2, kAfterNodeSums = 3 };
inline constexpr std::uint32_t kKeySumLane = 1;  ///< keys and values travel on lane 0

__device__ __forceinline__ std::int32_t pieces_of_unit(const RingBackwardNodesParameters& p) {
  return KeyPartialsPlan::kTensors * p.partials.boxes;
}
/// Of this node's sums that this rank puts.
__device__ __forceinline__ std::int32_t put_pieces(const RingBackwardNodesParameters& p) {
  return p.gather.heads * p.all_put_units * pieces_of_unit(p);
}

/// 64 keys of one head of a rail peer, and 64 columns of one tensor.
struct PutPiece {
  std::int32_t distance;  ///< so many nodes behind this one is the owner's
  std::int32_t owner, part;
  std::int32_t unit;    ///< KeyPartialsPlan's
  std::int32_t packed;  ///< PutKeyPartialsPlan's
  std::int32_t inside;  ///< where it lies in its unit
};

/// Head after head, the order in which tasks make them and in which they are put.
__device__ __forceinline__ PutPiece put_piece(const RingBackwardNodesParameters& p, std::int32_t index) {
  const std::int32_t of_unit = pieces_of_unit(p), number = index / of_unit;
  const std::int32_t head = number / p.all_put_units;
  std::int32_t in_head = number % p.all_put_units;
  PutPiece piece;
  piece.distance = 1;
  for (; in_head >= p.put_units[piece.distance - 1]; ++piece.distance)
    in_head -= p.put_units[piece.distance - 1];
  const std::int32_t head_units = p.put_units[piece.distance - 1];
  piece.owner = p.rail[piece.distance - 1];
  const std::int32_t key_unit = head_units - 1 - in_head;
  piece.part = key_unit < KeyPartialsPlan::units_of(p.gather, piece.owner, 0) ? 0 : 1;
  piece.unit = head * KeyPartialsPlan::units_of(p.gather, piece.owner) + key_unit;
  piece.packed = PutKeyPartialsPlan::packed(head, key_unit, head_units);
  piece.inside = index % of_unit * KeyPartialsPlan::kBoxBytes;
  return piece;
}

/// Whether the rank of this node with that local rank has a part of the gradients of these keys.
__device__ __forceinline__ bool node_has_partial(const RingBackwardNodesParameters& p, std::int32_t local,
                                                 std::int32_t owner, std::int32_t part) {
  return RingBackwardTasks::is_seen(p.gather, p.rank_of_local[local], owner, part);
}

/// One lane: until the part of a writer of this node has come into its slot.
__device__ __forceinline__ bool wait_key_slot(const RingBackwardNodesParameters& p, std::int32_t distance,
                                              std::int32_t local, std::int32_t unit) {
  const std::int32_t slot = distance * (p.gather.near + 1) + local;
  const std::byte* word = p.words[p.local_rank] + p.partials.word_offset(slot, unit);
  return wait_at_least(reinterpret_cast<const std::uint64_t*>(word),
                       KeyPartialsPlan::count(p.endpoint.control->epoch),
                       {DeviceRole::kInterReduce, DeviceTag::kTileReady, p.rank_of_local[local],
                        static_cast<std::uint32_t>(unit)},
                       at_stage(wait_scope(p.endpoint), kAfterTasks));
}
/// One lane: until the sum of the node so many nodes behind this one has come, in which the unit has that
/// number.
__device__ __forceinline__ bool wait_key_put(const RingBackwardNodesParameters& p, std::int32_t distance,
                                             std::int32_t packed) {
  const std::int32_t units = p.gather.heads * p.come_units[distance - 1];
  const auto source = static_cast<std::uint32_t>(p.rail[distance - 1]);
  const std::uint64_t* seen = p.endpoint.counts.seen + p.endpoint.counts.arrivals_index(source, kKeySumLane);
  return wait_at_least(seen, p.puts.count(p.endpoint.control->epoch, packed / p.puts.chunk_units, units),
                       site_of(DeviceRole::kInterReduce, DeviceTag::kArrivals, source, kKeySumLane),
                       at_stage(wait_scope(p.endpoint), kAfterNodeSums));
}

/// Where this launch's half of the lent workspace begins here.
__device__ __forceinline__ std::byte* half_here(const RingBackwardNodesParameters& p) {
  return p.lent[p.local_rank] + lent_half_at(p.endpoint.lent->launches, p.half_bytes);
}

/// What the ranks of this node have of a piece of the rail peer's keys.
struct NodeKeyParts {
  const RingBackwardNodesParameters& p;
  std::int32_t owner, part;
  const std::byte* slots;  ///< that of the first rank
  std::uint64_t slot_bytes;
  std::int32_t count;

  __device__ __forceinline__ bool has(std::int32_t local) const {
    return node_has_partial(p, local, owner, part);
  }
  __device__ __forceinline__ const std::byte* at(std::int32_t local, int inside) const {
    return slots + inside + local * slot_bytes;
  }
};

/// Whole warp: adds up pieces that are put, each when the ranks of the node have all computed it, until no
/// more are left. A piece is counted for inter_send when the next one is taken: a release waits for the
/// stores before it, which are out by then.
template <class Config>
__device__ __forceinline__ void sum_put_keys(const RingBackwardNodesParameters& p) {
  const std::uint64_t epoch = p.endpoint.control->epoch;  // advanced only when every CTA has ended
  const std::int32_t writers = p.gather.near + 1, pieces = put_pieces(p);
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
  std::uint64_t* made = nullptr;
  const auto count_made = [&] {
    __syncwarp();  // puts the stores of all lanes before the release
    if (made != nullptr && lane == 0) ptx::red_add_release_gpu(made, 1ULL);
    made = nullptr;
  };
  for (;;) {
    const std::uint64_t claimed = claim_unit(&p.next_put[epoch & 1]);
    if (claimed >= static_cast<std::uint64_t>(pieces)) break;
    const PutPiece piece = put_piece(p, static_cast<std::int32_t>(claimed));
    count_made();
    bool mine = true;
    if (lane < writers && node_has_partial(p, lane, piece.owner, piece.part))
      mine = wait_key_slot(p, piece.distance, lane, piece.unit);
    if (!all_have_come(mine)) break;
    std::byte* const half = half_here(p);
    const std::byte* const slots =
        half + p.partials.slot_offset(piece.distance * writers, piece.unit) + piece.inside;
    const NodeKeyParts parts{
        p, piece.owner, piece.part, slots, p.partials.max_units * p.partials.unit_bytes(), writers};
    std::byte* const to = half + p.puts.staged_offset(piece.distance, piece.packed) + piece.inside;
    add_key_parts<Config>(parts, [&](int row, int place, const float(&sums)[8]) {
      ptx::st_v4(to + row * 128 + place * 16, round_piece<Config::kInput>(sums));
    });
    made = p.staged + (piece.distance - 1) * p.chunks + piece.packed / p.puts.chunk_units;
  }
  count_made();
}

/// One chunk of a rail peer's, when it is staged. One thread. False when it gave up.
__device__ __forceinline__ bool put_key_chunk(const RingBackwardNodesParameters& p, std::uint64_t epoch,
                                              std::int32_t distance, std::int32_t chunk) {
  const PutKeyPartialsPlan& puts = p.puts;
  const std::int32_t units = p.gather.heads * p.put_units[distance - 1];
  const std::int32_t begin = puts.chunk_begin(chunk, units);
  const std::int32_t count = puts.chunk_begin(chunk + 1, units) - begin;
  const std::uint64_t* made = p.staged + (distance - 1) * p.chunks + chunk;
  if (!wait_at_least(
          made, (epoch + 1) * static_cast<std::uint64_t>(count * pieces_of_unit(p)),
          {DeviceRole::kInterSend, DeviceTag::kChunkReady, p.gather.rank, static_cast<std::uint32_t>(chunk)},
          at_stage(wait_scope(p.endpoint), kAfterNodeSums))) {
    return false;
  }
  // Carries what was released at gpu scope on to whoever reads the ring.
  const ptx::SysReleased released = ptx::fence_acq_rel_sys();
  const std::uint64_t half = lent_half_at(p.endpoint.lent->launches, p.half_bytes);
  return put(p.endpoint, p.rail[distance - 1], kKeySumLane,
             {p.region, half + puts.staged_offset(distance, begin)},
             {p.region, half + puts.partial_offset(puts.nodes - distance, begin)},
             static_cast<std::uint64_t>(count) * puts.unit_bytes, DeviceRole::kInterSend, released);
}

/// inter_send: the sums of this node to their owners, as they are made: of every peer the chunks that are
/// whole with a head. One thread. Ends when the sources of the puts may be overwritten, as put_own_kv() does.
__device__ __forceinline__ void put_key_sums(const RingBackwardNodesParameters& p, std::uint64_t epoch) {
  for (std::int32_t head = 0; head < p.gather.heads; ++head) {
    for (std::int32_t distance = 1; distance <= p.rails; ++distance) {
      const std::int32_t of_head = p.put_units[distance - 1], units = p.gather.heads * of_head;
      const std::int32_t end = p.puts.chunks_whole((head + 1) * of_head, units);
      for (std::int32_t chunk = p.puts.chunks_whole(head * of_head, units); chunk < end; ++chunk)
        if (!put_key_chunk(p, epoch, distance, chunk)) return;
    }
  }
  for (std::int32_t distance = 1; distance <= p.rails; ++distance) {
    const std::uint64_t chunks = p.puts.chunks(p.gather.heads * p.put_units[distance - 1]);
    const auto to = static_cast<std::uint32_t>(p.rail[distance - 1]);
    if (!wait_completed(p.endpoint, to, kKeySumLane, (epoch + 1) * chunks, DeviceRole::kInterSend)) return;
  }
}

/// Of a piece of own keys: first what the ranks of this node have, then the sums of other nodes, from the
/// next one on.
struct OwnKeyParts {
  const RingBackwardNodesParameters& p;
  std::int32_t head, key_unit, part;  ///< `key_unit`: of the head
  const std::byte* slots;             ///< that of the first rank
  std::uint64_t slot_bytes;
  const std::byte* half;
  std::int32_t inside_unit;
  std::int32_t count;

  __device__ __forceinline__ std::int32_t writers() const { return p.gather.near + 1; }
  /// The number of the unit in the sum of the node so many nodes behind this one; negative: it is not there.
  __device__ __forceinline__ std::int32_t packed(std::int32_t distance) const {
    const std::int32_t head_units = p.come_units[distance - 1];
    return key_unit < head_units ? PutKeyPartialsPlan::packed(head, key_unit, head_units) : -1;
  }
  __device__ __forceinline__ bool has(std::int32_t w) const {
    return w < writers() ? node_has_partial(p, w, p.gather.rank, part) : packed(w - writers() + 1) >= 0;
  }
  __device__ __forceinline__ const std::byte* at(std::int32_t w, int inside) const {
    if (w < writers()) return slots + inside + w * slot_bytes;
    const std::int32_t distance = w - writers() + 1;
    return half + p.puts.partial_offset(distance, packed(distance)) + inside_unit + inside;
  }
  /// One lane: until part number `w` has come.
  __device__ __forceinline__ bool wait(std::int32_t w, std::int32_t unit) const {
    if (w < writers()) return wait_key_slot(p, 0, w, unit);
    const std::int32_t distance = w - writers() + 1;
    return wait_key_put(p, distance, packed(distance));
  }
};

/// Whole warp: piece number `index` of own keys.
template <class Config>
__device__ __forceinline__ void sum_own_keys(const RingBackwardNodesParameters& p, std::int32_t index) {
  const KvGatherPlan& gather = p.gather;
  const KeySumPiece piece = key_sum_piece(p, index);
  if (piece.rows <= 0) return;
  const std::int32_t key_unit =
      piece.unit - piece.place.head * KeyPartialsPlan::units_of(gather, gather.rank);
  const OwnKeyParts parts{p,
                          piece.place.head,
                          key_unit,
                          piece.place.part,
                          key_slots(p, piece),
                          p.partials.max_units * p.partials.unit_bytes(),
                          half_here(p),
                          piece.inside(p.partials),
                          gather.near + 1 + p.rails};
  static_assert(kMaxNodeRanks + kMaxKernelNodes - 1 <= 32, "a lane waits for one part");
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
  const bool waits = lane < parts.count && parts.has(lane);
  if (all_have_come(!waits || parts.wait(lane, piece.unit))) add_own_key_parts<Config>(p, piece, parts);
}

}  // namespace mkernel::kernels
