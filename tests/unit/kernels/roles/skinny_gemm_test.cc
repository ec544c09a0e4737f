// The body for few rows on the host: its loads, products and stores, and the sums that the CTAs of a cluster
// give each other.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cuda/gemm/sm90_maps.h"
#include "kernels/cuda/gemm/sm90_skinny.cuh"
#include "kernels/cuda/gemm/with_tile.h"
#include "kernels/plan/cuts.h"
#include "tests/support/on_host/cuda_names.h"
#include "tests/support/on_host/sm90.h"
#include "tests/support/random_tensor.h"
#include "tests/unit/kernels/roles/product_check.h"

namespace mkernel::test {
namespace {

using namespace mkernel::kernels;

/// The kernel on a grid of the host.
template <class Config>
void run(const Sm90SkinnyProduct& product) {
  HostGrid grid;
  const auto tiles = static_cast<std::uint32_t>(ceil_div(product.n, kSkinnyColumns));
  const std::uint32_t split = 1U << product.log2_split, ctas = tiles * split;
  for (std::uint32_t cta = 0; cta < ctas; cta += split) {
    grid.add_cluster(cta, split, ctas, Config::kThreads, sm90_skinny_shared_bytes<Config>(), [&product] {
      const HostThread& self = host_thread();
      sm90_skinny(product,
                  *reinterpret_cast<Sm90SkinnyShared<Config>*>(self.cluster_shared[self.cluster_rank]));
    });
  }
  grid.add_service(host_copy_engine);
  grid.run();
}

/// `rows` and `split`: the plan's.
void check(const GemmShape& shape, std::int32_t rows, std::int32_t split) {
  CAPTURE(shape.m);
  CAPTURE(shape.n);
  CAPTURE(shape.k);
  CAPTURE(split);
  const auto a = random_tensor(shape.m * shape.k, shape.dtype, 1),
             b = random_tensor(shape.k * shape.n, shape.dtype, 2);
  const auto elements = static_cast<std::size_t>(shape.m * shape.n);
  std::vector<std::uint16_t> c(elements + 1000, kPoison);
  const Sm90SkinnyProduct product{
      host_tensor_map(sm90_skinny_a_view({rows, split}, shape, a.data())),
      host_tensor_map(sm90_b_view(shape.dtype, shape.b_layout, b.data(), shape.n, shape.k)),
      reinterpret_cast<std::byte*>(c.data()),
      static_cast<std::int32_t>(shape.m),
      static_cast<std::int32_t>(shape.n),
      static_cast<std::int32_t>(ceil_div(shape.k, std::int64_t{kSm90TileK})),
      std::countr_zero(static_cast<std::uint32_t>(split))};
  with_types(shape, [&]<DataType kInput, Layout kLayoutB>() {
    switch (rows) {
      case 16: return run<Sm90SkinnyConfig<16, kInput, kLayoutB>>(product);
      case 32: return run<Sm90SkinnyConfig<32, kInput, kLayoutB>>(product);
      default: return run<Sm90SkinnyConfig<64, kInput, kLayoutB>>(product);
    }
  });
  CHECK(wrong_elements(shape, a, b, c) == 0);
  CHECK(std::all_of(c.begin() + static_cast<std::ptrdiff_t>(elements), c.end(),
                    [](std::uint16_t element) { return element == kPoison; }));
}

TEST_CASE("few rows: every padding and split, both types and layouts, with edges in all dimensions") {
  for (const Layout layout : {Layout::kRowMajor, Layout::kColumnMajor}) {
    for (const DataType type : {DataType::kBf16, DataType::kF16}) {
      check({7, 136, 520, type, layout}, 16, 4);
      check({25, 72, 584, type, layout}, 32, 8);
      check({57, 200, 200, type, layout}, 64, 2);
      check({64, 128, 128, type, layout}, 64, 1);
    }
  }
}

TEST_CASE("few rows: one row, one step along k, fewer rows than CTAs of the cluster") {
  check({1, 8, 8}, 16, 1);
  check({1, 136, 520}, 16, 8);
  check({3, 8, 136}, 16, 2);
  check({16, 128, 64, DataType::kF16, Layout::kColumnMajor}, 64, 1);
  check({5, 264, 256}, 64, 4);
}

TEST_CASE("few rows: every stage goes round several times, and the parts of a cluster differ in length") {
  for (const Layout layout : {Layout::kRowMajor, Layout::kColumnMajor}) {
    check({16, 128, 64 * 15, DataType::kBf16, layout}, 16, 1);
    check({30, 256, 64 * 23 + 8, DataType::kBf16, layout}, 32, 2);
    check({64, 128, 64 * 37, DataType::kF16, layout}, 64, 4);
  }
}

}  // namespace
}  // namespace mkernel::test
