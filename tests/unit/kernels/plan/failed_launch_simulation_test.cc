// Why a launch behind a failed one must do nothing, on the counts and slabs of AG+GEMM's plan: ranks as step
// machines that have launches queued, come late and give up waits at any moment. Whoever reports a launch as
// good has read that launch's rows, in every order of steps; with launches that go on behind a failed one
// there are orders in which it has not.
#include <doctest/doctest.h>

#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "kernels/ops/ag_gemm/plan.h"
#include "kernels/plan/topology.h"

namespace mkernel::kernels {
namespace {

constexpr std::int32_t kWorld = 3;
constexpr std::uint64_t kLaunches = 6;

/// What a rank's GPU goes through: the steps of a launch one after the other, launch after launch.
struct Rank {
  std::uint64_t epoch = 0;
  std::int32_t step = 0;  ///< of the launch: a push to each other rank, then a wait for each
  bool late = false;      ///< has not begun to launch
  bool abort = false;     ///< LaunchControl's
  bool stopped = false;
  bool wrong = false;  ///< has read another launch's rows in this launch
  bool lied = false;   ///< reported such a launch as good
};

class World {
 public:
  World(const PushGatherPlan& plan, bool stops, std::uint64_t seed)
      : plan_(plan), stops_(stops), random_(seed), ranks_(kWorld) {
    ranks_[kWorld - 1].late = true;
  }

  /// Until every rank is through its launches. Whether one of them reported a result that was not its own.
  bool lies() {
    for (;;) {
      std::vector<std::int32_t> open;
      for (std::int32_t r = 0; r < kWorld; ++r)
        if (ranks_[r].epoch < kLaunches) open.push_back(r);
      if (open.empty()) break;
      advance(open[random_() % open.size()]);
    }
    bool any = false;
    for (const Rank& rank : ranks_) any |= rank.lied;
    return any;
  }

 private:
  static std::int32_t other(std::int32_t rank, std::int32_t step) {
    return (rank + 1 + step % (kWorld - 1)) % kWorld;
  }

  void advance(std::int32_t r) {
    Rank& rank = ranks_[r];
    if (rank.late) {
      rank.late = random_() % 64 != 0;
    } else if (rank.stopped || rank.step == 2 * (kWorld - 1)) {
      end(rank);
    } else if (rank.step < kWorld - 1) {
      push(r, other(r, rank.step++));
    } else {
      wait(r, other(r, rank.step));
    }
  }

  void push(std::int32_t from, std::int32_t to) {
    const std::uint64_t epoch = ranks_[from].epoch;
    slab_[{to, plan_.slab_offset(epoch, from)}] = epoch;
    ready_[{to, from}] += plan_.count(epoch + 1) - plan_.count(epoch);
  }

  void wait(std::int32_t r, std::int32_t source) {
    Rank& rank = ranks_[r];
    if (ready_[{r, source}] >= plan_.count(rank.epoch)) {
      rank.wrong |= slab_[{r, plan_.slab_offset(rank.epoch, source)}] != rank.epoch;
    } else if (rank.abort || random_() % 16 == 0) {  // the deadline
      rank.abort = true;
    } else {
      return;
    }
    ++rank.step;
  }

  void end(Rank& rank) {
    rank.lied |= rank.wrong && !rank.abort;
    rank.stopped = stops_ && rank.abort;
    rank.wrong = false;
    rank.step = 0;
    ++rank.epoch;
  }

  const PushGatherPlan& plan_;
  const bool stops_;
  std::mt19937_64 random_;
  std::vector<Rank> ranks_;
  std::map<std::pair<std::int32_t, std::uint64_t>, std::uint64_t>
      slab_;  ///< [rank, offset]: whose launch's rows
  std::map<std::pair<std::int32_t, std::int32_t>, std::uint64_t> ready_;  ///< [rank, source]
};

}  // namespace

TEST_CASE("launches behind a failed one: who reports a good result has read its own launch's rows") {
  const auto plan = AgGemmPlan::make({300, 64, 64}, Topology(1, kWorld), 0, kH200);
  REQUIRE(plan.ok());
  constexpr std::uint64_t kSeeds = 4000;
  std::uint64_t lies = 0, lies_when_going_on = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    lies += World(plan->gather, true, seed).lies() ? 1 : 0;
    lies_when_going_on += World(plan->gather, false, seed).lies() ? 1 : 0;
  }
  CHECK(lies == 0);
  CHECK(lies_when_going_on > 0);  // or the play would show nothing
}

}  // namespace mkernel::kernels
