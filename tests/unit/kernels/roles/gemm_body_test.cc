// The GEMM body on the host: loads, products and stores of its tiles, with one CTA or two to a cluster, above
// each other and side by side, and the narrow tiles that whole waves leave over.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/gemm/sm90_local.cuh"
#include "kernels/cuda/gemm/sm90_maps.h"
#include "kernels/cuda/gemm/with_tile.h"
#include "kernels/plan/cuts.h"
#include "kernels/plan/machine.h"
#include "tests/support/on_host/cuda_names.h"
#include "tests/support/on_host/sm90.h"
#include "tests/support/random_tensor.h"
#include "tests/support/require.h"
#include "tests/unit/kernels/roles/product_check.h"

namespace mkernel::test {
namespace {

using namespace mkernel::kernels;

/// The kernel of gemm_sm90() on a grid of the host.
template <class Config>
void run(const Sm90LocalProduct& product, std::int32_t ctas) {
  HostGrid grid;
  for (std::int32_t cta = 0; cta < ctas; cta += Config::kCluster) {
    grid.add_cluster(static_cast<std::uint32_t>(cta), Config::kCluster, static_cast<std::uint32_t>(ctas),
                     Config::kThreads, sm90_shared_bytes<Config>(), [&product] {
                       const HostThread& self = host_thread();
                       auto* memory = self.cluster_shared[self.cluster_rank];
                       sm90_gemm(Sm90LocalSchedule<Config>(product),
                                 *reinterpret_cast<Sm90Shared<Config>*>(memory));
                     });
  }
  grid.add_service(host_copy_engine);
  grid.run();
}

/// The type that a tile is played with.
constexpr DataType type_of(Sm90Tile tile) {
  return tile == Sm90Tile::k128x128 ? DataType::kF16 : DataType::kBf16;
}

template <Sm90Tile kTile, Layout kLayoutB>
void run(const Sm90LocalProduct& product, std::int32_t ctas, Sm90Cluster cluster) {
  constexpr DataType kInput = type_of(kTile);
  if constexpr (tile_cluster(kTile) == 2) {
    if (cluster == Sm90Cluster::kSideBySide)
      return run<Sm90Config<kTile, kInput, kLayoutB, Sm90Cluster::kSideBySide>>(product, ctas);
  }
  run<Sm90Config<kTile, kInput, kLayoutB>>(product, ctas);
}

void check(const GemmShape& shape, Sm90Tile tile, Sm90Cluster cluster, bool tail) {
  const std::string name = std::to_string(tile_rows(tile)) + "x" + std::to_string(tile_columns(tile)) +
                           (cluster == Sm90Cluster::kStacked ? " stacked" : " side by side") +
                           (tail ? " with a tail" : "");
  CAPTURE(name);
  REQUIRE(shape.dtype == type_of(tile));
  const auto a = random_tensor(shape.m * shape.k, shape.dtype, 1),
             b = random_tensor(shape.k * shape.n, shape.dtype, 2);
  std::vector<std::uint16_t> c(static_cast<std::size_t>(shape.m * shape.n), kPoison);
  Sm90Plan plan = plan_sm90(shape, kH200.with_sms(6), tile, cluster);
  plan.whole = plan.raster.tiles() - (tail ? 1 : 0);
  const std::int32_t box_rows = plan.a_box_rows(shape.m);
  const Sm90LocalProduct product{
      host_tensor_map(sm90_a_view(box_rows, shape.dtype, a.data(), shape.m, shape.k)),
      host_tensor_map(sm90_b_view(shape.dtype, shape.b_layout, b.data(), shape.n, shape.k)),
      host_tensor_map(sm90_c_view(shape.dtype, c.data(), shape.m, shape.n)),
      {plan.raster, plan.whole},
      static_cast<std::int32_t>(ceil_div(shape.k, std::int64_t{kSm90TileK})),
      static_cast<std::int32_t>(shape.m),
      box_rows};
  require_ok(with_tile(tile, "gemm", [&]<Sm90Tile kTile>() -> Status {
    if (shape.b_layout == Layout::kRowMajor) {
      run<kTile, Layout::kRowMajor>(product, plan.ctas, cluster);
    } else {
      run<kTile, Layout::kColumnMajor>(product, plan.ctas, cluster);
    }
    return {};
  }));
  CHECK(wrong_elements(shape, a, b, c) == 0);
}

TEST_CASE("every tile and cluster, both types and layouts, with edges in all dimensions") {
  for (const Layout layout : {Layout::kRowMajor, Layout::kColumnMajor}) {
    for (const Sm90Tile tile : kSm90Tiles) {
      const GemmShape shape{300, 328, 200, type_of(tile), layout};
      check(shape, tile, Sm90Cluster::kStacked, false);
      if (tile_cluster(tile) == 2) check(shape, tile, Sm90Cluster::kSideBySide, false);
    }
  }
}

/// What is not loaded holds no numbers (HostGrid::add_cluster()).
TEST_CASE("few rows: boxes of a hold those that there are, and CTAs without rows load none") {
  int turn = 0;
  for (const std::int64_t m : {1, 16, 63, 64, 65, 127, 128}) {
    for (const Sm90Tile tile : kSm90Tiles) {
      const Layout layout = turn++ / 4 % 2 == 0 ? Layout::kRowMajor : Layout::kColumnMajor;
      const GemmShape shape{m, 136, 200, type_of(tile), layout};
      check(shape, tile, Sm90Cluster::kStacked, false);
      if (tile_cluster(tile) == 2) check(shape, tile, Sm90Cluster::kSideBySide, tile == Sm90Tile::k128x128);
    }
  }
}

TEST_CASE("the narrow tiles of a tail") {
  for (const Layout layout : {Layout::kRowMajor, Layout::kColumnMajor}) {
    for (const Sm90Tile tile : {Sm90Tile::k128x256, Sm90Tile::k128x128}) {
      for (const Sm90Cluster cluster : {Sm90Cluster::kStacked, Sm90Cluster::kSideBySide})
        check({300, 520, 136, type_of(tile), layout}, tile, cluster, true);
    }
  }
}

TEST_CASE("one step along k, one row, and many tiles for each CTA") {
  check({1, 8, 8}, Sm90Tile::k128x256, Sm90Cluster::kStacked, false);
  check({700, 600, 64}, Sm90Tile::k128x64, Sm90Cluster::kStacked, false);
  check({1100, 600, 72, DataType::kF16}, Sm90Tile::k128x128, Sm90Cluster::kStacked, true);
}

}  // namespace
}  // namespace mkernel::test
