// A grid of CUDA threads on one thread of the host: every one of them is a fiber that runs until it waits. So
// roles of kernels that need no tensor cores and no copy engine can be played anywhere, with the sanitizers
// watching. Fences mean nothing here: every fiber sees memory as the others left it.
//
// tests/support/on_host has CUDA's names for it (cuda_names.h) and what stands in for kernels/cuda/ptx.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace mkernel::test {

struct HostIndex {
  std::uint32_t x = 0, y = 0, z = 0;
};

/// What the CUDA thread that runs now is.
struct HostThread {
  HostIndex thread, block, block_size{1, 1, 1}, grid_size{1, 1, 1};
  std::uint32_t cluster_rank = 0;
  std::byte* const* cluster_shared = nullptr;  ///< by rank in the cluster: shared memory of its CTAs
};
const HostThread& host_thread();

/// The nanoseconds that the threads see pass: kHostRoundNs in every round of a grid. So a wait gives up after
/// as many rounds on any machine, however slow or busy it is.
std::uint64_t host_clock_ns();
constexpr std::uint64_t kHostRoundNs = 10'000;
/// Longer than any launch takes that is played.
constexpr std::uint64_t kHostPatienceNs = 10'000'000 * kHostRoundNs;

/// CTAs of any number of grids, which run at the same time: in rounds, in each of which every thread that
/// does not wait at a barrier has a turn.
class HostGrid {
 public:
  /// Adds a CTA: `body` is called by each of its `threads` threads.
  void add(std::uint32_t block, std::uint32_t blocks, std::uint32_t threads, std::function<void()> body);
  /// Adds a cluster of `size` CTAs, from `block` on, each with `shared_bytes` of shared memory, in which no
  /// number is one before it is written.
  void add_cluster(std::uint32_t block, std::uint32_t size, std::uint32_t blocks, std::uint32_t threads,
                   std::size_t shared_bytes, const std::function<void()>& body);
  /// Adds a thread that serves the others until host_is_over().
  void add_service(std::function<void()> body);
  /// Until every thread has returned. Throws std::runtime_error when all wait for each other at barriers.
  void run();

 private:
  struct Cta {
    HostThread first;
    std::uint32_t threads;
    std::function<void()> body;
    std::int32_t cluster = -1;
    bool serves = false;
  };
  struct Cluster;
  std::vector<Cta> ctas_;
  std::vector<std::shared_ptr<Cluster>> clusters_;
};

// What a thread may wait with.

/// Lets others run.
void host_yield();
/// Whether all threads have returned but those that serve.
bool host_is_over();
/// All threads of the cluster: until all are here.
void host_cluster_sync();
/// The lanes of `mask` of this warp: until all are here.
void host_warp_sync(std::uint32_t mask);
/// `threads` threads of this CTA: until all are here.
void host_barrier(std::uint32_t id, std::uint32_t threads);
/// Counts as being there, and goes on.
void host_barrier_arrive(std::uint32_t id, std::uint32_t threads);
/// All threads of this CTA: whether all say so.
bool host_all_of_cta(bool mine);
/// The lanes of `mask`: each gives 64 bits and sees what all gave, by lane, until it calls this again.
const std::uint64_t* host_exchange(std::uint32_t mask, std::uint64_t mine);

}  // namespace mkernel::test
