// Ring attention over sequences of different lengths on the cuda executor. Keys and values come as those of
// one sequence do (gather.cuh); what is here is which of them a tile of queries meets. See README.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/launch/rehearsal.cuh"
#include "kernels/ops/ring_attention/attention/varlen_table.cuh"
#include "kernels/ops/ring_attention/roles.cuh"
#include "kernels/ops/ring_attention/varlen_parameters.h"
#include "kernels/plan/ring_sequences.h"

namespace mkernel::kernels {

/// The list of tasks of this CTA.
__device__ __forceinline__ AttentionSlot* ring_varlen_slots(const RingVarlenParameters& p) {
  return p.scratch->slots(static_cast<std::int32_t>(blockIdx.x), p.lengths.sequences);
}

/// compute: the feed. A segment of a task is the keys that one source holds of the sequence; the own rank's
/// come first. As in VarlenFeed a tile ends with its segment, so that its maps read zeros behind it.
template <class Config>
class RingVarlenFeed {
 public:
  /// Where the launch began, which shared.begin says, is read when it is needed: registers are few.
  __device__ __forceinline__ RingVarlenFeed(const RingVarlenParameters& p,
                                            RingAttentionShared<Config>& shared)
      : p_(p), shared_(shared) {}

  __device__ __forceinline__ bool next(AttentionTask& task) const {
    const std::uint64_t claimed =
        ptx::atom_add_relaxed_gpu(&p_.scratch->next_task[shared_.begin.epoch & 1], 1);
    const AttentionSlot* slots = ring_varlen_slots(p_);
    const std::int32_t count = p_.lengths.sequences;
    if (claimed >= static_cast<std::uint64_t>(ring_tasks(slots, count, p_.heads))) return false;
    const RingPlace place = ring_place(slots, count, p_.heads, p_.causal, static_cast<std::int32_t>(claimed));
    const AttentionSequence sequence = slots[place.slot].sequence;
    const RingTile tile = ring_tile(sequence.queries, p_.causal, place.tile);
    task.query = Config::kTileQueries - (tile.query_end - tile.query);
    task.queries = Config::kTileQueries;
    task.query_first = sequence.query_first + tile.query_end;
    task.query_column = place.head * Config::kHeadDim;
    task.key_column = place.head / p_.group * Config::kHeadDim;
    task.lse = std::int64_t{place.head} * p_.lengths.all_queries + sequence.query_first + tile.query;
    task.batch = sequence.key_first;
    task.part = 2 * (sequence.keys / ring_parts(p_.causal)) + tile.part;
    task.first.keys = tile.keys(sequence.keys, p_.causal);
    task.first.visible = tile.visible(sequence.keys, p_.causal);
    task.key_tiles = task.first.tiles(Config::kTileKeys);
    for (int i = 1; i < segments(); ++i) task.key_tiles += segment(task, i).tiles(Config::kTileKeys);
    return true;
  }

  __device__ __forceinline__ const TensorMap& q(const AttentionTask&) const { return p_.q[0]; }
  __device__ __forceinline__ const TensorMap& out(const AttentionTask&) const { return p_.out[0]; }
  __device__ __forceinline__ int segments() const { return p_.gather.world; }
  /// task.part: twice the rows that a part of the sequence has, and which part the queries lie in.
  __device__ __forceinline__ AttentionSegment segment(const AttentionTask& task, int index) const {
    if (index == 0) return task.first;
    const bool before = p_.gather.source(index) < p_.gather.rank;
    const std::int32_t keys = ring_keys(task.part >> 1, p_.causal, task.part & 1, before);
    return {keys, keys};
  }
  /// task.batch: every rank's first row of the sequence. Own rows are there; those of others when their
  /// chunks have been pushed here.
  template <AttentionOperand kOperand>
  __device__ __forceinline__ AttentionRows rows(const AttentionTask& task, int segment, int row) const {
    constexpr int kTensor = kOperand == AttentionOperand::kKeys ? 0 : 1;
    const std::int32_t count = min(this->segment(task, segment).keys - row, Config::kTileKeys);
    const std::int32_t end = task.batch + row + count, before = Config::kTileKeys - count - row;
    if (segment == 0) return {&p_.own[kTensor], task.key_column, end, before};
    const KvGatherPlan& gather = p_.gather;
    const std::int32_t source = gather.source(segment), head = task.key_column / Config::kHeadDim;
    wait_kv_rows(p_, shared_.begin.epoch, source, kTensor, head, end - 1, shared_.seen[kTensor][source]);
    const auto half = static_cast<std::int32_t>(shared_.begin.turn & 1);
    const TensorMap* map = &p_.gathered[(half * gather.world + source) * KvGatherPlan::kTensors + kTensor];
    return {map, 0, head * gather.positions(source) + end, before};
  }
  __device__ __forceinline__ float scale() const { return p_.scale; }
  __device__ __forceinline__ float* lse() const { return p_.lse; }
  __device__ __forceinline__ const DeviceTrace& trace() const { return p_.endpoint.trace; }

 private:
  const RingVarlenParameters& p_;
  RingAttentionShared<Config>& shared_;
};

/// All threads of the CTA, whose shared memory copies may use afterwards: whether the lengths are good
/// (varlen_accept()).
__device__ __forceinline__ bool ring_varlen_accept(const RingVarlenParameters& p, std::uint64_t epoch,
                                                   VarlenSorting& sorting) {
  const auto check = [&](std::int32_t number) { return check_ring_length(p.lengths, p.causal, number); };
  const bool good = varlen_accept(*p.scratch, ring_length_entries(p.lengths), check, epoch, sorting);
  ptx::fence_proxy_async_shared_cta();
  __syncthreads();
  return good;
}

/// The whole kernel, with the CTA's shared memory. A launch whose lengths are bad passes on keys and values
/// as any other does, so that other ranks do not fail, and computes nothing.
template <class Config>
__device__ __forceinline__ void ring_varlen_cta(const RingVarlenParameters& p, std::byte* cta_memory) {
  LaunchControl& control = *p.endpoint.control;
  if (p.endpoint.lent->stopped != 0) return count_out(control, p.endpoint.lent);
  const LaunchBegin begin(control, p.endpoint.lent);
  auto& shared = *reinterpret_cast<RingAttentionShared<Config>*>(cta_memory);
  static_assert(sizeof(VarlenSorting) <= sizeof(shared.body.keys));
  auto& sorting = *reinterpret_cast<VarlenSorting*>(shared.body.keys);
  begin_role(p.endpoint.trace);
  const bool good = ring_varlen_accept(p, begin.epoch, sorting);
  if (static_cast<std::int32_t>(blockIdx.x) < p.comm_ctas) {
    gather_kv<Config::kThreads / 32>(p, *reinterpret_cast<KvFanOutShared*>(cta_memory), p.rails == 0);
    end_role(p.endpoint.trace, DeviceRole::kIntraComm);
    if (blockIdx.x == 0 && p.rails > 0) return;
    begin_role(p.endpoint.trace);
  }
  static_assert(KvGatherPlan::kTensors * kMaxKernelRanks <= Config::kThreads);
  if (threadIdx.x < KvGatherPlan::kTensors * kMaxKernelRanks) (&shared.seen[0][0])[threadIdx.x] = 0;
  if (threadIdx.x == 0) shared.begin = begin;
  const auto then = [&](int warp) {
    if (blockIdx.x == 0) end_gather_beside_work(p, shared.begin, warp);
  };
  if (good) {
    varlen_fill(p.lengths, RingTaskList{p.causal, p.section_heads}, ring_varlen_slots(p), sorting);
    // It begins with a fence and a barrier, so its tiles may lie where the sorting was.
    attention_body(RingVarlenFeed<Config>(p, shared), shared.body, then);
  } else {
    __syncthreads();  // the begin of the launch, as the body's barrier hands it on
    if (threadIdx.x < 128) then(static_cast<int>(threadIdx.x) / 32);
  }
  if (blockIdx.x == 0) {
    end_launch(control, p.endpoint.lent, shared.begin);
  } else {
    end_cta(control);
  }
  end_role(p.endpoint.trace, DeviceRole::kCompute);
}

template <class Config>
__global__ __launch_bounds__(Config::kThreads,
                             1) void ring_varlen_kernel(const __grid_constant__ RingVarlenParameters p) {
  extern __shared__ __align__(1024) std::byte memory[];
  if (!is_rehearsal(p.endpoint)) ring_varlen_cta<Config>(p, memory);
}

}  // namespace mkernel::kernels
