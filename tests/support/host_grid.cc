#include "tests/support/host_grid.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "tests/support/host_stack.h"

namespace mkernel::test {
namespace {

struct Fiber;

/// Threads that wait until `expected` of them are here.
struct Meeting {
  std::uint32_t here = 0;
  std::vector<Fiber*> waiting;
};

struct Exchange {
  /// What the lanes gave: of this exchange and of the one before, which a slow lane may still read. A lane
  /// gives to the next one only when all have given to this one.
  std::array<std::array<std::uint64_t, 32>, 2> given{};
  std::array<std::uint32_t, 32> turn{};  ///< by lane
};

struct Warp {
  std::map<std::uint32_t, Meeting> meetings;    ///< by mask
  std::map<std::uint32_t, Exchange> exchanges;  ///< by mask
};

struct Block {
  std::map<std::uint32_t, Meeting> barriers;  ///< by number
  std::vector<Warp> warps;
  bool all = true;  ///< of host_all_of_cta()
};

struct ClusterMeeting {
  Meeting meeting;
  std::uint32_t threads = 0;
};

void enter();

struct Fiber {
  HostStack stack{enter};
  HostThread self;
  Block* block = nullptr;
  const std::function<void()>* body = nullptr;
  ClusterMeeting* cluster = nullptr;
  bool serves = false;
  bool done = false;

  Warp& warp() const { return block->warps[self.thread.x / 32]; }
};

/// The one thread's; nothing here is shared with another.
thread_local HostStack scheduler;
thread_local Fiber* running = nullptr;
thread_local std::deque<Fiber*> ready;
thread_local std::size_t unfinished = 0;
thread_local std::uint64_t clock_ns = 1'000'000'000;  // 0 means for some waits that they have not begun

void to_scheduler(bool ends) {
  running->stack.change_to(scheduler, ends);
}

void enter() {
  (*running->body)();
  running->done = true;
  if (!running->serves) --unfinished;
  to_scheduler(true);
}

void run_fiber(Fiber& fiber) {
  running = &fiber;
  scheduler.change_to(fiber.stack);
  running = nullptr;
}

/// Whether the running thread is the last one, for whom the others have waited.
bool arrive(Meeting& meeting, std::uint32_t expected) {
  if (++meeting.here < expected) return false;
  meeting.here = 0;
  ready.insert(ready.end(), meeting.waiting.begin(), meeting.waiting.end());
  meeting.waiting.clear();
  return true;
}

void meet(Meeting& meeting, std::uint32_t expected) {
  if (arrive(meeting, expected)) return;
  meeting.waiting.push_back(running);
  to_scheduler(false);
}

}  // namespace

const HostThread& host_thread() {
  return running->self;
}

std::uint64_t host_clock_ns() {
  return clock_ns += kHostRoundNs / 100;  // some threads only look at it until it is late enough
}

void host_yield() {
  ready.push_back(running);
  to_scheduler(false);
}

bool host_is_over() {
  return unfinished == 0;
}

void host_cluster_sync() {
  meet(running->cluster->meeting, running->cluster->threads);
}

void host_warp_sync(std::uint32_t mask) {
  meet(running->warp().meetings[mask], static_cast<std::uint32_t>(__builtin_popcount(mask)));
}

void host_barrier(std::uint32_t id, std::uint32_t threads) {
  meet(running->block->barriers[id], threads);
}

void host_barrier_arrive(std::uint32_t id, std::uint32_t threads) {
  arrive(running->block->barriers[id], threads);
}

bool host_all_of_cta(bool mine) {
  Block& block = *running->block;
  const std::uint32_t threads = running->self.block_size.x;
  if (!mine) block.all = false;
  host_barrier(0, threads);
  const bool all = block.all;
  host_barrier(0, threads);
  block.all = true;
  return all;
}

const std::uint64_t* host_exchange(std::uint32_t mask, std::uint64_t mine) {
  Exchange& exchange = running->warp().exchanges[mask];
  const std::uint32_t lane = running->self.thread.x % 32;
  auto& given = exchange.given[exchange.turn[lane]++ % 2];
  given[lane] = mine;
  host_warp_sync(mask);
  return given.data();
}

struct HostGrid::Cluster {
  Cluster(std::uint32_t size, std::uint32_t threads, std::size_t bytes) {
    constexpr std::size_t kPeriod = 1024;  // of the swizzle
    constexpr std::byte kPoison{0xff};     // not a number, whatever its type
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      memory.push_back(std::make_unique<std::byte[]>(bytes + kPeriod));
      std::fill_n(memory.back().get(), bytes + kPeriod, kPoison);
      const auto address = reinterpret_cast<std::uintptr_t>(memory.back().get());
      shared.push_back(memory.back().get() + (kPeriod - address % kPeriod) % kPeriod);
    }
    meeting.threads = size * threads;
  }
  std::vector<std::unique_ptr<std::byte[]>> memory;
  std::vector<std::byte*> shared;  ///< by rank
  ClusterMeeting meeting;
};

void HostGrid::add_cluster(std::uint32_t block, std::uint32_t size, std::uint32_t blocks,
                           std::uint32_t threads, std::size_t shared_bytes,
                           const std::function<void()>& body) {
  const auto cluster = std::make_shared<Cluster>(size, threads, shared_bytes);
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    add(block + rank, blocks, threads, body);
    ctas_.back().first.cluster_rank = rank;
    ctas_.back().first.cluster_shared = cluster->shared.data();
    ctas_.back().cluster = static_cast<std::int32_t>(clusters_.size());
  }
  clusters_.push_back(cluster);
}

void HostGrid::add_service(std::function<void()> body) {
  add(0, 1, 1, std::move(body));
  ctas_.back().serves = true;
}

void HostGrid::add(std::uint32_t block, std::uint32_t blocks, std::uint32_t threads,
                   std::function<void()> body) {
  ctas_.push_back({{{}, {block}, {threads, 1, 1}, {blocks, 1, 1}}, threads, std::move(body)});
}

void HostGrid::run() {
  std::vector<std::unique_ptr<Block>> blocks;
  std::vector<std::unique_ptr<Fiber>> fibers;
  for (const Cta& cta : ctas_) {
    blocks.push_back(std::make_unique<Block>());
    blocks.back()->warps.resize((cta.threads + 31) / 32);
    for (std::uint32_t thread = 0; thread < cta.threads; ++thread) {
      auto fiber = std::make_unique<Fiber>();
      fiber->self = cta.first;
      fiber->self.thread.x = thread;
      fiber->block = blocks.back().get();
      fiber->body = &cta.body;
      fiber->serves = cta.serves;
      if (cta.cluster >= 0) fiber->cluster = &clusters_[static_cast<std::size_t>(cta.cluster)]->meeting;
      ready.push_back(fiber.get());
      fibers.push_back(std::move(fiber));
    }
  }
  unfinished = static_cast<std::size_t>(
      std::count_if(fibers.begin(), fibers.end(), [](const auto& fiber) { return !fiber->serves; }));
  for (; !ready.empty(); clock_ns += kHostRoundNs) {
    for (std::size_t turns = ready.size(); turns > 0; --turns) {
      Fiber* next = ready.front();
      ready.pop_front();
      run_fiber(*next);
    }
  }
  const auto stuck =
      std::count_if(fibers.begin(), fibers.end(), [](const auto& fiber) { return !fiber->done; });
  if (stuck > 0) throw std::runtime_error(std::to_string(stuck) + " threads wait at barriers for others");
}

}  // namespace mkernel::test
