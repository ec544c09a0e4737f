// The mixture of experts' plan on every split of up to 16 ranks: whatever the order of steps, nobody is
// stuck, nothing is overwritten while somebody may still read it, every tile is computed once from this
// launch's rows, and every token's sum has all its rows.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/unit/kernels/plan/simulation/cases.h"

namespace mkernel::test::moe {
namespace {

using kernels::Topology;

const MoeCase kUsual{{}};
/// One CTA that dispatches, one that computes, one warp each; more ranks than experts on some worlds.
const MoeCase kFewest{{.experts = 3,
                       .topk = 1,
                       .max_tokens = 3,
                       .columns1 = 1,
                       .columns2 = 1,
                       .lead = 0,
                       .dispatch_ctas = 1,
                       .compute_ctas = 1,
                       .push_warps = 1,
                       .sum_warps = 1,
                       .early_sums = true}};
const MoeCase kOneProduct{
    {.experts = 7, .topk = 3, .columns1 = 3, .columns2 = 0, .taken_ahead = 0, .sums_beside = false}};
const MoeCase kLongLead{{.experts = 13, .topk = 4, .columns1 = 2, .columns2 = 3, .lead = 11, .push_unit = 3}};

/// Sections of two blocks, near and far rows apart.
const MoeCase kSections{
    {.experts = 5, .topk = 3, .max_tokens = 14, .lead = 1, .sections = {.most = 2, .apart = true}}};
const MoeCase kSectionsFewest{{.experts = 3,
                               .topk = 1,
                               .max_tokens = 9,
                               .columns1 = 1,
                               .columns2 = 1,
                               .lead = 0,
                               .sections = {.most = 2, .apart = true},
                               .dispatch_ctas = 1,
                               .compute_ctas = 1,
                               .push_warps = 1,
                               .sum_warps = 1,
                               .early_sums = true}};

const MoeCase kShared{{.shared_columns1 = 3}};
/// The shared expert's second product directly behind its first one.
const MoeCase kSharedFewest{{.experts = 3,
                             .topk = 1,
                             .max_tokens = 5,
                             .columns1 = 1,
                             .columns2 = 2,
                             .lead = 0,
                             .shared_columns1 = 1,
                             .dispatch_ctas = 1,
                             .compute_ctas = 1,
                             .push_warps = 1,
                             .sum_warps = 1,
                             .early_sums = true}};

MoeCase with(MoeCase made, MoeLoad::Pattern pattern) {
  made.shape.pattern = pattern;
  return made;
}

struct Totals {
  std::uint64_t computed = 0, refused = 0;
};

Totals play(const std::vector<MoeCase>& cases, std::uint64_t seeds) {
#if defined(MKERNEL_SANITIZED)
  seeds = (seeds + 19) / 20;
#endif
  Totals all;
  for (const Topology& topology : worlds()) {
    for (const MoeCase& given : cases) {
      const Played<MoeCase> played(given, topology);
      for (std::uint64_t seed = 0; seed < seeds; ++seed) {
        const auto world = played.world({.seed = seed});
        const std::string error = world->run();
        REQUIRE_MESSAGE(error.empty(), played.label() << ", seed " << seed << ": " << error);
        all.computed += world->computed();
        all.refused += world->refused();
      }
    }
  }
  return all;
}

}  // namespace

TEST_CASE("MoE: any order of steps ends, every tile is computed once, every token has all its rows") {
  const Totals played =
      play({kUsual, kFewest, kOneProduct, kLongLead, kShared, kSharedFewest, kSections, kSectionsFewest}, 40);
  CHECK(played.refused == 0);
  CHECK(played.computed > 0);
  for (const MoeLoad::Pattern pattern : {MoeLoad::kOneExpert, MoeLoad::kFewExperts, MoeLoad::kOneToken})
    play({with(kUsual, pattern), with(kFewest, pattern), with(kOneProduct, pattern), with(kLongLead, pattern),
          with(kShared, pattern), with(kSharedFewest, pattern), with(kSections, pattern),
          with(kSectionsFewest, pattern)},
         12);
}

TEST_CASE("MoE: a launch that is refused leaves the counts as the next one needs them") {
  for (const MoeLoad::Pattern pattern : {MoeLoad::kBadEntry, MoeLoad::kOftenTooMany}) {
    const Totals played = play({with(kUsual, pattern), with(kFewest, pattern), with(kLongLead, pattern),
                                with(kShared, pattern), with(kSharedFewest, pattern)},
                               24);
    CHECK(played.refused > 0);
    CHECK(played.computed > 0);
  }
}

TEST_CASE("MoE: the simulation sees what is wrong") {
  const Topology two(1, 2), three(1, 3);
  check_seen(kUsual, three, Fault::kRowsBeforeCounts, "reads a row in launch");
  check_seen(with(kFewest, MoeLoad::kOneToken), three, Fault::kOneCounts, "reads counts in launch");
  check_seen(kUsual, two, Fault::kSecondFirst, "stuck");
  check_seen(kFewest, two, Fault::kSecondFirst, "stuck");
  check_seen(kFewest, two, Fault::kStoreWaits, "stuck");
  check_seen(kUsual, two, Fault::kHiddenUnwaited, "reads a row of h in launch");
  check_seen(kUsual, two, Fault::kBlockUnwaited, "reads a row in launch");
  check_seen(kUsual, two, Fault::kSumsUnwaited, "reads a finished row in launch");
  check_seen(kFewest, two, Fault::kSumsFirst, "stuck");
  check_seen(kUsual, two, Fault::kFirstColumnSignals, "reads a finished row in launch");
  check_seen(kUsual, two, Fault::kLackingRows, "stuck");
  check_seen(with(kUsual, MoeLoad::kBadEntry), two, Fault::kRefusalUncounted, "stuck");
  check_seen(kUsual, two, Fault::kWorkNotZeroed, "with a wrong result");
  check_seen(kUsual, two, Fault::kCountFirst, "in launch");
  check_seen(kShared, two, Fault::kSharedUnwaited, "reads a row of the shared expert in launch");
  check_seen(kShared, two, Fault::kHiddenUnwaited, "reads a row of h in launch");
  check_seen(kSharedFewest, two, Fault::kFirstColumnSignals, "reads a row of the shared expert in launch");

  const Topology nodes(2, 1), square(2, 2);
  check_seen(kSections, nodes, Fault::kSecondFirst, "stuck");
  check_seen(kSectionsFewest, nodes, Fault::kOwnSumsFirst, "stuck");
  check_seen(kSections, square, Fault::kBlockUnwaited, "reads a row in launch");
  check_seen(kUsual, square, Fault::kNoArrivals, "reads");
  check_seen(kUsual, nodes, Fault::kNoCompletions, "before it is completed");
  check_seen(kUsual, nodes, Fault::kOneLeaverLess, "stuck");
  check_seen(kFewest, nodes, Fault::kOwnSumsFirst, "stuck");
  check_seen(kFewest, nodes, Fault::kForwardsFirst, "stuck");
  check_seen(kUsual, square, Fault::kRowsBeforeCounts, "in launch");
  check_seen(with(kFewest, MoeLoad::kOneToken), square, Fault::kOneCounts, "reads counts in launch");
  check_seen(with(kUsual, MoeLoad::kBadEntry), square, Fault::kRefusalUncounted, "stuck");
}

}  // namespace mkernel::test::moe
