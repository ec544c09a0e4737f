// Why a launch behind a failed one must do nothing: ranks that have launches queued, come late and give up
// waits at any moment. Whoever reports a launch as good has the result of just that launch, in every order of
// steps; with launches that go on behind a failed one there are orders in which it has not.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/unit/kernels/plan/simulation/cases.h"

namespace mkernel::test {
namespace {

using kernels::TileSize;
using kernels::Topology;

/// Under sanitizers, as of play_everywhere(), fewer, and no faults: 28 have each rate at which waits give up.
#if defined(MKERNEL_SANITIZED)
constexpr std::uint64_t kSeeds = 28;
constexpr bool kWithFaults = false;
#else
constexpr std::uint64_t kSeeds = 100;
constexpr bool kWithFaults = true;
#endif

constexpr Warps kFew{1, 1};
const std::vector<Topology> kWorlds{{1, 2}, {1, 3}, {2, 1}, {2, 2}, {3, 1}, {2, 3}, {4, 2}};

struct Outcome {
  std::uint64_t lies = 0, good_launches = 0;
  std::int32_t failed_ranks = 0;
};

/// Many seeds of a case on all `worlds`; a wait gives up early in some, late in others.
template <class Case>
Outcome play(const std::vector<Case>& cases, const std::vector<Topology>& worlds, Fault fault,
             std::uint64_t seeds) {
  Outcome all;
  for (const Topology& topology : worlds) {
    for (const Case& given : cases) {
      const Played<Case> played(given, topology);
      for (std::uint64_t seed = 0; seed < seeds; ++seed) {
        constexpr std::uint64_t kExpireOneIn[] = {30, 200, 1000, 5000};
        Settings settings{.seed = seed, .fault = fault, .expire_one_in = kExpireOneIn[seed / 7 % 4]};
        settings.launches = 6;
        const auto world = played.world(settings);
        const std::string error = world->run();
        REQUIRE_MESSAGE(error.empty(), played.label() << ", seed " << seed << ": " << error);
        all.lies += world->lied() ? 1 : 0;
        all.good_launches += world->good_launches();
        all.failed_ranks += world->failed_ranks();
      }
    }
  }
  return all;
}

/// `fault`: with which ranks report what is not so.
template <class Case>
void check(const std::vector<Case>& cases, std::uint64_t seeds, const std::vector<Topology>& worlds = kWorlds,
           Fault fault = Fault::kGoesOn) {
  const Outcome stopped = play(cases, worlds, Fault::kNone, seeds);
  CHECK(stopped.lies == 0);
  CHECK(stopped.good_launches > 0);
  CHECK(stopped.failed_ranks > 0);
  // Or the simulation would show nothing.
  if (kWithFaults) CHECK(play(cases, worlds, fault, seeds).lies > 0);
}

}  // namespace

TEST_CASE("AG+GEMM: who reports a launch as good has that launch's result, whatever has failed") {
  check<AgGemmCase>({{{1, 3, 5}, kHost, {.tile = kHostTile, .comm_ctas = 1}},
                     {{23, 40, 16}, kHost, {.tile = TileSize{4, 16, 1}, .comm_ctas = 2}},
                     {{11, 40, 16}, kHost, {.tile = TileSize{16, 16, 1}, .comm_ctas = 2}}},  // shared tiles
                    kSeeds);
}

TEST_CASE("GEMM+RS: who reports a launch as good has that launch's result, whatever has failed") {
  check<GemmRsCase>({{{{1, 3, 5}, kHost, {.tile = kHostTile, .reduce_ctas = 1}, 16, kFew}},
                     {{{70, 136, 8}, kHost, {.tile = kHostTile, .reduce_ctas = 1}, 1, kFew}}},
                    kSeeds);
}

TEST_CASE("GEMM+AR: who reports a launch as good has that launch's result, whatever has failed") {
  check<GemmArCase>({{{{1, 3, 5}, kHost, {.tile = kHostTile, .reduce_ctas = 1}, 16, kFew}},
                     {{{70, 136, 8}, kHost, {.tile = kHostTile, .reduce_ctas = 1}, 1, kFew}}},
                    kSeeds);
}

TEST_CASE("GEMM+AR where every rank sums all rows: who reports a launch as good has that launch's result") {
  check<SumAllCase>({{{{70, 136, 8}, kHost, {.tile = kHostTile, .reduce_ctas = 1}, 1, kFew}}}, kSeeds,
                    {{1, 2}, {1, 3}});
}

TEST_CASE("GEMM+AR with marked slots: who reports a launch as good has that launch's result") {
  check<SumAllCase>({{{{70, 136, 8}, kHost, {.tile = kHostTile, .reduce_ctas = 1}, 1, kFew}, true}}, kSeeds,
                    {{1, 2}, {1, 3}});
}

TEST_CASE("GEMM+AR with marked sums: who reports a launch as good has that launch's result") {
  const GemmArCase row{{{1, 3, 5}, kHost, {.tile = kHostTile, .reduce_ctas = 1}, 16, kFew}};
  const GemmArCase units{{{70, 136, 8}, kHost, {.tile = kHostTile, .reduce_ctas = 1}, 1, kFew}};
  check<MarkedSumsCase>({{row}, {units}, {row, true}, {units, true}}, kSeeds, {{1, 2}, {1, 3}, {1, 4}});
}

TEST_CASE("ring attention: who reports a launch as good has that launch's result, whatever has failed") {
  const AttentionShape shape{.batch = 1, .sequence = 3, .heads = 1, .kv_heads = 1, .head_dim = 64};
  AttentionShape causal = shape;
  causal.sequence = 40;
  causal.causal = true;
  check<RingAttentionCase>({{shape, 1, 2, 4}, {causal, 2, 4, 5}}, kSeeds);
}

TEST_CASE(
    "ring attention backward: who reports a launch as good has that launch's result, whatever has failed") {
  const AttentionShape shape{.batch = 1, .sequence = 3, .heads = 1, .kv_heads = 1, .head_dim = 64};
  AttentionShape causal = shape;
  causal.sequence = 40;
  causal.causal = true;
  // A rank that is in the next launch has the gradients of its keys from all others, which therefore need
  // nothing more of this launch: going on spoils nothing. What a task has made from rows that did not come
  // does.
  check<RingBackwardCase>({{shape, 1, 2, 4}, {causal, 2, 4, 5}}, kSeeds, kWorlds, Fault::kStoresAnyway);
}

TEST_CASE("MoE: who reports a launch as good has that launch's result, whatever has failed") {
  check<MoeCase>({{{}}, {{.experts = 7, .topk = 1, .columns2 = 0}}, {{.pattern = MoeLoad::kOneToken}}},
                 kSeeds);
}

}  // namespace mkernel::test
