// The GEMM body on the GPU: random inputs, poisoned outputs, every element against fp64.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/cuda/gemm/gemm_sm90.h"
#include "kernels/cuda/memory/error.h"
#include "kernels/plan/machine.h"
#include "tests/kernels/gpu_gemm_chain.h"
#include "tests/support/gpu.h"
#include "tests/support/require.h"
#include "tools/mkbench/gpu_matrix.h"
#include "tools/mkbench/gpu_stream.h"

using namespace mkernel;
using namespace mkernel::kernels;
using namespace mkernel::bench;
using mkernel::test::require_ok;

namespace {

struct Operands {
  GpuBuffer a, b, c;
  GemmArguments arguments() const { return {a.get(), b.get(), c.get()}; }
};

GpuBuffer allocate(std::int64_t bytes) {
  return test::require(GpuBuffer::allocate(static_cast<std::uint64_t>(bytes)));
}

Operands operands(const GemmShape& s, std::uint64_t seed) {
  Operands o{allocate(s.m * s.k * 2), allocate(s.k * s.n * 2), allocate(s.m * s.n * 2)};
  require_ok(fill_random(o.a.get(), s.dtype, static_cast<std::uint64_t>(s.m * s.k), 2 * seed, nullptr));
  require_ok(fill_random(o.b.get(), s.dtype, static_cast<std::uint64_t>(s.k * s.n), 2 * seed + 1, nullptr));
  require_ok(poison(o.c, nullptr));
  return o;
}

/// c on the host.
std::vector<std::uint16_t> elements(const GpuBuffer& c, const GemmShape& s) {
  std::vector<std::uint16_t> host(static_cast<std::size_t>(s.m * s.n));
  require_ok(cuda_status(cudaMemcpy(host.data(), c.get(), host.size() * 2, cudaMemcpyDeviceToHost), "copy"));
  return host;
}

std::string text(const Sm90LocalPlan& chosen) {
  if (const auto* skinny = std::get_if<Sm90SkinnyPlan>(&chosen))
    return " skinny, " + std::to_string(skinny->rows) + " rows, split " + std::to_string(skinny->split);
  const auto& plan = std::get<Sm90Plan>(chosen);
  return " tile " + std::to_string(plan.tile.rows) + "x" + std::to_string(plan.tile.columns) +
         (plan.cluster == Sm90Cluster::kStacked ? " stacked" : " side by side");
}

std::string text(const GemmShape& s, const std::optional<Sm90LocalPlan>& plan) {
  return std::to_string(s.m) + "x" + std::to_string(s.n) + "x" + std::to_string(s.k) +
         (s.dtype == DataType::kBf16 ? " bf16" : " fp16") +
         (s.b_layout == Layout::kRowMajor ? " row-major" : " column-major") + (plan ? text(*plan) : "");
}

void check_case(const GemmShape& s, const std::optional<Sm90LocalPlan>& plan) {
  static std::uint64_t seed = 100;
  const std::string name = text(s, plan);
  CAPTURE(name);
  const Operands o = operands(s, ++seed);
  require_ok(gemm_sm90(o.arguments(), s, plan, nullptr));
  const auto check = test::require(check_product(o.arguments(), s, nullptr));
  CHECK_MESSAGE(check.wrong == 0, check.wrong << " elements, one at " << check.first_wrong);
  // The elementwise bound grows with k; the norm does not: rounding of the output, or of the sums inside the
  // tensor cores, stays far under it, one forgotten column of a or b does not.
  const double unit = s.dtype == DataType::kBf16 ? 0x1p-8 : 0x1p-11;
  CHECK(check.relative_error < unit);
}

/// `tail`: so many cluster tiles at the end are cut into narrow ones, where the tile allows it.
void check_tile(const GemmShape& s, Sm90Tile tile, Sm90Cluster cluster, std::int32_t tail) {
  Sm90Plan plan = plan_sm90(s, kH200.with_sms(test::multiprocessors()), tile, cluster);
  if (tail > 0) plan.whole = std::max(0, plan.raster.tiles() - tail);
  check_case(s, plan);
}

/// Every type and layout for one shape.
void check_all(GemmShape s, std::optional<Sm90Tile> tile = {}, Sm90Cluster cluster = Sm90Cluster::kStacked,
               std::int32_t tail = 0) {
  for (const DataType type : {DataType::kBf16, DataType::kF16}) {
    for (const Layout layout : {Layout::kRowMajor, Layout::kColumnMajor}) {
      s.dtype = type;
      s.b_layout = layout;
      if (tile) {
        check_tile(s, *tile, cluster, tail);
      } else {
        check_case(s, {});
      }
    }
  }
}

/// Every type, layout and split for one shape, whose tiles have `rows` rows.
void check_skinny(GemmShape s, std::int32_t rows) {
  for (const DataType type : {DataType::kBf16, DataType::kF16}) {
    for (const Layout layout : {Layout::kRowMajor, Layout::kColumnMajor}) {
      s.dtype = type;
      s.b_layout = layout;
      for (std::int32_t split = 1; split <= kSkinnyMostSplit && split * kSm90TileK < s.k + kSm90TileK;
           split *= 2)
        check_case(s, Sm90SkinnyPlan{rows, split});
    }
  }
}

}  // namespace

TEST_CASE("every tile, type and layout, with tails on all sides") {
  if (!test::hopper_or_skip()) return;
  for (const Sm90Tile tile : kSm90Tiles) {
    for (const Sm90Cluster cluster : {Sm90Cluster::kStacked, Sm90Cluster::kSideBySide}) {
      check_all({64, 64, 64}, tile, cluster);
      check_all({1, 8, 8}, tile, cluster);
      check_all({300, 328, 200}, tile, cluster);
      check_all({1000, 776, 264}, tile, cluster);
    }
  }
}

TEST_CASE("every tile and cluster, in a shape small enough for tools that watch every access") {
  if (!test::hopper_or_skip()) return;
  for (const std::int32_t rows : kSkinnyRows) {
    check_case({rows - 3, 136, 200, DataType::kBf16, Layout::kRowMajor}, Sm90SkinnyPlan{rows, 2});
    check_case({rows - 3, 136, 200, DataType::kF16, Layout::kColumnMajor}, Sm90SkinnyPlan{rows, 2});
  }
  for (const Sm90Tile tile : kSm90Tiles) {
    for (const Sm90Cluster cluster : {Sm90Cluster::kStacked, Sm90Cluster::kSideBySide}) {
      const std::int32_t tail = has_tail(tile) ? 1 : 0;
      check_tile({300, 328, 200, DataType::kBf16, Layout::kRowMajor}, tile, cluster, tail);
      check_tile({300, 328, 200, DataType::kF16, Layout::kColumnMajor}, tile, cluster, tail);
    }
  }
}

TEST_CASE("shapes that no tile divides") {
  if (!test::hopper_or_skip()) return;
  check_all({1, 4096, 4096});
  check_all({7, 384, 8});
  check_all({1000, 1000, 1000});
  check_all({4097, 384, 4096});
  check_all({12345, 1024, 72});
  check_all({128, 4104, 12344});
}

TEST_CASE("few rows: every padding, split, type and layout, with tails on all sides") {
  if (!test::hopper_or_skip()) return;
  for (const std::int32_t rows : kSkinnyRows) {
    check_skinny({1, 8, 8}, rows);
    check_skinny({rows, 128, 512}, rows);
    check_skinny({rows - 3, 328, 1160}, rows);
  }
  check_skinny({7, 4096, 4096}, 16);
  check_skinny({64, 2048, 7168}, 64);
}

TEST_CASE("few rows: the shapes of decoding, and more tiles than run at a time") {
  if (!test::hopper_or_skip()) return;
  for (const std::int64_t m : {1, 7, 16, 33, 64, 100, 128}) {
    check_all({m, 4096, 4096});
    check_all({m, 2048, 7168});
  }
  check_all({64, 8192, 14336});
  check_all({64, 40968, 1032});
}

TEST_CASE("few rows: the same bits every run, in whatever order the CTAs of a cluster come") {
  if (!test::hopper_or_skip()) return;
  const GemmShape s{61, 2056, 7176};
  const Operands o = operands(s, 11);
  for (std::int32_t split = 2; split <= 8; split *= 2) {
    std::vector<std::uint16_t> first;
    for (int round = 0; round < 50; ++round) {
      require_ok(poison(o.c, nullptr));
      require_ok(gemm_sm90(o.arguments(), s, Sm90SkinnyPlan{64, split}, nullptr));
      auto now = elements(o.c, s);
      if (round == 0) first = now;
      CHECK(now == first);
    }
  }
}

TEST_CASE("more tiles than SMs: every stage and slot goes round many times") {
  if (!test::hopper_or_skip()) return;
  for (const Sm90Tile tile : kSm90Tiles) {
    check_all({4097, 4104, 8}, tile);
    check_all({4097, 4104, 136}, tile);
    check_all({4097, 4104, 136}, tile, Sm90Cluster::kSideBySide);
  }
  check_all({4096, 4096, 2048});
  check_all({12345, 3 * 128, 4096});
}

TEST_CASE("what whole waves leave over is cut into narrow tiles") {
  if (!test::hopper_or_skip()) return;
  for (const Sm90Tile tile : kSm90Tiles) {
    if (!has_tail(tile)) continue;
    for (const Sm90Cluster cluster : {Sm90Cluster::kStacked, Sm90Cluster::kSideBySide}) {
      check_all({300, 328, 200}, tile, cluster, 1);
      check_all({1000, 776, 264}, tile, cluster, 1 << 20);  // all of them
      check_all({4097, 4104, 136}, tile, cluster, 7);
    }
  }
}

TEST_CASE("few CTAs and any band give the same bits") {
  if (!test::hopper_or_skip()) return;
  const GemmShape s{1500, 1304, 520};
  const Operands o = operands(s, 7);
  const auto result = [&](std::int32_t ctas, std::int32_t band) {
    Sm90Plan plan = plan_sm90(s, kH200.with_sms(test::multiprocessors()), Sm90Tile::k128x256);
    plan.ctas = ctas;
    plan.raster = plan.raster.with_band(band);
    require_ok(poison(o.c, nullptr));
    require_ok(gemm_sm90(o.arguments(), s, plan, nullptr));
    return elements(o.c, s);
  };
  const auto expected = result(2, 1);
  CHECK(check_product(o.arguments(), s, nullptr)->wrong == 0);
  CHECK(result(6, 2) == expected);
  CHECK(result(36, 3) == expected);
  CHECK(result(36, 100) == expected);
}

TEST_CASE("captured once, replayed with new inputs") {
  if (!test::hopper_or_skip()) return;
  for (const GemmShape& s : {GemmShape{777, 520, 392}, GemmShape{33, 520, 1416}}) {
    const Operands o = operands(s, 1);
    const auto stream = test::require(GpuStream::create());
    const auto graph = test::require(
        GpuGraph::capture(stream, [&] { return gemm_sm90(o.arguments(), s, {}, stream.get()); }));
    for (std::uint64_t round = 0; round < 20; ++round) {
      const auto count = static_cast<std::uint64_t>(s.m * s.k);
      require_ok(fill_random(o.a.get(), s.dtype, count, 1000 + round, stream.get()));
      require_ok(poison(o.c, stream.get()));
      require_ok(graph.launch(stream));
      CHECK(check_product(o.arguments(), s, stream.get())->wrong == 0);
    }
  }
}

TEST_CASE("a schedule that waits for tiles of the same launch: hooks, order and fences") {
  if (!test::hopper_or_skip()) return;
  const std::int64_t m = 1000, k = 520, n = 328;
  const GemmShape first{m, k, k}, second{m, n, k};
  const GpuBuffer words = allocate(4096);
  std::uint64_t seed = 5000;
  for (const Sm90Tile tile : kSm90Tiles) {
    // On 2 CTAs every tile waits for one of the same CTA that it has just held back; on all, for others'.
    for (const std::int32_t ctas : {2, 10, test::multiprocessors() / 2 * 2}) {
      for (int round = 0; round < 10; ++round) {
        CAPTURE(tile_rows(tile));
        CAPTURE(tile_columns(tile));
        CAPTURE(ctas);
        const Operands one = operands(first, ++seed);
        const Operands two = operands(second, ++seed);
        require_ok(cuda_status(cudaMemset(words.get(), 0, words.bytes()), "words"));
        auto* word = static_cast<std::uint32_t*>(words.get());
        require_ok(test::launch_chain(
            {m, k, n, one.a.get(), one.b.get(), two.b.get(), one.c.get(), two.c.get(), word, word + 1000},
            tile, ctas));
        std::uint32_t failed = 0;
        require_ok(cuda_status(cudaMemcpy(&failed, word + 1000, 4, cudaMemcpyDeviceToHost), "words"));
        CHECK(failed == 0);
        CHECK(check_product(one.arguments(), first, nullptr)->wrong == 0);
        CHECK(check_product({one.c.get(), two.b.get(), two.c.get()}, second, nullptr)->wrong == 0);
      }
    }
  }
}

TEST_CASE("refused by name, before anything is queued") {
  if (!test::hopper_or_skip()) return;
  const GpuBuffer memory = allocate(1 << 20);
  auto* at = static_cast<char*>(memory.get());
  const auto refuse = [&](const GemmShape& s, GemmArguments arguments, const char* expected,
                          const std::optional<Sm90LocalPlan>& plan = {}) {
    const Status status = gemm_sm90(arguments, s, plan, nullptr);
    CHECK(status.code() == StatusCode::kInvalidArgument);
    CHECK_MESSAGE(status.text().find(expected) != std::string::npos, status.text());
  };
  const GemmArguments good{at, at + (1 << 18), at + (1 << 19)};
  refuse({0, 64, 64}, good, "m is 0");
  refuse({64, -8, 64}, good, "n is -8");
  refuse({64, 68, 64}, good, "n is 68, must be a multiple of 8");
  refuse({64, 64, 60}, good, "k is 60, must be a multiple of 8");
  refuse({std::int64_t{1} << 31, 64, 64}, good, "m is 2147483648");
  refuse({64, 64, 64}, {nullptr, good.b, good.c}, "matrix a: address is null");
  refuse({64, 64, 64}, {good.a, good.b, nullptr}, "matrix c: address is null");
  refuse({64, 64, 64}, {good.a, good.b, at + 4}, "matrix c: address modulo 16 is 4");
  refuse({64, 64, 64}, {good.a, at + 8, good.c}, "matrix b: address modulo 16 is 8");
  refuse({64, 64, 64}, good, "plan has tiles of 48 rows", Sm90SkinnyPlan{48, 1});
  refuse({64, 64, 64}, good, "at least m, which is 64", Sm90SkinnyPlan{32, 1});
  refuse({64, 64, 640}, good, "over 3 CTAs", Sm90SkinnyPlan{64, 3});
  refuse({64, 64, 64}, good, "over 2 CTAs, must be a power of two of at most 1", Sm90SkinnyPlan{64, 2});
  refuse({64, 64, 640}, good, "over 16 CTAs, must be a power of two of at most 8", Sm90SkinnyPlan{64, 16});
  refuse({65, 64, 64}, good, "must be 16, 32 or 64 and at least m, which is 65", Sm90SkinnyPlan{64, 1});
}
