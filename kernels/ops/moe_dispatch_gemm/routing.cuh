// The routing of this rank's tokens, made by the dispatching CTAs: what ChunkedRouting does on the host. A
// chunk is a warp's: it counts its tokens, and once all are counted places its entries behind those of the
// warps and CTAs before it, so that every place is stable in token order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/ptx/fence.cuh"
#include "kernels/cuda/ptx/global.cuh"
#include "kernels/cuda/sync/warp_sum.cuh"
#include "kernels/ops/moe_dispatch_gemm/parameters.h"
#include "kernels/ops/moe_dispatch_gemm/workers.cuh"

namespace mkernel::kernels {

/// One warp: begin[i] = the sum of value(0) .. value(i - 1), for i = 0 .. count.
template <class Value>
__device__ __forceinline__ void warp_sums_before(std::int32_t count, std::int32_t* begin,
                                                 const Value& value) {
  const std::int32_t lane = static_cast<std::int32_t>(threadIdx.x) % 32;
  std::int32_t before = 0;
  for (std::int32_t first = 0; first < count; first += 32) {
    const std::int32_t i = first + lane;
    const std::int32_t mine = i < count ? value(i) : 0;
    const std::int32_t sum = warp_sum_up_to(mine);
    if (i < count) begin[i] = before + sum - mine;
    before += __shfl_sync(~0U, sum, 31);
  }
  if (lane == 0) begin[count] = before;
}

/// The working threads of a dispatching CTA: counts and places in its shared memory, results in MoeScratch.
class MoeRouting {
 public:
  __device__ __forceinline__ MoeRouting(const MoeParameters& p, std::uint64_t epoch,
                                        const MoeWorkers& workers, std::byte* memory)
      : p_(p),
        epoch_(epoch),
        workers_(workers),
        order_(p.plan.order(p.rank)),
        experts_(p.plan.owners.experts),
        kinds_(p.plan.owners.max_local()),
        others_(p.plan.others()),
        words_(reinterpret_cast<std::int32_t*>(memory)),
        tokens_(workers.warps * experts_),
        first_(tokens_ + workers.warps * kinds_),
        last_(first_ + workers.warps * others_ * kinds_),
        total_(last_ + workers.warps * others_ * kinds_),
        kind_begin_(total_ + experts_),
        first_begin_(kind_begin_ + kinds_ + 1),
        last_begin_(first_begin_ + others_ * (kinds_ + 1)),
        step_begin_(last_begin_ + others_ * (kinds_ + 1)),
        told_(step_begin_ + order_.steps() + 1) {}

  /// Counts this CTA's chunk, meets the others, and tells the ranks of the node this rank's counts. False: a
  /// wait gave up.
  __device__ __forceinline__ bool count() {
    const std::int32_t counts = workers_.warps * (experts_ + (1 + 2 * others_) * kinds_);
    for (std::int32_t i = workers_.thread(); i < counts; i += workers_.threads()) words(kRows)[i] = 0;
    workers_.sync();
    count_entries();
    count_tokens();
    workers_.sync();
    sum_warps(words(kRows), experts_, p_.scratch.chunk_rows + blockIdx.x * experts_);
    sum_warps(words(tokens_), kinds_, p_.scratch.chunk_tokens + blockIdx.x * kinds_);
    const std::int32_t crossing = others_ * kinds_;
    sum_warps(words(first_), crossing, p_.scratch.chunk_first + blockIdx.x * crossing);
    sum_warps(words(last_), crossing, p_.scratch.chunk_last + blockIdx.x * crossing);
    if (!moe_meet(p_, workers_, p_.scratch.counted, epoch_, words(told_))) return false;
    sum_chunks(words(kRows), experts_, p_.scratch.chunk_rows,
               [&](std::int32_t expert) { return words(total_) + expert; });
    sum_chunks(words(tokens_), kinds_, p_.scratch.chunk_tokens,
               [&](std::int32_t kind) { return words(kind_begin_) + kind; });
    // Every node turn has one more number than kinds: where its last kind ends.
    sum_chunks(words(first_), crossing, p_.scratch.chunk_first,
               [&](std::int32_t i) { return words(first_begin_) + i + i / kinds_; });
    sum_chunks(words(last_), crossing, p_.scratch.chunk_last,
               [&](std::int32_t i) { return words(last_begin_) + i + i / kinds_; });
    workers_.sync();
    if (workers_.warp == 0) {
      warp_sums_before(order_.steps(), words(step_begin_), [&](std::int32_t step) {
        const std::int32_t expert = order_.expert(step);
        return expert < 0 ? 0 : words(total_)[expert];
      });
    } else if (workers_.warp == 1) {
      sums_before(words(kind_begin_));
      for (std::int32_t turn = 0; turn < others_; ++turn) {
        sums_before(words(first_begin_) + turn * (kinds_ + 1));
        sums_before(words(last_begin_) + turn * (kinds_ + 1));
      }
    }
    workers_.sync();
    tell();
    return true;
  }

  /// Places this CTA's chunk and meets the others. A launch that will be refused places nothing.
  __device__ __forceinline__ bool place() {
    if (!bad()) {
      place_entries();
      place_tokens();
    }
    return moe_meet(p_, workers_, p_.scratch.placed, epoch_, words(told_));
  }

  /// Rows that this rank pushes.
  __device__ __forceinline__ std::int32_t pushes() const { return words(step_begin_)[order_.steps()]; }
  /// Those before the rows that have crossed.
  __device__ __forceinline__ std::int32_t first_pushes() const {
    return words(step_begin_)[p_.sections.first_experts(kinds_) * order_.ranks_per_node];
  }
  /// Number of an entry's row among this rank's rows of the expert, when it is push `number`.
  __device__ __forceinline__ std::int32_t index(std::int32_t number, std::int32_t expert) const {
    return number - words(step_begin_)[order_.step(expert)];
  }
  /// Tokens that cross to a node.
  __device__ __forceinline__ std::int32_t crossings(std::int32_t turn) const {
    return words(first_begin_)[turn * (kinds_ + 1) + kinds_];
  }
  /// A word of shared memory, for moe_meet() and the like.
  __device__ __forceinline__ std::int32_t* told() const { return words(told_); }

 private:
  __device__ __forceinline__ std::int32_t* words(std::int32_t word) const { return words_ + word; }
  __device__ __forceinline__ MoeCounters& counters() const { return p_.scratch.counters[epoch_ & 1]; }
  __device__ __forceinline__ bool bad() const { return ptx::ld_relaxed_gpu(&counters().bad) != 0; }

  /// A warp, in place.
  __device__ __forceinline__ void sums_before(std::int32_t* numbers) const {
    warp_sums_before(kinds_, numbers, [&](std::int32_t kind) { return numbers[kind]; });
  }

  /// Local experts of a token on the node of a turn.
  struct Span {
    std::int32_t first, last;  ///< first < 0: none
  };
  __device__ __forceinline__ Span span(std::int32_t turn, std::int32_t token) const {
    Span found{-1, -1};
    for (std::int32_t j = 0; j < p_.routed.topk; ++j) {
      const std::int32_t expert = p_.routed.experts[std::int64_t{token} * p_.routed.topk + j];
      if (order_.node_turn(expert) != turn) continue;
      const std::int32_t local = order_.owners.local(expert);
      found.first = found.first < 0 ? local : min(found.first, local);
      found.last = max(found.last, local);
    }
    return found;
  }

  struct Tokens {
    std::int32_t begin, end;
  };
  static __device__ __forceinline__ Tokens share(const Tokens& of, std::int32_t parts, std::int32_t part) {
    const std::int64_t all = of.end - of.begin;
    return {of.begin + static_cast<std::int32_t>(all * part / parts),
            of.begin + static_cast<std::int32_t>(all * (part + 1) / parts)};
  }
  /// Tokens of this warp's chunk.
  __device__ __forceinline__ Tokens tokens() const {
    const Tokens of_cta =
        share({0, p_.routed.tokens}, p_.dispatch_ctas, static_cast<std::int32_t>(blockIdx.x));
    return share(of_cta, workers_.warps, workers_.warp);
  }

  __device__ __forceinline__ void count_entries() {
    const Tokens range = tokens();
    const std::int32_t topk = p_.routed.topk;
    for (std::int32_t entry = range.begin * topk + workers_.lane(); entry < range.end * topk; entry += 32) {
      const std::int32_t token = entry / topk;
      const RoutingProblem problem = problem_of(p_.routed, experts_, token, entry - token * topk);
      if (problem.kind == RoutingProblem::kNone) {
        atomicAdd(words(kRows) + workers_.warp * experts_ + problem.value, 1);
      } else {
        ptx::atom_max_relaxed_gpu(&counters().bad, ~std::uint64_t{static_cast<std::uint32_t>(entry)});
      }
    }
  }

  __device__ __forceinline__ void count_tokens() {
    const Tokens range = tokens();
    for (std::int32_t token = range.begin + workers_.lane(); token < range.end; token += 32) {
      bool known = true;
      for (std::int32_t j = 0; j < p_.routed.topk; ++j) {
        const std::int32_t expert = p_.routed.experts[std::int64_t{token} * p_.routed.topk + j];
        known = known && expert >= 0 && expert < experts_;
      }
      if (!known) continue;
      atomicAdd(words(tokens_) + workers_.warp * kinds_ + last_local(p_.routed, p_.plan.owners, token), 1);
      for (std::int32_t turn = 0; turn < others_; ++turn) {
        const Span crosses = span(turn, token);
        if (crosses.first < 0) continue;
        atomicAdd(words(first_) + (workers_.warp * others_ + turn) * kinds_ + crosses.first, 1);
        atomicAdd(words(last_) + (workers_.warp * others_ + turn) * kinds_ + crosses.last, 1);
      }
    }
  }

  /// Makes of every warp's counts those of the warps before it; the CTA's go to `out`.
  __device__ __forceinline__ void sum_warps(std::int32_t* counts, std::int32_t size, std::int32_t* out) {
    for (std::int32_t i = workers_.thread(); i < size; i += workers_.threads()) {
      std::int32_t before = 0;
      for (std::int32_t warp = 0; warp < workers_.warps; ++warp) {
        const std::int32_t mine = counts[warp * size + i];
        counts[warp * size + i] = before;
        before += mine;
      }
      out[i] = before;
    }
  }

  /// Adds those of the CTAs before this one to every warp's; those of all CTAs go to *total(i).
  template <class Total>
  __device__ __forceinline__ void sum_chunks(std::int32_t* counts, std::int32_t size,
                                             const std::int32_t* chunks, const Total& total) {
    for (std::int32_t i = workers_.thread(); i < size; i += workers_.threads()) {
      std::int32_t sum = 0, before = 0;
      for (std::int32_t cta = 0; cta < p_.dispatch_ctas; ++cta) {
        if (cta == static_cast<std::int32_t>(blockIdx.x)) before = sum;
        sum += chunks[cta * size + i];
      }
      for (std::int32_t warp = 0; warp < workers_.warps; ++warp) counts[warp * size + i] += before;
      *total(i) = sum;
    }
  }

  /// This CTA's share of the ranks of the node: counts, and the lowest problem.
  __device__ __forceinline__ void tell() {
    const std::uint64_t at = moe_counts_at(p_, epoch_, p_.rank);
    const auto first = static_cast<std::int32_t>(blockIdx.x) + 1;
    for (std::int32_t ahead = first; ahead <= order_.ranks_per_node; ahead += p_.dispatch_ctas) {
      std::byte* there = moe_memory(p_, order_.neighbour(ahead)) + at;
      auto* counts = reinterpret_cast<std::int32_t*>(there + ExpertExchangePlan::kRowsInCounts);
      for (std::int32_t expert = workers_.thread(); expert < experts_; expert += workers_.threads())
        counts[expert] = words(total_)[expert];
      auto* crossing = reinterpret_cast<std::int32_t*>(there + p_.plan.crossings_in_counts());
      for (std::int32_t turn = workers_.thread(); turn < others_; turn += workers_.threads())
        crossing[order_.node(order_.rail_peer(turn))] = crossings(turn);
      if (workers_.thread() == 0) *reinterpret_cast<RoutingProblem*>(there) = first_problem();
    }
    workers_.sync();
    if (workers_.thread() != 0) return;
    const ptx::SysReleased released = ptx::fence_acq_rel_sys();
    for (std::int32_t ahead = first; ahead <= order_.ranks_per_node; ahead += p_.dispatch_ctas) {
      std::uint64_t* words = moe_words(p_, order_.neighbour(ahead), p_.places.counted);
      ptx::st_relaxed_sys(words + p_.rank, ExpertExchangePlan::stamp(epoch_), released);
    }
  }

  __device__ __forceinline__ RoutingProblem first_problem() const {
    const std::uint64_t bad = ptx::ld_relaxed_gpu(&counters().bad);
    if (bad == 0) return {};
    const auto entry = static_cast<std::int32_t>(~bad);
    const std::int32_t token = entry / p_.routed.topk;
    return problem_of(p_.routed, experts_, token, entry - token * p_.routed.topk);
  }

  /// For every lane with `any`, in order: begin[kind]++, and then place(that number). The lanes of one kind
  /// share an addition.
  template <class Place>
  static __device__ __forceinline__ void place_stable(bool any, std::int32_t kind, std::int32_t* begin,
                                                      const Place& place) {
    const std::uint32_t here = __ballot_sync(~0U, any);
    if (any) {
      const std::uint32_t same = __match_any_sync(here, kind);
      const std::uint32_t lower = same & ((1U << (threadIdx.x % 32)) - 1);
      const std::int32_t first = begin[kind];
      __syncwarp(here);
      if (lower == 0) begin[kind] = first + __popc(same);
      place(first + __popc(lower));
    }
    __syncwarp();
  }

  __device__ __forceinline__ void place_entries() {
    const Tokens range = tokens();
    const std::int32_t topk = p_.routed.topk;
    for (std::int32_t first = range.begin * topk; first < range.end * topk; first += 32) {
      const std::int32_t entry = first + workers_.lane();
      const bool any = entry < range.end * topk;
      const std::int32_t expert = any ? p_.routed.experts[entry] : 0;
      place_stable(any, expert, words(kRows) + workers_.warp * experts_, [&](std::int32_t index) {
        if (others_ > 0 && order_.node_turn(expert) < others_) {
          p_.scratch.entry_index[entry] = index;
        } else {
          p_.scratch.pushed[words(step_begin_)[order_.step(expert)] + index] = entry;
        }
      });
    }
  }

  __device__ __forceinline__ void place_tokens() {
    const Tokens range = tokens();
    for (std::int32_t first = range.begin; first < range.end; first += 32) {
      const std::int32_t token = first + workers_.lane();
      const bool any = token < range.end;
      const std::int32_t kind = any ? last_local(p_.routed, p_.plan.owners, token) : 0;
      place_stable(any, kind, words(tokens_) + workers_.warp * kinds_, [&](std::int32_t index) {
        p_.scratch.token_order[words(kind_begin_)[kind] + index] = token;
      });
      for (std::int32_t turn = 0; turn < others_; ++turn) place_crossing(turn, any, token);
    }
  }

  __device__ __forceinline__ void place_crossing(std::int32_t turn, bool any, std::int32_t token) {
    const Span crosses = any ? span(turn, token) : Span{-1, -1};
    const std::int32_t of_warp = (workers_.warp * others_ + turn) * kinds_, begin = turn * (kinds_ + 1);
    const std::int32_t of_turn = turn * p_.plan.max_tokens;
    if (any) p_.scratch.returning[of_turn + token] = -1;
    place_stable(crosses.first >= 0, crosses.first, words(first_) + of_warp, [&](std::int32_t index) {
      p_.scratch.crossing[of_turn + words(first_begin_)[begin + crosses.first] + index] = token;
    });
    place_stable(crosses.first >= 0, crosses.last, words(last_) + of_warp, [&](std::int32_t index) {
      p_.scratch.returning[of_turn + token] = words(last_begin_)[begin + crosses.last] + index;
    });
  }

  const MoeParameters& p_;
  const std::uint64_t epoch_;
  const MoeWorkers workers_;
  const PushOrder order_;
  const std::int32_t experts_, kinds_, others_;
  // Shared memory: where in `words_` something begins. All counts would be pointers with too many registers.
  std::int32_t* words_;
  static constexpr std::int32_t kRows = 0;  ///< [warps][experts]
  std::int32_t tokens_;                     ///< [warps][kinds]
  std::int32_t first_, last_;               ///< [warps][others][kinds]
  std::int32_t total_;                      ///< [experts]
  std::int32_t kind_begin_;                 ///< [kinds + 1]
  std::int32_t first_begin_, last_begin_;   ///< [others][kinds + 1]
  std::int32_t step_begin_;                 ///< [steps + 1]
  std::int32_t told_;
};

}  // namespace mkernel::kernels
