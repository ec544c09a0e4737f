// What the choices of the mixture of experts' plan are worth, by the rates of a machine. Each check compares
// a choice with what it replaced; tests/perf/notes.md has the times beside measured ones.
#include "tests/unit/kernels/plan/simulation/moe_time.h"

#include <doctest/doctest.h>

#include "kernels/plan/machine.h"
#include "tests/support/require.h"

namespace mkernel::test::moe_time {
namespace {

using namespace mkernel::kernels;

/// DeepSeek-V3's layer with 64 experts.
constexpr MoeShape kLayer{
    .max_tokens = 2048, .hidden = 7168, .n = 7168, .intermediate = 2048, .experts = 64, .topk = 8};

/// Four ranks that share a GPU, also on two emulated nodes.
Case of_shares(const MoeShape& shape, const Topology& topology, const MoeOptions& options = {}) {
  Machine machine = kH200.with_sms(32);
  machine.nic = 12.5e9;
  return {.plan = require(MoeGpuPlan::make(shape, topology, machine, options)), .share = 0.25};
}

/// With a GPU each.
Case of_gpus(const MoeShape& shape, const Topology& topology, const MoeOptions& options = {}) {
  return {.plan = require(MoeGpuPlan::make(shape, topology, kH200, options))};
}

/// How sums were made before: half the rows under way, by warps with nothing else to do, a token by one warp.
Times times_of_old_sums(Case of) {
  of.sum_rows = 4;
  of.sums_beside = false;
  of.plan.sum_parts = 1;
  return times(of);
}

}  // namespace

TEST_CASE("MoE time: what was measured comes out") {
  // Milliseconds of one H200: 65,536 and 16,384 rows (5.77 and 1.44 TFLOP at 639 and 506 TFLOP/s), and 64
  // tokens.
  MoeShape shape = kLayer;
  const auto alone = [&](std::int64_t tokens) {
    shape.max_tokens = tokens;
    return times_of_old_sums(of_gpus(shape, Topology(1, 1), {.section_blocks = 1 << 30})).end * 1e3;
  };
  CHECK(alone(8192) == doctest::Approx(9.03).epsilon(0.06));
  CHECK(alone(2048) == doctest::Approx(2.85).epsilon(0.15));
  CHECK(alone(64) == doctest::Approx(1.5).epsilon(0.06));
  // Two emulated nodes of two ranks that share a GPU: 1.17 times a rank alone.
  MoeShape share = kLayer;
  share.experts = 16;
  const double floor = times_of_old_sums(of_shares(share, Topology(1, 1))).end;
  const double nodes = times_of_old_sums(of_shares(kLayer, Topology(2, 2), {.apart = false})).end;
  CHECK(nodes / floor == doctest::Approx(1.17).epsilon(0.03));
  // Dispatch+GEMM with 256 experts on four H100s, whose products alone ran at 5.6 TFLOP/s a multiprocessor.
  Machine h100 = kH100;
  h100.product_operations = 5.6e12;
  MoeShape product = kLayer;
  product.max_tokens = 8192;
  product.experts = 256;
  product.intermediate = 0;
  product.n = 4096;
  const Case dispatch{.plan = require(MoeGpuPlan::make(product, Topology(1, 4), h100))};
  CHECK(product_seconds(dispatch) / times_of_old_sums(dispatch).end == doctest::Approx(0.861).epsilon(0.05));
}

TEST_CASE("MoE time: over nodes, far rows apart hide both ways of the wire") {
  for (const bool zipf : {false, true}) {
    Case mixed = of_shares(kLayer, Topology(2, 2), {.apart = false});
    Case apart = of_shares(kLayer, Topology(2, 2));
    REQUIRE(apart.plan.moe.sections.apart);
    mixed.zipf = apart.zipf = zipf;
    const Times before = times(mixed), after = times(apart);
    CHECK(after.waited < before.waited / 2);                           // for the first rows
    CHECK(after.end - after.tiles < (before.end - before.tiles) / 2);  // for the last sums
    CHECK(after.end < before.end * (zipf ? 0.99 : 0.92));
  }
  MoeShape share = kLayer;
  share.experts = 16;
  const double floor = times(of_shares(share, Topology(1, 1))).end;
  CHECK(times(of_shares(kLayer, Topology(2, 2))).end < 1.15 * floor);
}

TEST_CASE("MoE time: the plan has far rows apart where that is faster") {
  const auto check = [](const Machine& machine, std::int64_t tokens, const Topology& topology, bool apart) {
    MoeShape shape = kLayer;
    shape.max_tokens = tokens;
    CAPTURE(tokens);
    const auto end = [&](const MoeOptions& options) {
      const auto plan = require(MoeGpuPlan::make(shape, topology, machine, options));
      if (!options.apart.has_value()) CHECK(plan.moe.sections.apart == apart);
      return times({.plan = plan}).end;
    };
    CHECK(end({}) < end({.apart = !apart}));
  };
  check(kH100, 512, Topology(2, 2), false);  // 256 rows of an expert: reading weights twice takes longer
  check(kH200, 1024, Topology(2, 2), true);
  check(kH100, 2048, Topology(2, 4), true);
  check(kH200, 1024, Topology(4, 2), false);  // the wire takes longer than the products
}

TEST_CASE("MoE time: bands read an expert of many rows once, and cost nothing where rows are even") {
  MoeShape product = kLayer;
  product.max_tokens = 8192;
  product.intermediate = 0;
  product.n = 4096;
  for (const bool zipf : {false, true}) {
    Case whole = of_gpus(product, Topology(1, 4), {.section_blocks = 1 << 30});
    Case bands = of_gpus(product, Topology(1, 4));
    whole.zipf = bands.zipf = zipf;
    const Times before = times(whole), after = times(bands);
    CHECK(after.memory_bytes < before.memory_bytes / 3);
    CHECK(after.end < before.end * 1.005);
  }
}

TEST_CASE("MoE time: more rows under way, sums beside the products, and parts shorten the end") {
  MoeShape product = kLayer;
  product.max_tokens = 8192;
  product.experts = 256;
  product.intermediate = 0;
  product.n = 4096;
  const Case launch = of_gpus(product, Topology(1, 4));
  Case idle = launch;
  idle.sums_beside = false;
  const Times before = times_of_old_sums(launch), without = times(idle), after = times(launch);
  CHECK(after.end < before.end * 0.975);
  CHECK(without.end < before.end);
  CHECK(after.end < without.end);

  MoeShape decode = kLayer;
  decode.max_tokens = 64;
  const Case few = of_gpus(decode, Topology(1, 1));
  Case one_part = few;
  one_part.plan.sum_parts = 1;
  CHECK(few.plan.sum_parts > 1);
  CHECK(times(few).end < times(one_part).end * 0.985);
}

}  // namespace mkernel::test::moe_time
