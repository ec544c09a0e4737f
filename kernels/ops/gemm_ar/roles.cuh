// GEMM+AR on the cuda executor: what its CTAs do with the sums. See README.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/comm/paced_links.cuh"
#include "kernels/cuda/launch/rehearsal.cuh"
#include "kernels/cuda/ptx/fence.cuh"
#include "kernels/cuda/ptx/global.cuh"
#include "kernels/cuda/ptx/poll.cuh"
#include "kernels/cuda/ptx/vector.cuh"
#include "kernels/cuda/reduce/claims.cuh"
#include "kernels/cuda/reduce/marked_slots.cuh"
#include "kernels/cuda/reduce/sum_slots.cuh"
#include "kernels/cuda/reduce/tile_reduce.cuh"
#include "kernels/cuda/sync/trace.cuh"
#include "kernels/cuda/sync/wait.cuh"
#include "kernels/ops/gemm_ar/parameters.h"
#include "kernels/plan/push_sums_plan.h"

namespace mkernel::kernels {

/// The way of finished units to the other ranks of the node, one warp's. They are told of several at a time,
/// and late: the fence in front of the words waits for all stores before it, which meanwhile cross the links
/// under the loads of the next units.
class UnitFanOut {
 public:
  /// `warps` share the units. Of a short launch's few units each is told of soon: their copies are what it
  /// ends with. So is each over several nodes: wires wait for chunks, and a chunk for its last unit.
  __device__ __forceinline__ UnitFanOut(const GemmArParameters& p, std::uint32_t warps)
      : p_(p),
        half_(p.half_at()),
        most_untold_(p.units.others > 0
                         ? 1
                         : min(kMostUntold, max(1, p.units.units() / static_cast<std::int32_t>(warps)))) {}

  /// Where this launch's half of the lent workspaces begins.
  __device__ __forceinline__ std::uint64_t half() const { return half_; }
  /// To be flushed before the stores of another unit.
  __device__ __forceinline__ bool full() const { return untold_ == most_untold_; }
  /// One lane: 16 bytes of a unit of the owner that comes `beyond` ranks after this one, at byte `at` of the
  /// owner's units.
  __device__ __forceinline__ void store(std::int32_t beyond, std::uint64_t at, const uint4& sums) const {
    const std::int64_t there = static_cast<std::int64_t>(half_) +
                               beyond * static_cast<std::int64_t>(p_.sums_owner_bytes) +
                               static_cast<std::int64_t>(at);
    for (std::int32_t turn = 0; turn < p_.sources() - 1; ++turn)
      ptx::st_v4(p_.sums_there[turn] + there, sums);
  }
  /// Whole warp, after the stores of a unit.
  __device__ __forceinline__ void finish(std::int32_t beyond, std::int32_t unit) {
    if (lane() == untold_) word_ = beyond * p_.units.units() + unit;
    if (are_paced(p_.links) && lane() == kLinksLane)
      word_ = static_cast<std::int32_t>(book_links(p_.links, PushSumsPlan::kUnitBytes * (p_.sources() - 1)));
    ++untold_;
  }
  /// Whole warp: whether there was anything to tell. A lane for each rank; the barrier puts the stores of all
  /// lanes before the fence.
  __device__ __forceinline__ bool flush(std::uint64_t epoch) {
    if (untold_ == 0) return false;
    __syncwarp();
    if (are_paced(p_.links)) {
      if (lane() == kLinksLane) await_booked(static_cast<std::uint32_t>(word_));
      __syncwarp();
    }
    const ptx::SysReleased released = ptx::fence_acq_rel_sys();
    for (std::int32_t i = 0; i < untold_; ++i) {
      const std::int32_t word = __shfl_sync(~0U, word_, i);
      if (lane() < p_.sources() - 1)
        ptx::st_relaxed_sys(p_.summed_there[lane()] + word, PushSumsPlan::count(epoch), released);
    }
    __syncwarp();
    untold_ = 0;
    return true;
  }

 private:
  static constexpr std::int32_t kMostUntold = 8, kLinksLane = 31;
  static __device__ __forceinline__ std::int32_t lane() {
    return static_cast<std::int32_t>(threadIdx.x % 32);
  }

  const GemmArParameters& p_;
  const std::uint64_t half_;
  const std::int32_t most_untold_;
  std::int32_t untold_ = 0;
  /// Of the untold unit of this lane's number, from this owner's first; kLinksLane: what book_links() said of
  /// the last one.
  std::int32_t word_ = 0;
};

/// Sums go into this rank's rows of c and, out of the same registers, to every other rank of the node; over
/// several nodes also where they are put from.
template <bool kNodes>
struct GemmArOutput {
  const GemmArParameters& p;
  UnitFanOut node;
  std::int32_t chunk = 0;  ///< of the unit of which nobody was told yet

  __device__ __forceinline__ void begin(std::uint64_t epoch) {
    if (node.full()) flush(epoch);
  }
  __device__ __forceinline__ void store(std::uint64_t, const SumUnit& unit, std::uint32_t inside,
                                        std::uint64_t at, const uint4& sums) const {
    const std::uint64_t there = unit.packed * PushSumsPlan::kUnitBytes + inside;
    node.store(0, there, sums);
    if (kNodes && p.units.others > 0)
      ptx::st_v4(p.sums_here + node.half() + p.endpoint.rank * p.sums_owner_bytes + there, sums);
    ptx::st_v4(p.own_c + at, sums);
  }
  __device__ __forceinline__ void finish(const SumUnit& unit) {
    node.finish(0, unit.unit);
    if (kNodes && p.units.others > 0) chunk = unit.packed / p.wire.plan.chunk_units;
  }
  __device__ __forceinline__ void flush(std::uint64_t epoch) {
    if (!node.flush(epoch) || !kNodes || p.units.others == 0) return;
    if (threadIdx.x % 32 == 0) ptx::red_add_release_gpu(p.finished + chunk, 1);
  }
};

/// Marked sums, on one node: whoever copies them sees that they have come.
struct MarkedSumsOutput {
  const GemmArParameters& p;

  __device__ __forceinline__ void begin(std::uint64_t) const {}
  __device__ __forceinline__ void store(std::uint64_t, const SumUnit& unit, std::uint32_t inside,
                                        std::uint64_t at, const uint4& sums) const {
    const std::uint64_t there = unit.unit * PushSumsPlan::kUnitBytes + inside;
    for (std::int32_t turn = 0; turn < p.sources() - 1; ++turn)
      ptx::st_relaxed_sys_v4(p.sums_there[turn] + there, sums);
    ptx::st_v4(p.own_c + at, sums);
  }
  __device__ __forceinline__ void finish(const SumUnit&) const {}
  __device__ __forceinline__ void flush(std::uint64_t) const {}
};

/// inter_send, one thread: puts finished chunks of own rows to the rail peers.
__device__ __forceinline__ void put_sums(const GemmArParameters& p, std::uint64_t epoch) {
  const PutPartialsPlan& plan = p.wire.plan;
  const std::int32_t units = p.wire.packed_units[p.units.others];
  const std::uint64_t own = p.half_at() + p.sums_at + p.endpoint.rank * p.sums_owner_bytes;
  for (std::int32_t chunk = 0; chunk < plan.chunks(units); ++chunk) {
    const std::int32_t begin = plan.chunk_begin(chunk, units), end = plan.chunk_begin(chunk + 1, units);
    const auto [came, released] =
        wait_chunk(p, p.finished + chunk, (epoch + 1) * (end - begin), chunk, kAfterOwner);
    if (!came) return;
    const device::Place place{p.wire.region, own + begin * PushSumsPlan::kUnitBytes};
    for (std::int32_t turn = 0; turn < p.units.others; ++turn) {
      if (!put(p.endpoint, p.owner(p.reduced(turn)).rank, 1, place, place,
               (end - begin) * PushSumsPlan::kUnitBytes, DeviceRole::kInterSend, released)) {
        return;
      }
    }
  }
  for (std::int32_t turn = 0; turn < p.units.others; ++turn) {
    const std::uint64_t puts = (epoch + 1) * plan.chunks(units);
    if (!wait_completed(p.endpoint, p.owner(p.reduced(turn)).rank, 1, puts, DeviceRole::kInterSend)) return;
  }
}

/// Whole warp: a unit of `owner` from `sums`, this launch's finished sums here, to its place in c: eight
/// loads of 16 bytes in flight in every lane. `read`: as of sum_unit(), with the owner as the one source;
/// when it returns false, so does this. `and_to(at, piece)`: where else.
template <class Config, bool kNodes, class Read, class AndTo>
__device__ __forceinline__ bool copy_unit(const GemmArParameters& p, std::byte* sums,
                                          const OwnerOnDevice& owner, std::int32_t unit, const Read& read,
                                          const AndTo& and_to) {
  constexpr int kPieces = PushSumsPlan::kUnitBytes / (32 * 16);
  constexpr int kAcross = Config::kTileN / 8;  // lanes that a row of the unit takes
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
  const ReduceUnits::Place place = p.units.place(unit);
  const std::int32_t column = place.column * Config::kTileN + lane % kAcross * 8;
  const std::int32_t first_row = static_cast<std::int32_t>(place.row) + lane / kAcross;
  const std::int32_t packed = kNodes ? p.units.packed(unit, owner.rows) : unit;
  const std::uint64_t at = packed * PushSumsPlan::kUnitBytes + lane * 16;
  std::byte* from = sums + owner.rank * p.sums_owner_bytes + at;
  const auto inside = [&](int i) {
    return first_row + i * (32 / kAcross) < owner.rows && column < p.columns;
  };
  uint4 piece[1][kPieces];
  if (!read(
          piece, owner.rank, [&](int, int i) { return inside(i); },
          [&](int, int i) { return from + i * 32 * 16; })) {
    return false;
  }
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    if (!inside(i)) continue;
    const std::int64_t row = owner.first_row + first_row + i * (32 / kAcross);
    ptx::st_v4(p.c + (row * p.columns + column) * 2, piece[0][i]);
    and_to(at + i * 32 * 16, piece[0][i]);
  }
  return true;
}

/// Whole warp: one lane's wait, for all of them.
__device__ __forceinline__ bool wait_together(const std::uint64_t* word, std::uint64_t count,
                                              const DeviceWaitSite& site, const DeviceWaitScope& scope) {
  const bool here = threadIdx.x % 32 != 0 || wait_at_least(word, count, site, scope);
  __syncwarp();  // hands on what lane 0 has acquired
  return __all_sync(~0U, here);
}

/// inter_recv, whole warp: units of the rail peers as they arrive, into c and to the other ranks of the node,
/// until there are no more, or a wait gave up.
template <class Config>
__device__ __forceinline__ void forward_units(const GemmArParameters& p, std::uint32_t warps) {
  const std::uint64_t epoch = p.endpoint.control->epoch;
  const Divisor& others = p.units.others;
  const DeviceWaitScope scope = wait_scope(p, kAfterOwner);
  UnitFanOut node(p, warps);
  std::byte* sums = p.sums_here + node.half();
  if (threadIdx.x % 32 == 0) begin_work(p.endpoint.trace);
  const auto units = static_cast<std::uint32_t>(p.units.units() * others);
  share_units<Config>(p, p.forwarded, epoch, units, warps, {}, [&](std::uint32_t index) {
    const std::int32_t unit = static_cast<std::int32_t>(index) / others;
    const std::int32_t node_turn = static_cast<std::int32_t>(index) % others, turn = p.reduced(node_turn);
    const OwnerOnDevice owner = p.owner(turn);
    if (p.units.place(unit).row >= owner.rows) return true;
    const std::int32_t chunk = p.units.packed(unit, owner.rows) / p.wire.plan.chunk_units;
    const std::int32_t beyond = owner.rank - static_cast<std::int32_t>(p.endpoint.rank);
    const std::uint64_t* arrived = p.endpoint.counts.seen + p.endpoint.counts.arrivals_index(owner.rank, 1);
    const std::uint64_t count = p.wire.plan.count(epoch, p.wire.packed_units[node_turn], chunk);
    // One lane looks: the warp stays together.
    if (__shfl_sync(~0U, ptx::ld_acquire_gpu(arrived) < count, 0)) node.flush(epoch);
    if (!wait_together(arrived, count, {DeviceRole::kInterRecv, DeviceTag::kArrivals, owner.rank, 1}, scope))
      return false;
    node.flush(epoch);
    copy_unit<Config, true>(p, sums, owner, unit, ReadOnce{},
                            [&](std::uint64_t at, const uint4& piece) { node.store(beyond, at, piece); });
    node.finish(beyond, unit);
    return true;
  });
  node.flush(epoch);
  if (threadIdx.x % 32 == 0) end_work(p.endpoint.trace, DeviceWork::kCopy);
}

/// Whole warp: `copy(owner, unit)` for the units of the other owners but the rail peers, each owner's next
/// one in turn as they come, until there are no more, or it returns false: a wait gave up.
template <class Config, bool kNodes, class Copy>
__device__ __forceinline__ void share_copies(const GemmArParameters& p, std::uint64_t epoch,
                                             std::uint32_t warps, const Copy& copy) {
  const auto units = static_cast<std::uint32_t>(p.units.units());
  const std::uint32_t of_node = p.sources() - 1, owners = kNodes ? of_node * (p.units.others + 1) : of_node;
  if (threadIdx.x % 32 == 0) begin_work(p.endpoint.trace);
  share_units<Config>(p, p.copied, epoch, units * owners, warps, {.before = units}, [&](std::uint32_t index) {
    const auto unit = static_cast<std::int32_t>(index / owners);
    // Of every node's owners the last turn is the rail peer, or this rank.
    const auto turn = static_cast<std::int32_t>(index % owners + (kNodes ? index % owners / of_node : 0));
    const OwnerOnDevice owner = p.owner(turn);
    return p.units.place(unit).row >= owner.rows || copy(owner, unit);
  });
  if (threadIdx.x % 32 == 0) end_work(p.endpoint.trace, DeviceWork::kCopy);
}

/// Whole warp: copies of units that words signal.
template <class Config, bool kNodes>
__device__ __forceinline__ void copy_units(const GemmArParameters& p, std::uint32_t warps) {
  const std::uint64_t epoch = p.endpoint.control->epoch;
  const auto units = static_cast<std::uint32_t>(p.units.units());
  const DeviceWaitScope scope = wait_scope(p, kNodes ? kAfterForward : kAfterNode);
  std::byte* sums = p.sums_here + p.half_at();
  share_copies<Config, kNodes>(p, epoch, warps, [&](const OwnerOnDevice& owner, std::int32_t unit) {
    const DeviceWaitSite site{DeviceRole::kIntraComm, DeviceTag::kChunkReady, owner.rank,
                              static_cast<std::uint32_t>(unit)};
    return wait_together(p.summed + owner.rank * units + unit, PushSumsPlan::count(epoch), site, scope) &&
           copy_unit<Config, kNodes>(p, sums, owner, unit, ReadOnce{}, [](std::uint64_t, const uint4&) {});
  });
}

/// Whole warp: copies of marked units.
template <class Config>
__device__ __forceinline__ void copy_marked_units(const GemmArParameters& p, std::uint32_t warps) {
  const std::uint64_t epoch = p.endpoint.control->epoch;
  share_copies<Config, false>(p, epoch, warps, [&](const OwnerOnDevice& owner, std::int32_t unit) {
    const ReadMarked read{p, epoch, DeviceTag::kChunkReady, static_cast<std::uint32_t>(unit), kAfterNode};
    return copy_unit<Config, false>(p, p.sums_here, owner, unit, read, [](std::uint64_t, const uint4&) {});
  });
}

struct GemmArRoles {
  using Parameters = GemmArParameters;
  static constexpr int kSenders = 2;

  /// One warp of three begins with copies, which are less work than sums: nothing waits for them. Whom they
  /// wait for, sums of this node and forwards, waits for sums, tiles and other nodes only: with warps that
  /// begin with sums in every CTA, somebody always gets on.
  ///
  /// The code for several nodes does for one as well; one has a code of its own (1 to 3 % faster), but for
  /// the narrow tile, whose kernel would have no registers for both, and few rows, of which it sums little.
  template <class Config>
  static __device__ __forceinline__ void spare_warp(const Parameters& p, std::uint32_t warps) {
    if constexpr (Config::kTileN > 64 && !Config::kSharedTiles) {
      if (p.units.others == 0) return spare_warp<Config, false>(p, warps);
    }
    if constexpr (Config::kSharedTiles) {
      if (p.marked) return;  // sum_marked()
      if (p.marks_sums) return spare_warp_of_marked<Config>(p, warps);
    }
    spare_warp<Config, true>(p, warps);
  }
  /// Where slots are marked, so are sums.
  template <class Config>
  static __device__ __forceinline__ void sum_marked(const Parameters& p) {
    const std::uint32_t warps = multiplying_warps<Config>(p);
    sum_marked_units<Config>(p, warps, MarkedSumsOutput{p}, copies(p));
    copy_marked_units<Config>(p, warps);
  }
  static __device__ __forceinline__ void send(const Parameters& p, std::uint64_t epoch, int sender) {
    if (sender == 0) {
      put_partials(p, epoch);
    } else {
      put_sums(p, epoch);
    }
  }

 private:
  template <class Config, bool kNodes>
  static __device__ __forceinline__ void spare_warp(const Parameters& p, std::uint32_t warps) {
    const bool sums_first = threadIdx.x / 32 % 3 != 2;
#pragma unroll 1  // sums are most of the kernel: they are there once
    for (int turn = 0; turn < 2; ++turn) {
      if (sums_first == (turn == 0)) {
        sum_units<Config, kNodes>(p, warps, GemmArOutput<kNodes>{p, {p, warps}}, copies(p));
        continue;
      }
      if (kNodes && p.units.others > 0) forward_units<Config>(p, warps);
      copy_units<Config, kNodes>(p, warps);
    }
  }

  /// Where sums are marked, all warps begin with sums, and only those that have multiplied copy. Others would
  /// begin while the product still needs the memory, and read all the time.
  template <class Config>
  static __device__ __forceinline__ void spare_warp_of_marked(const Parameters& p, std::uint32_t warps) {
    sum_units<Config, false>(p, warps, MarkedSumsOutput{p}, copies(p));
    if (static_cast<std::int32_t>(blockIdx.x) < p.reduce_ctas) return;
    copy_marked_units<Config>(p, multiplying_warps<Config>(p));
  }

  static __device__ __forceinline__ OtherUnits copies(const Parameters& p) {
    return {.behind = static_cast<std::uint32_t>(p.units.units() * (p.sources() - 1))};
  }
};

template <class Config>
__global__ __launch_bounds__(Config::kThreads,
                             1) void gemm_ar_kernel(const __grid_constant__ GemmArParameters p) {
  extern __shared__ __align__(1024) std::byte memory[];
  if (!is_rehearsal(p.endpoint)) tile_reduce<Config, GemmArRoles>(p, memory);
}

}  // namespace mkernel::kernels
