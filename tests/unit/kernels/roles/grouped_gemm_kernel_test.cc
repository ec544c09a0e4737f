// The whole kernel of the grouped GEMM on the host: what clusters make of the ends, tiles above each other
// and side by side, rows of one group alone, and the end of a launch.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cuda/gemm/with_tile.h"
#include "kernels/ops/grouped_gemm/plan.h"
#include "kernels/ops/grouped_gemm/roles.cuh"
#include "tests/support/grouped_gemm_cases.h"
#include "tests/support/on_host/cuda_names.h"
#include "tests/support/on_host/sm90.h"
#include "tests/support/random_tensor.h"
#include "tests/support/require.h"
#include "tests/unit/kernels/roles/play_launch.h"

namespace mkernel::test {
namespace {

using namespace mkernel::kernels;
using Ends = std::vector<std::int32_t>;

/// A rank alone. `band_blocks`: as in the parameters; 0: by shape.
class HostGroupedGemm {
 public:
  explicit HostGroupedGemm(const GroupedGemmShape& shape, std::uint32_t clusters = 3,
                           std::int32_t band_blocks = 0)
      : ctas_(clusters * kGroupedGemmCluster),
        plan_(require(GroupedGemmPlan::make(shape))),
        a_(random_tensor(shape.max_rows * shape.k, shape.dtype, 1)),
        b_(random_tensor(shape.groups * shape.k * shape.n, shape.dtype, 2)),
        no_numbers_(a_.size(), std::uint16_t{0x7fff}),
        p_(grouped_gemm_parameters(plan_, scratch_.get())) {
    if (band_blocks > 0) p_.band_blocks = band_blocks;
    p_.a = host_tensor_map(grouped_gemm_a_view(plan_, a_.data()));
    p_.low_a = host_tensor_map(grouped_gemm_low_a_view(plan_, a_.data()));
    p_.b = host_tensor_map(grouped_gemm_b_view(plan_, b_.data()));
    p_.endpoint.control = control_.get();
    p_.endpoint.host = {&aborted_, nullptr};
  }

  void check(const Ends& ends) {
    CHECK(wrong(ends) == 0);
    CHECK(scratch_->refusal.launch != control_->epoch);
  }
  /// From here on tiles that load low boxes of a, or those that load high ones, find no numbers there.
  void spoil(bool low) {
    if (low) {
      p_.low_a = host_tensor_map(grouped_gemm_low_a_view(plan_, no_numbers_.data()));
    } else {
      p_.a = host_tensor_map(grouped_gemm_a_view(plan_, no_numbers_.data()));
    }
  }
  /// How many elements of c are not what they must be.
  std::size_t wrong(const Ends& ends) {
    launch(ends);
    return wrong_elements(plan_.shape, ends, a_, b_, c_);
  }
  /// Refuses, and writes nothing.
  BadEnd refused(const Ends& ends) {
    launch(ends);
    CHECK(scratch_->refusal.launch == control_->epoch);
    CHECK(std::all_of(c_.begin(), c_.end(), [](std::uint16_t bits) { return bits == kPoison; }));
    return scratch_->refusal.why;
  }
  void two_at_a_time(const Ends& ends) { launch(ends, 2); }
  void abort() { aborted_ = 1; }
  /// A launch that fails, whether it computes or not; whether it does.
  bool computes_and_fails(const Ends& ends) {
    launch(ends);
    CHECK(control_->stopped != 0);
    return std::any_of(c_.begin(), c_.end(), [](std::uint16_t bits) { return bits != kPoison; });
  }

 private:
  void launch(const Ends& ends, int at_a_time = 1) {
    REQUIRE(static_cast<std::int64_t>(ends.size()) == plan_.shape.groups);
    c_.assign(static_cast<std::size_t>(plan_.shape.max_rows * plan_.shape.n), kPoison);
    p_.ends = ends.data();
    p_.c = reinterpret_cast<std::byte*>(c_.data());
    HostGrid grid;
    for (int i = 0; i < at_a_time; ++i) {
      with_types(plan_.product(),
                 [&]<DataType kType, Layout kLayoutB>() { add<GroupedGemmConfig<kType, kLayoutB>>(grid); });
    }
    play_launch(grid, *control_, at_a_time);
  }

  template <class Config>
  void add(HostGrid& grid) {
    for (std::uint32_t cta = 0; cta < ctas_; cta += Config::kCluster) {
      grid.add_cluster(cta, Config::kCluster, ctas_, Config::kThreads, sizeof(GroupedGemmShared<Config>),
                       [this] {
                         const HostThread& self = host_thread();
                         grouped_gemm_cta<Config>(p_, self.cluster_shared[self.cluster_rank]);
                       });
    }
  }

  const std::uint32_t ctas_;
  const GroupedGemmPlan plan_;
  const std::vector<std::uint16_t> a_, b_;
  std::vector<std::uint16_t> c_;
  const std::unique_ptr<GroupedGemmScratch> scratch_ = std::make_unique<GroupedGemmScratch>();
  const std::unique_ptr<LaunchControl> control_ = std::make_unique<LaunchControl>();
  std::uint32_t aborted_ = 0;
  const std::vector<std::uint16_t> no_numbers_;  ///< as large as a
  GroupedGemmParameters p_;
};

TEST_CASE("grouped gemm kernel: both types and layouts, groups of any number of rows") {
  for (const Layout layout : {Layout::kRowMajor, Layout::kColumnMajor}) {
    const DataType type = layout == Layout::kRowMajor ? DataType::kBf16 : DataType::kF16;
    HostGroupedGemm rank(
        {.max_rows = 700, .k = 72, .n = 264, .groups = 6, .dtype = type, .b_layout = layout});
    rank.check(ends_of({0, 1, 300, 0, 129, 64}));
    rank.check(ends_of({700, 0, 0, 0, 0, 0}));
    rank.check(Ends(6, 0));
  }
}

TEST_CASE("grouped gemm kernel: an odd number of columns of tiles, several steps along k") {
  HostGroupedGemm rank({.max_rows = 300, .k = 200, .n = 520, .groups = 2});
  rank.check({140, 290});
}

TEST_CASE("grouped gemm kernel: bands of rows, the last one smaller") {
  HostGroupedGemm rank({.max_rows = 1000, .k = 72, .n = 520, .groups = 2}, 3, 2);
  rank.check({600, 640});
  rank.check({0, 1000});
}

TEST_CASE("grouped gemm kernel: tiles of at most 64 rows load low boxes, others high ones") {
  for (const Layout layout : {Layout::kRowMajor, Layout::kColumnMajor}) {
    const DataType type = layout == Layout::kRowMajor ? DataType::kBf16 : DataType::kF16;
    const auto rank = [&](std::int64_t max_rows, bool spoil_low) {
      auto made = std::make_unique<HostGroupedGemm>(GroupedGemmShape{
          .max_rows = max_rows, .k = 136, .n = 616, .groups = 5, .dtype = type, .b_layout = layout});
      made->spoil(spoil_low);
      return made;
    };
    const auto of_few = rank(130, false);
    of_few->check(ends_of({1, 8, 9, 64, 0}));
    of_few->check(ends_of({0, 33, 0, 16, 57}));
    CHECK(of_few->wrong(ends_of({0, 65, 0, 0, 0})) == 65 * 616);
    // The last box ends behind the matrix.
    rank(61, false)->check(ends_of({2, 1, 47, 1, 10}));
    const auto of_many = rank(500, true);
    of_many->check(ends_of({65, 0, 128, 129, 100}));
    of_many->check(ends_of({321, 0, 0, 0, 0}));
    // One row behind two blocks above each other.
    CHECK(of_many->wrong(ends_of({257, 0, 0, 0, 0})) == 616);
  }
}

TEST_CASE("grouped gemm kernel: of few rows what is left over is not cut, cut in two and in four, also all") {
  for (const Layout layout : {Layout::kRowMajor, Layout::kColumnMajor}) {
    const DataType type = layout == Layout::kRowMajor ? DataType::kF16 : DataType::kBf16;
    // Two pairs of columns of tiles, of which the second one is narrow.
    const GroupedGemmShape shape{
        .max_rows = 300, .k = 136, .n = 616, .groups = 5, .dtype = type, .b_layout = layout};
    for (const std::uint32_t clusters : {3U, 4U, 9U}) {
      HostGroupedGemm rank(shape, clusters);
      rank.check(ends_of({3, 0, 128, 1, 60}));
      rank.check(ends_of({0, 0, 70, 0, 0}));
      rank.check(ends_of({5, 64, 65, 127, 2}));
    }
  }
}

TEST_CASE("grouped gemm kernel: more groups than a warp has lanes") {
  for (const std::int64_t groups : {32, 33, 1024}) {
    HostGroupedGemm rank({.max_rows = 40, .k = 8, .n = 8, .groups = groups});
    Ends ends;
    for (std::int32_t group = 0; group < groups; ++group) ends.push_back(std::min(group / 2, 40));
    rank.check(ends);
    std::fill(ends.begin(), ends.end(), 0);
    ends.back() = 33;
    rank.check(ends);
  }
}

TEST_CASE("grouped gemm kernel: bad ends are refused, and the next launch is right") {
  HostGroupedGemm rank({.max_rows = 90, .k = 8, .n = 8, .groups = 40});
  Ends ends(40, 20);
  rank.check(ends);
  ends[35] = 19;
  const BadEnd descending = rank.refused(ends);
  CHECK(descending.group == 35);
  CHECK(descending.begin == 20);
  CHECK(descending.end == 19);
  ends[35] = 20;
  ends[39] = 91;
  CHECK(rank.refused(ends).group == 39);
  ends[0] = -1;
  CHECK(rank.refused(ends).group == 0);
  ends[0] = ends[39] = 20;
  rank.check(ends);
}

TEST_CASE("grouped gemm kernel: what the host aborts has failed, and the launches behind it do nothing") {
  HostGroupedGemm rank({.max_rows = 90, .k = 8, .n = 8, .groups = 1});
  rank.check({90});
  rank.abort();
  CHECK(rank.computes_and_fails({90}));
  CHECK_FALSE(rank.computes_and_fails({90}));
}

TEST_CASE("grouped gemm kernel: of two launches at a time one fails and says so, and the next does nothing") {
  HostGroupedGemm rank({.max_rows = 900, .k = 8, .n = 264, .groups = 1});
  rank.check({900});
  rank.two_at_a_time({900});
  CHECK_FALSE(rank.computes_and_fails({90}));
}

}  // namespace
}  // namespace mkernel::test
