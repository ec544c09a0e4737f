// The backward pass of ring attention on the cuda executor: the roles of its CTAs. See README.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/lent_workspace.h"
#include "kernels/cuda/attention/sm90_backward.cuh"
#include "kernels/cuda/launch/end.cuh"
#include "kernels/cuda/launch/rehearsal.cuh"
#include "kernels/cuda/ptx/bulk.cuh"
#include "kernels/cuda/ptx/fence.cuh"
#include "kernels/cuda/ptx/global.cuh"
#include "kernels/ops/ring_attention/attention_backward/queries.cuh"
#include "kernels/ops/ring_attention/backward/key_sums.cuh"
#include "kernels/ops/ring_attention/backward/parameters.h"
#include "kernels/ops/ring_attention/gather.cuh"

namespace mkernel::kernels {

/// Dynamic shared memory of a launch.
template <class Config>
constexpr std::size_t ring_backward_shared_bytes() {
  constexpr std::size_t kBody = sizeof(AttentionBackwardShared<Config>);
  static_assert(kBody <= 227 * 1024, "more than a CTA can have");
  static_assert(sizeof(KvFanOutShared) <= 227 * 1024, "more than a CTA can have");
  return kBody > sizeof(KvFanOutShared) ? kBody : sizeof(KvFanOutShared);
}

/// compute: the feed. CTAs take the tasks of the plan in order, each the next one as soon as it has time.
template <class Config>
class RingBackwardFeed : public AttentionBackwardQueryFeed<Config> {
 public:
  using Parameters = RingBackwardParameters;

  explicit __device__ __forceinline__ RingBackwardFeed(const RingBackwardParameters& p)
      : AttentionBackwardQueryFeed<Config>(p.endpoint, p), p_(p) {}

  /// Those of launches of that parity. One thread.
  static __device__ __forceinline__ void zero_counters(const Parameters& p, std::uint64_t parity) {
    p.counters->next_task[parity] = p.counters->next_unit[parity] = 0;
  }

  __device__ __forceinline__ bool next(AttentionBackwardTask& task) const {
    return claim(task, [this](std::int32_t number) { return p_.tasks.place(p_.gather, number); });
  }

  /// Tiles are numbered over both parts.
  __device__ __forceinline__ const TensorMap& q(int tile) const { return p_.q[part_of(tile)]; }
  __device__ __forceinline__ const TensorMap& d_out(int tile) const { return p_.d_out[part_of(tile)]; }
  __device__ __forceinline__ const TensorMap& k(const AttentionBackwardTask& task) const {
    return rows_of(task, 0);
  }
  __device__ __forceinline__ const TensorMap& v(const AttentionBackwardTask& task) const {
    return rows_of(task, 1);
  }

  __device__ __forceinline__ std::int32_t turn(const AttentionBackwardTask& task, int tile) const {
    return p_.tasks.turn(task.before, tile);
  }

  /// Into the slot at their owner; its word there.
  __device__ __forceinline__ std::uint64_t* store_keys(const AttentionBackwardTask& task, int offset,
                                                       std::uint32_t d_keys, std::uint32_t d_values) const {
    return store_into(task, offset, d_keys, d_values, p_.gather.rank);
  }
  /// A task whose waits gave up has computed from whatever there was: it is not for other ranks, whose
  /// launches would count as good. Such a wait sets `abort` before this thread gets what was computed.
  __device__ __forceinline__ void announce(std::uint64_t* word) const {
    ptx::bulk_wait_group<0>();
    if (ptx::ld_acquire_gpu(&p_.endpoint.control->abort) != 0) return;
    const ptx::SysReleased released = ptx::fence_acq_rel_sys();
    ptx::st_relaxed_sys(word, KeyPartialsPlan::count(this->epoch()), released);
  }

  __device__ __forceinline__ void finish() const {
    finish_pieces([this](std::int32_t piece) { sum_keys<Config>(p_, piece); });
  }

 protected:
  /// The next task, where place_of(number) says it is. False: there are no more.
  template <class PlaceOf>
  __device__ __forceinline__ bool claim(AttentionBackwardTask& task, const PlaceOf& place_of) const {
    const std::uint64_t claimed = ptx::atom_add_relaxed_gpu(&p_.counters->next_task[this->epoch() & 1], 1);
    if (claimed >= static_cast<std::uint64_t>(p_.tasks.tasks())) return false;
    const RingBackwardTasks::Place place = place_of(static_cast<std::int32_t>(claimed));
    describe_queries(place, task);
    describe_keys(place, task);
    if (place.source != p_.gather.rank) wait_keys(place.head, task);
    return true;
  }

  /// Gradients of queries first: those of keys come from other ranks, too. `sum(piece)`: of own keys.
  template <class Sum>
  __device__ __forceinline__ void finish_pieces(const Sum& sum) const {
    const std::int32_t queries = p_.all_heads * p_.query_tiles;
    const std::int32_t all = queries + key_sum_pieces(p_);
    for (;;) {
      const std::uint64_t claimed = this->claim_left();
      if (claimed >= static_cast<std::uint64_t>(all)) return;
      const auto piece = static_cast<std::int32_t>(claimed);
      if (piece < queries) {
        narrow_backward_sums<Config>(p_.endpoint, p_, piece, p_.tasks.adds(piece % p_.query_tiles));
      } else {
        sum(piece - queries);
      }
    }
  }

  /// Into that slot of the unit; its word there.
  __device__ __forceinline__ std::uint64_t* store_into(const AttentionBackwardTask& task, int offset,
                                                       std::uint32_t d_keys, std::uint32_t d_values,
                                                       std::int32_t number) const {
    const KeyPartialsPlan& partials = p_.partials;
    const std::int32_t unit = task.unit + offset / KeyPartialsPlan::kRows;
    const auto at = static_cast<std::int32_t>(p_.local_of[task.source]);
    std::byte* slot = p_.lent[at] + lent_half_at(p_.endpoint.lent->launches, p_.half_bytes) +
                      partials.slot_offset(number, unit);
#pragma unroll
    for (int tensor = 0; tensor < KeyPartialsPlan::kTensors; ++tensor) {
#pragma unroll
      for (int box = 0; box < Config::kBoxes; ++box, slot += KeyPartialsPlan::kBoxBytes) {
        ptx::bulk_store(slot, (tensor == 0 ? d_keys : d_values) + box * Config::kKeyBoxBytes,
                        KeyPartialsPlan::kBoxBytes);
      }
    }
    return reinterpret_cast<std::uint64_t*>(p_.words[at] + partials.word_offset(number, unit));
  }

 private:
  __device__ __forceinline__ int part_of(int tile) const {
    return tile < p_.first_tiles ? 0 : 1;
  }

  __device__ __forceinline__ void describe_queries(const RingBackwardTasks::Place& place,
                                                   AttentionBackwardTask& task) const {
    const std::int32_t batch = place.head / p_.gather.kv_heads, kv_head = place.head % p_.gather.kv_heads;
    task.walk = p_.tasks.walk(place);
    task.heads = p_.group;
    task.steps = AttentionBackwardSteps(task.walk, task.heads).steps();
    task.query_first = batch * p_.queries;
    task.query_column = kv_head * p_.group * Config::kHeadDim;
    task.head = place.head * p_.group;
    task.before[0] = place.before[0];
    task.before[1] = place.before[1];
  }

  /// Keys count from the first one of their rank.
  __device__ __forceinline__ void describe_keys(const RingBackwardTasks::Place& place,
                                                AttentionBackwardTask& task) const {
    constexpr std::int32_t kAll = 1 << 30;  // what every query sees
    const KvGatherPlan& gather = p_.gather;
    const bool own = place.source == gather.rank;
    const std::int32_t batch = place.head / gather.kv_heads, positions = gather.positions(place.source);
    const std::int32_t begin = place.part == 0 ? 0 : gather.part_rows[place.source][0];
    const std::int32_t row = place.tile * Config::kTileKeys;
    task.key = begin + row;
    task.keys = begin + gather.part_rows[place.source][place.part];
    task.key_first = (own ? batch : place.head) * positions;
    task.key_column = own ? place.head % gather.kv_heads * Config::kHeadDim : 0;
    // On the diagonal of its second part a query counts from where its tiles do.
    task.first_key = !own ? kAll : place.part == 0 ? 0 : begin - p_.first_tiles * Config::kTileQueries;
    task.source = place.source;
    task.unit = KeyPartialsPlan::unit(gather, place.source, place.part, place.head, row);
  }

  /// Until all rows that are loaded are here, the hidden ones too: what had not come might be no number, and
  /// no weight hides that.
  __device__ __forceinline__ void wait_keys(std::int32_t head, const AttentionBackwardTask& task) const {
    const KvGatherPlan& gather = p_.gather;
    const std::int32_t behind = min(task.key + Config::kTileKeys, gather.positions(task.source));
    const std::int32_t last = gather.chunk_of(head, behind - 1);
    for (std::int32_t chunk = gather.chunk_of(head, task.key); chunk <= last; ++chunk) {
      for (std::int32_t tensor = 0; tensor < KvGatherPlan::kTensors; ++tensor)
        wait_kv_chunk(p_, this->epoch(), task.source, tensor, chunk, DeviceRole::kCompute);
    }
    // What was acquired was written by others' copies; TMA reads it next.
    ptx::fence_proxy_async_global();
  }

  __device__ __forceinline__ const TensorMap& rows_of(const AttentionBackwardTask& task, int tensor) const {
    if (task.source == p_.gather.rank) return p_.own[tensor];
    const auto half = static_cast<std::int32_t>(p_.endpoint.lent->launches & 1);
    return p_.gathered[(half * p_.gather.world + task.source) * KvGatherPlan::kTensors + tensor];
  }

  const RingBackwardParameters& p_;
};

/// The whole kernel, with the CTA's shared memory. CTAs that push keys and values compute afterwards; the
/// others prepare the rows of queries meanwhile. `after`: as of gather_kv().
template <class Config, class Feed = RingBackwardFeed<Config>, class After = NothingAfterGather>
__device__ __forceinline__ void ring_backward_cta(const typename Feed::Parameters& p, std::byte* memory,
                                                  const After& after = {}) {
  LaunchControl& control = *p.endpoint.control;
  if (p.endpoint.lent->stopped != 0) return count_out(control, p.endpoint.lent);
  begin_role(p.endpoint.trace);
  const auto cta = static_cast<std::int32_t>(blockIdx.x);
  if (cta < p.comm_ctas) {
    if (cta == 0 && threadIdx.x == 0) Feed::zero_counters(p, (control.epoch + 1) & 1);
    gather_kv<Config::kThreads / 32>(p, *reinterpret_cast<KvFanOutShared*>(memory), false, after);
    end_role(p.endpoint.trace, DeviceRole::kIntraComm);
    if (cta == 0) return;
    begin_role(p.endpoint.trace);
  } else {
    prepare_all_backward_rows<Config>(p, cta - p.comm_ctas);
  }
  attention_backward_body(Feed(p), *reinterpret_cast<AttentionBackwardShared<Config>*>(memory));
  end_cta(control);
  end_role(p.endpoint.trace, DeviceRole::kCompute);
}

template <class Config>
__global__ __launch_bounds__(Config::kThreads,
                             1) void ring_backward_kernel(const __grid_constant__ RingBackwardParameters p) {
  extern __shared__ __align__(1024) std::byte memory[];
  if (!is_rehearsal(p.endpoint)) ring_backward_cta<Config>(p, memory);
}

}  // namespace mkernel::kernels
