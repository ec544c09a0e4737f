// Stages of shared memory that go round between those who fill them and those who empty them.
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx/address.cuh"
#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/sync/launch_control.h"

namespace mkernel::kernels {

/// The barriers of a pipeline, in shared memory.
template <int kStages>
struct PipelineBarriers {
  std::uint64_t full[kStages];
  std::uint64_t empty[kStages];
};

/// One thread's place in a pipeline: barriers, stage and phase. Every thread that takes part makes its own
/// and advances it once per stage, in the same order.
template <int kStages>
class Pipeline {
 public:
  /// By one thread, before the barrier that lets the others in; a stage is full after `full_arrivals` (and
  /// the bytes they announce), empty again after `empty_arrivals`. All stages start empty. Of several threads
  /// each sets up stages `first` .. `end` - 1 of its own.
  static __device__ __forceinline__ void init(PipelineBarriers<kStages>& barriers, int full_arrivals,
                                              int empty_arrivals, int first = 0, int end = kStages) {
    for (int stage = first; stage < end; ++stage) {
      ptx::mbarrier_init(ptx::shared_address(&barriers.full[stage]), full_arrivals);
      ptx::mbarrier_init(ptx::shared_address(&barriers.empty[stage]), empty_arrivals);
    }
  }

  /// By one thread, after the others and before the memory of the barriers becomes something else.
  static __device__ __forceinline__ void end(PipelineBarriers<kStages>& barriers) {
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::mbarrier_inval(ptx::shared_address(&barriers.full[stage]));
      ptx::mbarrier_inval(ptx::shared_address(&barriers.empty[stage]));
    }
  }

  explicit __device__ __forceinline__ Pipeline(PipelineBarriers<kStages>& barriers)
      : barriers_(ptx::shared_address(&barriers)) {}
  /// As if advanced `steps` times. Of few stages that costs less than to keep several pipelines in step.
  __device__ __forceinline__ Pipeline(PipelineBarriers<kStages>& barriers, std::uint32_t steps)
      : barriers_(ptx::shared_address(&barriers)),
        phase_(steps / kStages % 2),
        stage_(static_cast<int>(steps % kStages)) {}

  __device__ __forceinline__ int stage() const { return stage_; }
  __device__ __forceinline__ std::uint32_t full_barrier() const { return barriers_ + 8 * stage_; }
  __device__ __forceinline__ std::uint32_t empty_barrier() const {
    return barriers_ + 8 * (kStages + stage_);
  }

  __device__ __forceinline__ void advance() {
    if (++stage_ == kStages) {
      stage_ = 0;
      phase_ ^= 1;
    }
  }

  // Filling. The first lap finds every stage empty: the phase "before" the first one counts as complete.
  __device__ __forceinline__ void wait_empty() const {
    wait([this] { return ptx::mbarrier_try_wait_parity_acquire_cta(empty_barrier(), phase_ ^ 1); });
  }
  /// When CTAs of the cluster empty this CTA's stage too (arrive_empty_at()). Relaxed: whoever refills the
  /// stage by TMA overwrites what wgmma has read, and those reads were complete (wgmma_wait_group()) before
  /// the arrival.
  __device__ __forceinline__ void wait_empty_cluster() const {
    wait([this] { return ptx::mbarrier_try_wait_parity_relaxed_cluster(empty_barrier(), phase_ ^ 1); });
  }
  __device__ __forceinline__ void arrive_full() const { ptx::mbarrier_arrive_release_cta(full_barrier()); }
  /// For the stage of the same number in CTA `cta` of the cluster, which this thread has written.
  __device__ __forceinline__ void arrive_full_at(std::uint32_t cta) const {
    ptx::mbarrier_arrive_release_cluster(ptx::map_to_cta(full_barrier(), cta));
  }
  /// Arrives; the stage is full when `bytes` bytes of asynchronous copies have come in as well.
  __device__ __forceinline__ void arrive_full_expect(std::uint32_t bytes) const {
    ptx::mbarrier_arrive_expect_tx_release_cta(full_barrier(), bytes);
  }

  // Emptying.
  __device__ __forceinline__ void wait_full() const {
    wait([this] { return ptx::mbarrier_try_wait_parity_acquire_cta(full_barrier(), phase_); });
  }
  /// When another CTA of the cluster fills this CTA's stage too (arrive_full_at()).
  __device__ __forceinline__ void wait_full_cluster() const {
    wait([this] { return ptx::mbarrier_try_wait_parity_acquire_cluster(full_barrier(), phase_); });
  }
  /// Whether wait_full() would return at once.
  __device__ __forceinline__ bool test_full() const {
    return ptx::mbarrier_test_wait_parity_acquire_cta(full_barrier(), phase_);
  }
  __device__ __forceinline__ void arrive_empty() const { ptx::mbarrier_arrive_release_cta(empty_barrier()); }
  /// For the stage of the same number in CTA `cta` of the cluster; the stage was read, not written. Relaxed:
  /// see wait_empty_cluster().
  __device__ __forceinline__ void arrive_empty_at(std::uint32_t cta) const {
    ptx::mbarrier_arrive_relaxed_cluster(ptx::map_to_cta(empty_barrier(), cta));
  }

 private:
  /// Both ends of a pipeline are in this kernel. Behind a wait here are at most two remote ones, one after
  /// the other (of the fan-out's storers each waits for the turn of the one before), and none of them takes
  /// longer than 7/4 of the longest deadline. A wait that outlasts them is a bug of ours: the fault makes it
  /// an error of the launch, not a hang.
  template <typename Complete>
  static __device__ __forceinline__ void wait(Complete complete) {
    constexpr auto kLimit = static_cast<std::uint32_t>(4 * kLongestDeadlineNs >> 30);  // x 2^30 ns
    std::uint32_t begin = 0;
    for (std::uint32_t round = 1; !complete(); ++round) {
      if (round % 1024 != 0) continue;
      const auto now = static_cast<std::uint32_t>(ptx::globaltimer() >> 30) + 1;
      if (begin == 0) begin = now;
      if (now - begin > kLimit) ptx::st_fault();
    }
  }

  std::uint32_t barriers_;
  std::uint32_t phase_ = 0;
  int stage_ = 0;
};

}  // namespace mkernel::kernels
