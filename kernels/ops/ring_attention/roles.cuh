// Ring attention on the cuda executor: the roles of its CTAs. See README.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention/sm90_attention.cuh"
#include "kernels/cuda/launch/end.cuh"
#include "kernels/cuda/launch/rehearsal.cuh"
#include "kernels/cuda/ptx/fence.cuh"
#include "kernels/cuda/ptx/global.cuh"
#include "kernels/ops/ring_attention/gather.cuh"
#include "kernels/ops/ring_attention/parameters.h"

namespace mkernel::kernels {

template <class Config>
struct RingAttentionShared {
  AttentionShared<Config> body;
  /// Of the loading thread, by tensor and source: what it has seen of a head (wait_kv_rows()).
  std::int32_t seen[KvGatherPlan::kTensors][kMaxKernelRanks];
  LaunchBegin begin;  ///< of thread 0: the body needs its registers
};

/// Dynamic shared memory of a launch.
template <class Config>
constexpr std::size_t ring_attention_shared_bytes() {
  static_assert(sizeof(RingAttentionShared<Config>) <= 227 * 1024, "more than a CTA can have");
  static_assert(sizeof(KvFanOutShared) <= 227 * 1024, "more than a CTA can have");
  return sizeof(RingAttentionShared<Config>) > sizeof(KvFanOutShared) ? sizeof(RingAttentionShared<Config>)
                                                                      : sizeof(KvFanOutShared);
}

/// compute: the feed. CTAs take the tasks of the plan in order, each the next one as soon as it has time. A
/// segment of a task is the keys of one source.
template <class Config>
class RingAttentionFeed {
 public:
  /// What says which half this launch uses changes only when every CTA has ended, as the epoch does.
  __device__ __forceinline__ RingAttentionFeed(const RingAttentionParameters& p,
                                               RingAttentionShared<Config>& shared)
      : p_(p),
        shared_(shared),
        epoch_(p.endpoint.control->epoch),
        gathered_(p.gathered + (p.endpoint.lent->launches & 1) * p.gather.world * KvGatherPlan::kTensors) {}

  __device__ __forceinline__ bool next(AttentionTask& task) const {
    const std::uint64_t claimed = ptx::atom_add_relaxed_gpu(&p_.counters->next_task[epoch_ & 1], 1);
    if (claimed >= static_cast<std::uint64_t>(p_.tasks.tasks())) return false;
    const AttentionTasks::Place place = p_.tasks.place(static_cast<std::int32_t>(claimed));
    const KvGatherPlan& gather = p_.gather;
    const std::int32_t positions = gather.positions(gather.rank);
    const std::int32_t part = place.tile < p_.first_tiles ? 0 : 1;
    const std::int32_t begin = part == 0 ? 0 : gather.part_rows[gather.rank][0];
    task.part = part;
    task.query = (place.tile - part * p_.first_tiles) * Config::kTileQueries;
    task.queries = gather.part_rows[gather.rank][part];
    task.batch = place.batch;
    task.query_first = place.batch * positions + begin;
    task.query_column = place.head * Config::kHeadDim;
    task.key_column = place.head / p_.group * Config::kHeadDim;
    task.lse = (std::int64_t{place.batch} * p_.heads + place.head) * positions + begin + task.query;
    // Of its own rank a query sees what a rank alone would see, for positions grow with the rows.
    const std::int32_t seen = begin + min(task.query + Config::kTileQueries, task.queries);
    task.first.keys = p_.causal ? seen : positions;
    task.first.visible = p_.causal ? begin + task.query + 1 : positions;
    task.key_tiles = task.first.tiles(Config::kTileKeys);
    for (int i = 1; i < segments(); ++i) task.key_tiles += segment(task, i).tiles(Config::kTileKeys);
    return true;
  }

  __device__ __forceinline__ const TensorMap& q(const AttentionTask& task) const { return p_.q[task.part]; }
  __device__ __forceinline__ const TensorMap& out(const AttentionTask& task) const {
    return p_.out[task.part];
  }
  __device__ __forceinline__ int segments() const { return p_.gather.world; }
  __device__ __forceinline__ AttentionSegment segment(const AttentionTask& task, int index) const {
    if (index == 0) return task.first;
    const std::int32_t keys = p_.gather.visible_keys(p_.gather.source(index), task.part);
    return {keys, keys};
  }
  /// Own rows are there; those of others when their chunks have been pushed here. It waits for all rows of
  /// the tile, the hidden ones too: what had not come might be no number, and no weight hides that.
  template <AttentionOperand kOperand>
  __device__ __forceinline__ AttentionRows rows(const AttentionTask& task, int segment, int row) const {
    constexpr int kTensor = kOperand == AttentionOperand::kKeys ? 0 : 1;
    const KvGatherPlan& gather = p_.gather;
    const std::int32_t source = gather.source(segment), positions = gather.positions(source);
    if (segment == 0) return {&p_.own[kTensor], task.key_column, task.batch * positions};
    const std::int32_t head = task.batch * gather.kv_heads + task.key_column / Config::kHeadDim;
    wait_kv_rows(p_, epoch_, source, kTensor, head, min(row + Config::kTileKeys, positions) - 1,
                 shared_.seen[kTensor][source]);
    return {&gathered_[source * KvGatherPlan::kTensors + kTensor], 0, head * positions};
  }
  __device__ __forceinline__ float scale() const { return p_.scale; }
  __device__ __forceinline__ float* lse() const { return p_.lse; }
  __device__ __forceinline__ const DeviceTrace& trace() const { return p_.endpoint.trace; }

 private:
  const RingAttentionParameters& p_;
  RingAttentionShared<Config>& shared_;
  const std::uint64_t epoch_;
  const TensorMap* const gathered_;
};

/// In a CTA 0 that computes, a whole warp of the producer warpgroup that has nothing more to load or store:
/// the idle one polls the host, the loading one waits for the chunks that no tile has waited for.
__device__ __forceinline__ void end_gather_beside_work(const RingAttentionParameters& p,
                                                       const LaunchBegin& begin, int warp) {
  LaunchControl& control = *p.endpoint.control;
  if (warp == 3) poll_beside_work(p.endpoint, begin);
  if (warp != 0) return;
  wait_all_kv(p, begin.epoch);
  leave_poller(control);
}

/// The whole kernel, with the CTA's shared memory.
template <class Config>
__device__ __forceinline__ void ring_attention_cta(const RingAttentionParameters& p, std::byte* memory) {
  LaunchControl& control = *p.endpoint.control;
  if (p.endpoint.lent->stopped != 0) return count_out(control, p.endpoint.lent);
  const LaunchBegin begin(control, p.endpoint.lent);
  begin_role(p.endpoint.trace);
  if (static_cast<std::int32_t>(blockIdx.x) < p.comm_ctas) {
    if (blockIdx.x == 0 && threadIdx.x == 0) p.counters->next_task[(begin.epoch + 1) & 1] = 0;
    gather_kv<Config::kThreads / 32>(p, *reinterpret_cast<KvFanOutShared*>(memory), p.rails == 0);
    end_role(p.endpoint.trace, DeviceRole::kIntraComm);
    if (blockIdx.x == 0 && p.rails > 0) return;
    begin_role(p.endpoint.trace);
  }
  auto& shared = *reinterpret_cast<RingAttentionShared<Config>*>(memory);
  static_assert(KvGatherPlan::kTensors * kMaxKernelRanks <= Config::kThreads);
  if (threadIdx.x < KvGatherPlan::kTensors * kMaxKernelRanks) (&shared.seen[0][0])[threadIdx.x] = 0;
  if (threadIdx.x == 0) shared.begin = begin;
  attention_body(RingAttentionFeed<Config>(p, shared), shared.body, [&](int warp) {
    if (blockIdx.x == 0) end_gather_beside_work(p, shared.begin, warp);
  });
  if (blockIdx.x == 0) {
    end_launch(control, p.endpoint.lent, shared.begin);
  } else {
    end_cta(control);
  }
  end_role(p.endpoint.trace, DeviceRole::kCompute);
}

template <class Config>
__global__ __launch_bounds__(Config::kThreads, 1) void ring_attention_kernel(
    const __grid_constant__ RingAttentionParameters p) {
  extern __shared__ __align__(1024) std::byte memory[];
  if (!is_rehearsal(p.endpoint)) ring_attention_cta<Config>(p, memory);
}

}  // namespace mkernel::kernels
