// CTA 0 builds the table of blocks from the counts of all ranks, or refuses the launch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/ptx/fence.cuh"
#include "kernels/cuda/ptx/global.cuh"
#include "kernels/ops/moe_dispatch_gemm/parameters.h"
#include "kernels/ops/moe_dispatch_gemm/routing.cuh"
#include "kernels/ops/moe_dispatch_gemm/workers.cuh"

namespace mkernel::kernels {

/// Whether launch `epoch`, whose table is built, was refused.
__device__ __forceinline__ bool moe_refused(const MoeParameters& p, std::uint64_t epoch) {
  return ptx::ld_relaxed_gpu(&p.scratch.report->refusal.launch) == ExpertExchangePlan::stamp(epoch);
}

/// The working threads of CTA 0.
class MoeTable {
 public:
  __device__ __forceinline__ MoeTable(const MoeParameters& p, std::uint64_t epoch, const MoeWorkers& workers,
                                      std::int32_t* told)
      : p_(p), epoch_(epoch), workers_(workers), told_(told), experts_(p.plan.owners.experts) {}

  /// Waits for the counts of all ranks, then builds. False: a wait gave up, and there is no table.
  __device__ __forceinline__ bool build() {
    if (!wait_counts()) return false;
    add_counts();
    workers_.sync();
    const MoeScratch& scratch = p_.scratch;
    for (std::int32_t sums = workers_.warp; sums < kSums; sums += workers_.warps) add_up(sums);
    workers_.sync();
    const bool refused = refuse();
    if (!refused) fill();
    raise_arrived(refused);
    if (workers_.thread() == 0) scratch.counters[(epoch_ + 1) & 1] = {};
    workers_.sync();
    if (workers_.thread() == 0) ptx::st_release_gpu(scratch.table_ready, ExpertExchangePlan::stamp(epoch_));
    return true;
  }

 private:
  __device__ __forceinline__ const std::byte* counts(std::int32_t rank) const {
    return moe_memory(p_, p_.rank) + moe_counts_at(p_, epoch_, rank);
  }

  __device__ __forceinline__ bool wait_counts() {
    if (workers_.thread() == 0) *told_ = 1;
    workers_.sync();
    const std::uint64_t* words = moe_words(p_, p_.rank, p_.places.counted);
    const PushOrder order = p_.plan.order(p_.rank);
    for (std::int32_t rank = workers_.thread(); rank < p_.plan.owners.world; rank += workers_.threads()) {
      const DeviceWaitSite site{DeviceRole::kIntraComm, DeviceTag::kChunkReady, rank, 0};
      // Those of other nodes are handed on by a rank of this one, which is named itself when it is missing.
      const MoeStage stage = order.node(rank) == order.node(p_.rank) ? MoeStage::kCounts : MoeStage::kTable;
      if (!wait_at_least(words + rank, ExpertExchangePlan::stamp(epoch_), site, moe_scope(p_, stage)))
        *told_ = 0;
    }
    return moe_told(workers_, told_) != 0;
  }

  /// rows[]: of all ranks; source_rows[]: of those before the source, for now; near_rows[]. And what crosses.
  __device__ __forceinline__ void add_counts() const {
    const PushOrder order = p_.plan.order(p_.rank);
    const std::int32_t others = p_.plan.others();
    for (std::int32_t expert = workers_.thread(); expert < experts_; expert += workers_.threads()) {
      std::int32_t all = 0, near = 0;
      for (std::int32_t source = 0; source < p_.plan.owners.world; ++source) {
        const std::int32_t rank = order.source(source);
        if (source == order.ranks_per_node) near = all;
        if (rank == p_.rank) p_.scratch.source_rows[expert] = all;
        for (std::int32_t turn = 0; turn < others; ++turn)
          if (rank == order.rail_peer(turn)) p_.scratch.source_rows[(1 + turn) * experts_ + expert] = all;
        all +=
            reinterpret_cast<const std::int32_t*>(counts(rank) + ExpertExchangePlan::kRowsInCounts)[expert];
      }
      p_.scratch.rows[expert] = all;
      const std::int32_t local = expert - p_.plan.owners.first(p_.rank);
      if (local >= 0 && local < p_.plan.owners.count(p_.rank))
        p_.scratch.near_rows[local] = others > 0 ? near : all;
    }
    const auto crossings = [&](std::int32_t from, std::int32_t to) {
      const auto* by_node =
          reinterpret_cast<const std::int32_t*>(counts(from) + p_.plan.crossings_in_counts());
      return by_node[order.node(to)];
    };
    for (std::int32_t turn = workers_.thread(); turn < others; turn += workers_.threads()) {
      p_.scratch.crossings[turn] = crossings(p_.rank, order.rail_peer(turn));
      p_.scratch.crossed[turn] = crossings(order.rail_peer(turn), p_.rank);
    }
  }

  static constexpr std::int32_t kSums = 4;
  /// One warp: one of the running sums over experts, or over parts of the own ones.
  __device__ __forceinline__ void add_up(std::int32_t sums) const {
    const MoeScratch& scratch = p_.scratch;
    // Of what is summed only the rows are there.
    const ExpertSectionCut& cut = p_.sections;
    const OwnedExperts owned = moe_table(p_).of_rank(p_.rank);
    const std::int32_t parts = cut.parts(owned.experts);
    if (sums == 0) {
      warp_sums_before(experts_, scratch.rows_before,
                       [&](std::int32_t expert) { return p_.plan.cut.padded(scratch.rows[expert]); });
    } else if (sums == 1) {
      warp_sums_before(experts_, scratch.blocks_before,
                       [&](std::int32_t expert) { return p_.plan.cut.blocks(scratch.rows[expert]); });
    } else if (sums == 2) {
      warp_sums_before(parts, scratch.part_sections, [&](std::int32_t part) {
        return cut.sections(cut.blocks(owned, scratch.near_rows, part));
      });
    } else {
      warp_sums_before(parts, scratch.part_blocks,
                       [&](std::int32_t part) { return cut.blocks(owned, scratch.near_rows, part); });
    }
  }

  /// The first rank that has a problem, or else the first expert that has no room; the same on every rank.
  __device__ __forceinline__ bool refuse() {
    constexpr std::int32_t kNobody = 1 << 30;
    if (workers_.thread() == 0) *told_ = kNobody;
    workers_.sync();
    for (std::int32_t rank = workers_.thread(); rank < p_.plan.owners.world; rank += workers_.threads()) {
      if (reinterpret_cast<const RoutingProblem*>(counts(rank))->kind != RoutingProblem::kNone)
        atomicMin(told_, rank - kNobody);  // before every expert
    }
    const ExpertTable table = moe_table(p_);
    for (std::int32_t expert = workers_.thread(); expert < experts_; expert += workers_.threads())
      if (table.overflows(expert, p_.plan.capacity_rows)) atomicMin(told_, expert);
    const std::int32_t first = moe_told(workers_, told_);
    if (first == kNobody) return false;
    if (workers_.thread() == 0) {
      MoeRefusal why;
      if (first < 0) {
        why.rank = first + kNobody;
        why.problem = *reinterpret_cast<const RoutingProblem*>(counts(why.rank));
      } else {
        why.expert = first;
        why.rows = table.rows[first];
        why.padded = table.first_row(first) + table.cut.padded(table.rows[first]);
      }
      why.launch = ExpertExchangePlan::stamp(epoch_);
      p_.scratch.report->refusal = why;
    }
    return true;
  }

  __device__ __forceinline__ void fill() const {
    const ExpertTable table = moe_table(p_);
    for (std::int32_t expert = workers_.thread(); expert < experts_; expert += workers_.threads()) {
      for (std::int32_t source = 0; source <= p_.plan.others(); ++source)
        p_.scratch.source_rows[source * experts_ + expert] += table.first_row(expert);
    }
    const ExpertTasks tasks = moe_expert_tasks(p_);
    fill_sections(tasks.owned, tasks.sections.count);
    if (p_.pairs2 == 0) return;
    workers_.sync();
    for (std::int32_t step = workers_.thread(); step <= tasks.sections.count; step += workers_.threads())
      p_.scratch.followers[step] = tasks.followers(step);
  }

  __device__ __forceinline__ void fill_sections(const OwnedExperts& owned, std::int32_t sections) const {
    const MoeScratch& scratch = p_.scratch;
    const ExpertSectionCut& cut = p_.sections;
    const std::int32_t parts = cut.parts(owned.experts);
    for (std::int32_t part = workers_.thread(); part < parts; part += workers_.threads()) {
      const std::int32_t blocks = cut.blocks(owned, scratch.near_rows, part);
      const std::int32_t first = cut.first_block(owned, scratch.near_rows, part);
      const std::int32_t begin = scratch.part_sections[part];
      for (std::int32_t i = 0; i < scratch.part_sections[part + 1] - begin; ++i) {
        const std::int32_t before = cut.blocks_before(blocks, i);
        scratch.section_blocks[begin + i] = scratch.part_blocks[part] + before;
        scratch.section_first[begin + i] = first + before;
        scratch.section_experts[begin + i] = cut.expert(owned.experts, part);
      }
    }
    if (workers_.thread() == 0) scratch.section_blocks[sections] = scratch.part_blocks[parts];
  }

  /// What lacks of every block that this rank owns or could own.
  __device__ __forceinline__ void raise_arrived(bool refused) const {
    const OwnedExperts mine = moe_table(p_).of_rank(p_.rank);
    std::uint64_t* arrived = moe_words(p_, p_.rank, p_.places.arrived);
    // Other GPUs add to the same words.
    const ptx::SysReleased released = ptx::fence_acq_rel_sys();
    for (std::int32_t block = workers_.thread(); block < p_.plan.max_blocks(); block += workers_.threads()) {
      const std::int32_t lacking = p_.plan.lacking_rows(refused ? nullptr : &mine, block);
      if (lacking > 0)
        ptx::red_add_relaxed_sys(arrived + block, static_cast<std::uint64_t>(lacking), released);
    }
  }

  const MoeParameters& p_;
  const std::uint64_t epoch_;
  const MoeWorkers workers_;
  std::int32_t* told_;
  const std::int32_t experts_;
};

}  // namespace mkernel::kernels
