// The sums of a reducer, made by whichever warps have time. Each one claims a unit, waits until the tile that
// holds it has come from every source, and adds the sources up in rank order in fp32: who does it and when
// does not change a bit. Sums for owners on other nodes are rounded and staged to be put. To those of own
// rows come the partials of the other nodes, from the next one on. Where they go is for the operation to say:
//
//   struct Output {
//     // One lane: 16 bytes of a unit of own rows, at byte `inside` of
//     // the unit ([unit rows, tile columns]) and at byte `at` of the
//     // rank's rows of c.
//     void store(std::uint64_t epoch, const SumUnit& unit, std::uint32_t inside, std::uint64_t at,
//                const uint4& sums);
//     // Whole warp, after the stores of a unit.
//     void finish(const SumUnit& unit);
//     // Whole warp, before the stores of the next unit, perhaps more than once.
//     void begin(std::uint64_t epoch);
//     // Whole warp, once what was finished must be known: before it may wait for long, and at the end.
//     void flush(std::uint64_t epoch);
//   };
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/comm/endpoint.cuh"
#include "kernels/cuda/ptx/global.cuh"
#include "kernels/cuda/ptx/shared.cuh"
#include "kernels/cuda/ptx/vector.cuh"
#include "kernels/cuda/reduce/claims.cuh"
#include "kernels/cuda/reduce/sum_piece.cuh"
#include "kernels/cuda/reduce/tile_reduce_parameters.h"
#include "kernels/cuda/sync/trace.cuh"
#include "kernels/cuda/sync/wait.cuh"
#include "kernels/plan/push_reduce_plan.h"
#include "kernels/plan/put_partials_plan.h"

namespace mkernel::kernels {

/// One unit of a launch's sums. Below, kNodes may be false where there is but one: what the other nodes need
/// is then not even in the code.
struct SumUnit {
  std::int32_t node_turn;  ///< whose
  std::int32_t unit;       ///< of the owner's
  std::int32_t packed;     ///< its place where units travel
  ReduceUnits::Place place;
};

/// What the units of a launch have in common and device memory says: read once, since every wait in between
/// empties the L1 cache.
struct SumsOfLaunch {
  std::uint64_t epoch;
  std::uint64_t half_at;  ///< where this launch's half of the lent workspaces begins
  std::byte* slots;       ///< those of node turn 0, source 0 in that half

  explicit __device__ __forceinline__ SumsOfLaunch(const TileReduceParameters& p)
      : epoch(p.endpoint.control->epoch), half_at(p.half_at()), slots(p.slots_here[p.half()]) {}
};

template <bool kNodes>
__device__ __forceinline__ SumUnit sum_unit_at(const TileReduceParameters& p, std::int32_t index) {
  if constexpr (!kNodes) {
    return {0, index, index, p.units.place(index)};
  } else {
    const auto [node_turn, unit] = p.units.turn(index);
    return {node_turn, unit, p.units.packed(unit, p.owner(p.reduced(node_turn)).rows), p.units.place(unit)};
  }
}

/// Whether it is one of this rank's rows.
template <bool kNodes>
__device__ __forceinline__ bool is_own(const TileReduceParameters& p, const SumUnit& unit) {
  return !kNodes || unit.node_turn == p.units.others;
}

__device__ __forceinline__ DeviceWaitScope wait_scope(const TileReduceParameters& p, std::uint32_t stage) {
  return at_stage(wait_scope(p.endpoint), stage);
}

/// What one lane waits for before its warp sums: nothing, the tile of a source (lane < sources), or, of own
/// rows, the partials of another node.
struct SumWait {
  const std::uint64_t* word = nullptr;
  std::uint64_t count = 0;
  DeviceWaitSite site{};

  __device__ __forceinline__ SumWait(const TileReduceParameters& p, std::uint64_t epoch,
                                     std::int32_t node_turn, std::int32_t tile, std::int32_t packed) {
    const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
    const std::int32_t sender = lane - p.sources();
    if (sender < 0) {
      word = p.ready + (node_turn * p.sources() + lane) * p.ready_words + tile;
      count = PushReducePlan::count(epoch);
      site = {DeviceRole::kIntraComm, DeviceTag::kTileReady, p.source_rank[lane],
              static_cast<std::uint32_t>(tile)};
    } else if (node_turn == p.units.others && sender < p.units.others) {
      const auto peer = static_cast<std::uint32_t>(p.owner(p.reduced(sender)).rank);
      word = p.endpoint.counts.seen + p.endpoint.counts.arrivals_index(peer, 0);
      count = p.wire.plan.count(epoch, p.wire.packed_units[node_turn], packed / p.wire.plan.chunk_units);
      site = {DeviceRole::kInterReduce, DeviceTag::kArrivals, p.owner(p.reduced(sender)).rank, 0};
    }
  }

  /// Whole warp: whether wait() would return at once.
  __device__ __forceinline__ bool here() const {
    const bool mine = word == nullptr || ptx::ld_acquire_sys(word) >= count;
    __syncwarp();  // hands on what each lane has acquired
    return __all_sync(~0U, mine);
  }

  /// Whole warp: until every source's tile lies in its slot here, and the other nodes' partials of own rows
  /// in their place. They may then be read by every lane. False when it gave up.
  __device__ __forceinline__ bool wait(const TileReduceParameters& p) const {
    bool mine = true;
    if (word != nullptr) {
      const std::uint32_t stage = site.tag == DeviceTag::kArrivals ? std::uint32_t{kAfterNode} : 0;
      mine = wait_at_least(word, count, site, wait_scope(p, stage));
    }
    // Each lane has acquired one word; the barrier hands that on to the others.
    __syncwarp();
    return __all_sync(~0U, mine);
  }
};

/// Where the sums for owners on other nodes go: to be put. Like an operation's Output.
class StagedSums {
 public:
  __device__ __forceinline__ StagedSums(const TileReduceParameters& p, std::uint64_t half_at)
      : p_(p), half_at_(half_at) {}

  __device__ __forceinline__ void store(const SumUnit& unit, std::uint32_t inside, const uint4& sums) const {
    std::byte* staged = p_.wire.lent + half_at_ + p_.wire.plan.staged_offset(unit.node_turn);
    ptx::st_v4(staged + unit.packed * PutPartialsPlan::kUnitBytes + inside, sums);
  }
  /// inter_send is told later: a release waits for the stores before it.
  __device__ __forceinline__ void finish(const SumUnit& unit) {
    finished_ = p_.wire.staged + unit.node_turn * p_.wire.chunks + unit.packed / p_.wire.plan.chunk_units;
  }
  __device__ __forceinline__ void flush() {
    if (finished_ == nullptr) return;
    __syncwarp();  // puts the stores of all lanes before the release
    if (threadIdx.x % 32 == 0) ptx::red_add_release_gpu(finished_, 1);
    finished_ = nullptr;
  }

 private:
  const TileReduceParameters& p_;
  const std::uint64_t half_at_;
  std::uint64_t* finished_ = nullptr;  ///< count of the chunk whose unit nobody was told of yet
};

/// How sum_unit() reads summands that are here: `piece` of 16 bytes each from `at(source, place)`, for which
/// `wanted(source, place)`, zeros for the others. The first source is number `first` of all.
struct ReadOnce {
  template <int kSources, int kPlaces, class Wanted, class At>
  __device__ __forceinline__ bool operator()(uint4 (&piece)[kSources][kPlaces], std::int32_t /*first*/,
                                             const Wanted& wanted, const At& at) const {
#pragma unroll
    for (int j = 0; j < kSources; ++j) {
#pragma unroll
      for (int i = 0; i < kPlaces; ++i) {
        piece[j][i] = {};
        if (wanted(j, i)) piece[j][i] = ptx::ld_once_v4(at(j, i));
      }
    }
    return true;
  }
};

/// Whole warp: the sums of one unit. A lane takes 16 bytes of four places at a time, from up to four slots at
/// once: sixteen loads in flight, so that few warps read as much as an SM can. `before_store()` comes before
/// each of several rounds of store(inside, at, sums), which have the arguments of Output::store(). `read`: as
/// ReadOnce, for which everything is here; when it returns false, the sums end and so does this.
template <class Config, bool kNodes, class Read, class BeforeStore, class Store>
__device__ __forceinline__ bool sum_unit(const TileReduceParameters& p, const SumsOfLaunch& launch,
                                         const SumUnit& unit, const Read& read,
                                         const BeforeStore& before_store, const Store& store) {
  constexpr int kPlaces = 4, kSources = kNodes && Config::kTileN == 64 ? 2 : 4;  // registers
  constexpr int kAcross = Config::kTileN / 8;  // lanes that a row of the tile takes
  constexpr int kRowsAtOnce = kPlaces * 32 / kAcross;
  constexpr int kUnitRows = kReduceUnitElements / Config::kTileN;
  static_assert(kUnitRows % kRowsAtOnce == 0);
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
  const std::int32_t column = unit.place.column * Config::kTileN + lane % kAcross * 8;
  const std::int32_t first_row = static_cast<std::int32_t>(unit.place.row) + lane / kAcross;
  const std::int32_t rows = p.owner(p.reduced(unit.node_turn)).rows;
  std::byte* slots = launch.slots + unit.node_turn * p.sources() * p.slot_bytes;
#pragma unroll 1
  for (std::int32_t row = 0; row < kUnitRows; row += kRowsAtOnce) {
    // 16 bytes of each place, or none.
    const auto inside = [&](int i) {
      return first_row + row + i * (32 / kAcross) < rows && column < p.columns;
    };
    float sum[kPlaces][8] = {};
    // `count` summands, `stride` bytes apart, whose places are `step` bytes apart.
    const auto add = [&](std::byte* first, std::int32_t count, std::uint64_t stride, std::uint32_t step) {
      for (std::int32_t s = 0; s < count; s += kSources) {
        uint4 piece[kSources][kPlaces];
        if (!read(
                piece, s, [&](int j, int i) { return inside(i) && s + j < count; },
                [&](int j, int i) { return first + (s + j) * stride + i * step; })) {
          return false;
        }
#pragma unroll
        for (int j = 0; j < kSources; ++j) {
#pragma unroll
          for (int i = 0; i < kPlaces; ++i) add_piece<Config::kInput>(sum[i], piece[j][i]);
        }
      }
      return true;
    };
    const std::uint64_t first_at = (static_cast<std::uint64_t>(first_row + row) * p.columns + column) * 2;
    const std::uint32_t step = 32 / kAcross * p.columns * 2;
    const std::uint32_t first_inside = (row / (32 / kAcross) * 32 + lane) * 16;
    if (!add(slots + first_at, p.sources(), p.slot_bytes, step)) return false;
    if (kNodes && is_own<kNodes>(p, unit)) {
      const PutPartialsPlan& plan = p.wire.plan;
      std::byte* partials = p.wire.lent + launch.half_at + plan.partial_offset(0);
      add(partials + unit.packed * PutPartialsPlan::kUnitBytes + first_inside, p.units.others,
          plan.block_bytes(), 32 * 16);
    }
    before_store();
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) {
      if (inside(i))
        store(first_inside + i * 32 * 16, first_at + i * step, round_piece<Config::kInput>(sum[i]));
    }
  }
  return true;
}

/// Whole warp: sums until there are no more, or a wait gave up. `warps`: how many call this in a launch;
/// `others`: what else they do for its units.
template <class Config, bool kNodes, class Output>
__device__ __forceinline__ void sum_units(const TileReduceParameters& p, std::uint32_t warps, Output output,
                                          const OtherUnits& others = {}) {
  const SumsOfLaunch launch(p);
  const std::uint64_t epoch = launch.epoch;
  if (threadIdx.x % 32 == 0) begin_work(p.endpoint.trace);
  StagedSums staged(p, launch.half_at);
  const auto begin = [&] {
    if constexpr (kNodes) staged.flush();
    output.begin(epoch);
  };
  const auto flush = [&] {
    if constexpr (kNodes) staged.flush();
    output.flush(epoch);
  };
  const auto units = static_cast<std::uint32_t>(kNodes ? p.units.all_units() : p.units.units());
  share_units<Config>(p, p.claimed, epoch, units, warps, others, [&](std::uint32_t index) {
    const SumUnit unit = sum_unit_at<kNodes>(p, static_cast<std::int32_t>(index));
    if (unit.place.row >= p.owner(p.reduced(unit.node_turn)).rows) return true;
    const bool own = is_own<kNodes>(p, unit);
    const SumWait wait(p, epoch, unit.node_turn,
                       unit.place.row_tile * p.units.raster.columns() + unit.place.column, unit.packed);
    if (!wait.here()) {
      flush();
      if (!wait.wait(p)) return false;
    }
    sum_unit<Config, kNodes>(p, launch, unit, ReadOnce{}, begin,
                             [&](std::uint32_t inside, std::uint64_t at, const uint4& sums) {
                               if (own) {
                                 output.store(epoch, unit, inside, at, sums);
                               } else {
                                 staged.store(unit, inside, sums);
                               }
                             });
    if (own) {
      output.finish(unit);
    } else {
      staged.finish(unit);
    }
    return true;
  });
  flush();
  if (threadIdx.x % 32 == 0) end_work(p.endpoint.trace, DeviceWork::kSum);
}

}  // namespace mkernel::kernels
