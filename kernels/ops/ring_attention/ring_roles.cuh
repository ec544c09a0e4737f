// Ring attention on the cuda executor: the roles of its CTAs. See README.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/lent_workspace.h"
#include "kernels/cuda/attention/sm90_attention.cuh"
#include "kernels/cuda/comm/endpoint.cuh"
#include "kernels/cuda/comm/fan_out.cuh"
#include "kernels/cuda/launch/end.cuh"
#include "kernels/cuda/launch/first_cta.cuh"
#include "kernels/cuda/ptx/fence.cuh"
#include "kernels/cuda/ptx/global.cuh"
#include "kernels/cuda/sync/wait.cuh"
#include "kernels/ops/ring_attention/ring_parameters.h"

namespace mkernel::kernels {

static_assert(KvGatherPlan::kMostRowBytes <= kFanOutPieceBytes);

template <class Config>
struct RingAttentionShared {
  AttentionShared<Config> body;
  /// Of the loading thread: so many chunks of a source, from its first one on, were seen in this launch.
  std::int32_t seen[KvGatherPlan::kTensors][kMaxNodeRanks];
};

/// Dynamic shared memory of a launch.
template <class Config>
constexpr std::size_t ring_attention_shared_bytes() {
  static_assert(sizeof(RingAttentionShared<Config>) <= 227 * 1024, "more than a CTA can have");
  static_assert(sizeof(FanOutShared) <= 227 * 1024, "more than a CTA can have");
  return sizeof(RingAttentionShared<Config>) > sizeof(FanOutShared) ? sizeof(RingAttentionShared<Config>)
                                                                    : sizeof(FanOutShared);
}

/// Until all shares of the chunk have been pushed here. False when it gave up.
__device__ __forceinline__ bool wait_kv_chunk(const RingAttentionParameters& p, std::uint64_t epoch,
                                              std::int32_t source, std::int32_t tensor, std::int32_t chunk,
                                              DeviceRole role) {
  const std::byte* words = p.words[p.gather.rank] + p.gather.ready_offset(source, tensor);
  return wait_at_least(reinterpret_cast<const std::uint64_t*>(words) + chunk, p.gather.count(epoch),
                       {role, DeviceTag::kChunkReady, source, static_cast<std::uint32_t>(chunk)},
                       wait_scope(p.endpoint));
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
    task.first.keys = Config::kCausal ? seen : positions;
    task.first.visible = Config::kCausal ? begin + task.query + 1 : positions;
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
    const std::int32_t source = p_.gather.source(segment), positions = p_.gather.positions(source);
    const std::int32_t first = task.batch * positions;
    if (segment == 0) return {&p_.own[kTensor], first};
    const std::int32_t last = first + min(row + Config::kTileKeys, positions) - 1;
    wait_chunks(source, kTensor, last / p_.gather.block_rows);
    return {&gathered_[source * KvGatherPlan::kTensors + kTensor], first};
  }
  __device__ __forceinline__ float scale() const { return p_.scale; }
  __device__ __forceinline__ float* lse() const { return p_.lse; }
  __device__ __forceinline__ const DeviceTrace& trace() const { return p_.endpoint.trace; }

 private:
  /// Up to chunk `last`: those before it too, so that one number says what was seen.
  __device__ __forceinline__ void wait_chunks(std::int32_t source, std::int32_t tensor,
                                              std::int32_t last) const {
    std::int32_t& seen = shared_.seen[tensor][source];
    if (last < seen) return;
    std::int32_t chunk = seen;
    for (; chunk <= last; ++chunk) {
      if (wait_kv_chunk(p_, epoch_, source, tensor, chunk, DeviceRole::kCompute)) continue;
      chunk = p_.gather.max_chunks;  // the launch has failed: no more waits
      break;
    }
    seen = chunk;
    // What was acquired was written by others' copies; TMA reads it next.
    ptx::fence_proxy_async_global();
  }

  const RingAttentionParameters& p_;
  RingAttentionShared<Config>& shared_;
  const std::uint64_t epoch_;
  const TensorMap* const gathered_;
};

/// Own keys and values, chunk by chunk in turns. Stream 0, which comes before all others, has no chunks. (The
/// streams of rail peers would follow, two each.) One thread.
__device__ __forceinline__ void describe_kv_streams(const RingAttentionParameters& p, FanOutPlan& plan) {
  const KvGatherPlan& gather = p.gather;
  const std::int32_t me = gather.rank, others = gather.world - 1;
  plan.row = gather.row;
  plan.block_rows = gather.block_rows;
  plan.shares = gather.shares;
  plan.streams = 1 + KvGatherPlan::kTensors;
  plan.most_chunks = others > 0 ? gather.chunks(me) : 0;
  // Everybody begins with the next rank: nobody is written by all at a time.
  for (std::int32_t t = 0; t < others; ++t) {
    const std::int32_t target = (me + 1 + t) % gather.world;
    plan.target[t] = {p.lent[target], p.words[target]};
  }
  const std::uint64_t half = lent_half_at(p.endpoint.lent->launches, p.half_bytes);
  plan.stream[0] = {};
  for (std::int32_t tensor = 0; tensor < KvGatherPlan::kTensors; ++tensor) {
    plan.stream[1 + tensor] = {.source = p.rows[tensor],
                               .in_parts = false,
                               .rows = gather.rows(me),
                               .chunks = plan.most_chunks,
                               .stores = others,
                               .targets = others,
                               .rows_at = half + gather.slab_offset(me, tensor),
                               .ready_at = gather.ready_offset(me, tensor)};
  }
}

/// All chunks of all other ranks: a launch that ends has nothing on its way to it. One thread.
__device__ __forceinline__ void wait_all_kv(const RingAttentionParameters& p, std::uint64_t epoch) {
  for (std::int32_t step = 1; step < p.gather.world; ++step) {
    const std::int32_t source = p.gather.source(step);
    for (std::int32_t chunk = 0; chunk < p.gather.chunks(source); ++chunk) {
      for (std::int32_t tensor = 0; tensor < KvGatherPlan::kTensors; ++tensor)
        if (!wait_kv_chunk(p, epoch, source, tensor, chunk, DeviceRole::kIntraComm)) return;
    }
  }
}

/// intra_comm: a CTA that pushes its share of every chunk: a warp loads, others store and count. CTA 0 ends
/// the launch here.
template <class Config>
__device__ __forceinline__ void ring_attention_communicate(const RingAttentionParameters& p,
                                                           FanOutShared& shared) {
  const std::uint64_t epoch = p.endpoint.control->epoch;  // advanced only when every CTA has ended
  const auto share = static_cast<int>(blockIdx.x);
  if (threadIdx.x == 0) {
    describe_kv_streams(p, shared.plan);
    if (share == 0) p.counters->next_task[(epoch + 1) & 1] = 0;
  }
  init_fan_out(shared);
  const auto push = [&](int warp) {
    if (threadIdx.x % 32 == 0) {
      if (warp == 0) {
        load_fan_out(shared.plan, share, shared, [](const FanOutPlan::Turn&) { return true; });
      } else if (warp <= kFanOutStorers) {
        store_fan_out(shared.plan, share, warp - 1, p.endpoint.trace, shared);
        if (warp == 1 && share == 0) wait_all_kv(p, epoch);
      }
    }
    __syncwarp();  // the lanes that had nothing to do meet the one that had
  };
  communicate<Config::kThreads / 32>(p.endpoint, 0, push, [](int) {});
  end_fan_out(shared);
}

/// The whole kernel, with the CTA's shared memory.
template <class Config>
__device__ __forceinline__ void ring_attention_cta(const RingAttentionParameters& p, std::byte* memory) {
  LaunchControl& control = *p.endpoint.control;
  if (p.endpoint.lent->stopped != 0) return count_out(control, p.endpoint.lent);
  begin_role(p.endpoint.trace);
  if (static_cast<std::int32_t>(blockIdx.x) < p.comm_ctas) {
    ring_attention_communicate<Config>(p, *reinterpret_cast<FanOutShared*>(memory));
    end_role(p.endpoint.trace, DeviceRole::kIntraComm);
    if (blockIdx.x == 0) return;
    begin_role(p.endpoint.trace);
  }
  auto& shared = *reinterpret_cast<RingAttentionShared<Config>*>(memory);
  if (threadIdx.x < KvGatherPlan::kTensors * kMaxNodeRanks) (&shared.seen[0][0])[threadIdx.x] = 0;
  attention_body(RingAttentionFeed<Config>(p, shared), shared.body);
  end_cta(control);
  end_role(p.endpoint.trace, DeviceRole::kCompute);
}

template <class Config>
__global__ __launch_bounds__(Config::kThreads, 1) void ring_attention_kernel(
    const __grid_constant__ RingAttentionParameters p) {
  extern __shared__ __align__(1024) std::byte memory[];
  ring_attention_cta<Config>(p, memory);
}

}  // namespace mkernel::kernels
