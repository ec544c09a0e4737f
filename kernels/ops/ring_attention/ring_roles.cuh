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
  std::int32_t seen[KvGatherPlan::kTensors][kMaxKernelRanks];
};

/// Dynamic shared memory of a launch.
template <class Config>
constexpr std::size_t ring_attention_shared_bytes() {
  static_assert(sizeof(RingAttentionShared<Config>) <= 227 * 1024, "more than a CTA can have");
  static_assert(sizeof(FanOutShared) <= 227 * 1024, "more than a CTA can have");
  return sizeof(RingAttentionShared<Config>) > sizeof(FanOutShared) ? sizeof(RingAttentionShared<Config>)
                                                                    : sizeof(FanOutShared);
}

/// Until all shares of the chunk have been pushed here. False when it gave up. Over several nodes chunks come
/// through others, whose own waits end before this one.
__device__ __forceinline__ bool wait_kv_chunk(const RingAttentionParameters& p, std::uint64_t epoch,
                                              std::int32_t source, std::int32_t tensor, std::int32_t chunk,
                                              DeviceRole role) {
  const std::byte* words = p.words[p.local_rank] + p.gather.ready_offset(source, tensor);
  return wait_at_least(reinterpret_cast<const std::uint64_t*>(words) + chunk, p.gather.count(epoch),
                       {role, DeviceTag::kChunkReady, source, static_cast<std::uint32_t>(chunk)},
                       at_stage(wait_scope(p.endpoint), p.rails > 0 ? 1 : 0));
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

/// Whose rows the two streams of group `group` are: own ones first, then those of the rail peers, in the
/// order in which they come. The node before this one begins with it.
__device__ __forceinline__ std::int32_t source_of_streams(const RingAttentionParameters& p,
                                                          std::int32_t group) {
  return group == 0 ? p.gather.rank : p.rail[p.rails - group];
}

/// Keys or values of `source`. One thread.
__device__ __forceinline__ void describe_kv_stream(const RingAttentionParameters& p, std::int32_t source,
                                                   std::int32_t tensor, FanOutStream& stream) {
  const KvGatherPlan& gather = p.gather;
  const std::int32_t ranks = gather.near + 1;
  stream.rows = gather.rows(source);
  stream.chunks = gather.chunks(source);
  stream.rows_at = lent_half_at(p.endpoint.lent->launches, p.half_bytes) + gather.slab_offset(source, tensor);
  stream.ready_at = gather.ready_offset(source, tensor);
  stream.slab_rows = stream.rows;
  stream.slab_row = 0;
  if (source == gather.rank) {
    describe_own_rows(p.rows[tensor], ranks, p.rails > 0, stream);
  } else {
    describe_far_rows(p.lent[p.local_rank], ranks, stream);
  }
}

/// Own keys and values, chunk by chunk in turns; then likewise those of one rail peer after the other. One
/// thread.
__device__ __forceinline__ void describe_kv_streams(const RingAttentionParameters& p, FanOutPlan& plan) {
  const KvGatherPlan& gather = p.gather;
  plan.row = gather.row;
  plan.block_rows = gather.block_rows;
  plan.shares = gather.shares;
  plan.streams = (1 + p.rails) * KvGatherPlan::kTensors;
  plan.own_streams = plan.together = KvGatherPlan::kTensors;
  plan.most_chunks = gather.max_chunks;
  describe_targets(p.local_rank, gather.near + 1, p.lent, p.words, plan);
  for (std::int32_t i = 0; i < plan.streams; ++i)
    describe_kv_stream(p, source_of_streams(p, i / KvGatherPlan::kTensors), i % KvGatherPlan::kTensors,
                       plan.stream[i]);
}

/// inter_recv: until the chunk of a rail peer's stream has arrived, for bulk copies.
__device__ __forceinline__ bool wait_kv_put(const RingAttentionParameters& p, std::uint64_t epoch,
                                            const FanOutPlan::Turn& turn) {
  constexpr std::int32_t kTensors = KvGatherPlan::kTensors;
  const std::int32_t source = source_of_streams(p, turn.stream / kTensors);
  const std::uint64_t puts = p.gather.arrivals(epoch, source, turn.stream % kTensors, turn.chunk);
  if (!wait_arrival(p.endpoint, source, 0, puts, DeviceRole::kInterRecv)) return false;
  ptx::fence_proxy_async_global();
  return true;
}

/// Own chunks to one rail peer, as they become whole in the own slab. One thread. False when it gave up.
__device__ __forceinline__ bool put_own_kv(const RingAttentionParameters& p, std::uint64_t epoch,
                                           std::int32_t peer) {
  const KvGatherPlan& gather = p.gather;
  const std::int32_t me = gather.rank, chunks = gather.chunks(me);
  const std::uint64_t half = lent_half_at(p.endpoint.lent->launches, p.half_bytes);
  for (std::int32_t chunk = 0; chunk < chunks; ++chunk) {
    for (std::int32_t tensor = 0; tensor < KvGatherPlan::kTensors; ++tensor) {
      if (!wait_kv_chunk(p, epoch, me, tensor, chunk, DeviceRole::kInterSend)) return false;
      // Carries the stores of all pushing CTAs on to whoever reads the ring.
      const ptx::SysReleased released = ptx::fence_acq_rel_sys();
      const device::Place place{p.region, half + gather.slab_offset(me, tensor) + gather.chunk_offset(chunk)};
      const std::uint64_t bytes = gather.chunk_bytes(me, chunk);
      if (!put(p.endpoint, peer, 0, place, place, bytes, DeviceRole::kInterSend, released)) return false;
    }
  }
  return true;
}

/// inter_send: to one rail peer after the other, for a sweep needs one source after the other. One thread.
/// Ends when the sources of the puts may be overwritten: the halves rest on it, and whoever destroys the
/// operation after its last launch.
__device__ __forceinline__ void ring_attention_inter_send(const RingAttentionParameters& p,
                                                          std::uint64_t epoch) {
  for (std::int32_t i = 0; i < p.rails; ++i)
    if (!put_own_kv(p, epoch, p.rail[i])) return;
  const std::uint64_t puts = (epoch + 1) * p.gather.puts(p.gather.rank);
  for (std::int32_t i = 0; i < p.rails; ++i)
    if (!wait_completed(p.endpoint, p.rail[i], 0, puts, DeviceRole::kInterSend)) return;
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

/// intra_comm, then inter_recv: a CTA that pushes its share of every chunk: a warp loads, others store and
/// count. CTA 0 ends the launch here.
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
        load_fan_out(shared.plan, share, shared,
                     [&](const FanOutPlan::Turn& turn) { return wait_kv_put(p, epoch, turn); });
      } else if (warp <= kFanOutStorers) {
        store_fan_out(shared.plan, share, warp - 1, p.endpoint.trace, shared);
        if (warp == 1 && share == 0) wait_all_kv(p, epoch);
      }
    }
    __syncwarp();  // the lanes that had nothing to do meet the one that had
  };
  communicate<Config::kThreads / 32>(p.endpoint, p.rails > 0 ? 1 : 0, push,
                                     [&](int) { ring_attention_inter_send(p, epoch); });
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
  static_assert(KvGatherPlan::kTensors * kMaxKernelRanks <= Config::kThreads);
  if (threadIdx.x < KvGatherPlan::kTensors * kMaxKernelRanks) (&shared.seen[0][0])[threadIdx.x] = 0;
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
