// The grouped GEMM on the cpu executor: every element against fp64, ends that are refused, shapes that are.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ops/make.h"
#include "mkernel/ops.h"
#include "tests/support/fake_fabric.h"
#include "tests/support/grouped_gemm_cases.h"
#include "tests/support/random_tensor.h"
#include "tests/support/require.h"

namespace mkernel::test {
namespace {

using Ends = std::vector<std::int32_t>;

class GroupedRank {
 public:
  explicit GroupedRank(const GroupedGemmShape& shape)
      : shape_(shape),
        a_(random_tensor(shape.max_rows * shape.k, shape.dtype, 1)),
        b_(random_tensor(shape.groups * shape.k * shape.n, shape.dtype, 2)),
        operation_(require(kernels::make_grouped_gemm(shape, fabric_.group(0)))) {
    require_ok(operation_->bind(fabric_.group(0), {}, {}, 0));
  }

  FakeFabric& fabric() { return fabric_; }
  GroupedGemmOperation& operation() { return *operation_; }
  Status run(const Ends& ends, int threads = 2) {
    REQUIRE(static_cast<std::int64_t>(ends.size()) == shape_.groups);
    c_.assign(static_cast<std::size_t>(shape_.max_rows * shape_.n), kPoison);
    return operation_->run({a_.data(), ends.data(), b_.data(), c_.data()}, {.compute_threads = threads});
  }
  std::vector<std::uint16_t> check(const Ends& ends, int threads = 2) {
    require_ok(run(ends, threads));
    CHECK_FALSE(operation_->refused());
    CHECK(wrong_elements(shape_, ends, a_, b_, c_) == 0);
    return c_;
  }
  void check_refused(const Ends& ends, const std::string& text) {
    CHECK(run(ends).to_string() == "INVALID_ARGUMENT: grouped_gemm: " + text);
    CHECK(operation_->refused());
    CHECK(std::all_of(c_.begin(), c_.end(), [](std::uint16_t bits) { return bits == kPoison; }));
  }

 private:
  FakeFabric fabric_{{}};
  const GroupedGemmShape shape_;
  const std::vector<std::uint16_t> a_, b_;
  std::vector<std::uint16_t> c_;
  std::unique_ptr<GroupedGemmOperation> operation_;
};

constexpr GroupedGemmShape kShape{.max_rows = 700, .k = 33, .n = 301, .groups = 6};

}  // namespace

TEST_CASE("grouped gemm: both types and layouts, any number of rows and threads") {
  for (const DataType type : {DataType::kBf16, DataType::kF16}) {
    for (const Layout layout : {Layout::kRowMajor, Layout::kColumnMajor}) {
      GroupedGemmShape shape = kShape;
      shape.dtype = type;
      shape.b_layout = layout;
      GroupedRank rank(shape);
      const Ends mixed = ends_of({0, 1, 300, 0, 129, 64});
      const auto one = rank.check(mixed, 1);
      CHECK(rank.check(mixed, 3) == one);
      rank.check(ends_of({700, 0, 0, 0, 0, 0}));
      rank.check(Ends(6, 0));
      rank.check(random_ends(6, 650, 3));
    }
  }
}

TEST_CASE("grouped gemm: bad ends are refused by group and value, and the next launch is right") {
  GroupedRank rank(kShape);
  rank.check_refused({1, 2, 1, 4, 5, 6}, "ends[2] = 1, but it must be 2..700");
  rank.check_refused({-3, 2, 1, 4, 5, 6}, "ends[0] = -3, but it must be 0..700");
  rank.check_refused({1, 2, 3, 4, 5, 701}, "ends[5] = 701, but it must be 5..700");
  rank.check({1, 2, 3, 4, 5, 600});
}

TEST_CASE("grouped gemm: a group that failed is said to have") {
  GroupedRank rank(kShape);
  rank.check(Ends(6, 9));
  CHECK(rank.operation().run({}, {}).text() == "grouped_gemm: a is null");
}

TEST_CASE("grouped gemm: shapes and options that no launch can take are refused by name") {
  FakeFabric fabric({});
  const auto refusal = [&](GroupedGemmShape shape, const kernels::MakeOptions& options = {}) {
    return kernels::make_grouped_gemm(shape, fabric.group(0), options).status().to_string();
  };
  const std::string begin = "INVALID_ARGUMENT: grouped_gemm: ";
  GroupedGemmShape shape = kShape;
  shape.max_rows = 0;
  CHECK(refusal(shape) == begin + "max_rows = 0, but it must be 1..1073741824");
  shape.max_rows = (1 << 30) + 1;
  CHECK(refusal(shape) == begin + "max_rows = 1073741825, but it must be 1..1073741824");
  shape = kShape;
  shape.groups = 1025;
  CHECK(refusal(shape) == begin + "groups = 1025, but it must be 1..1024");
  shape = kShape;
  shape.n = 1 << 30;
  CHECK(refusal(shape) == begin + "n * groups = 6442450944, but it must be at most 2147483647");
  shape = kShape;
  shape.dtype = static_cast<DataType>(9);
  CHECK(refusal(shape) == begin + "dtype = 9, must be bf16 (1) or f16 (2)");
  CHECK(refusal(kShape, {.plan = {.sms = 4}}) ==
        begin + "the cpu executor has no GemmPlanOptions to override");
  CHECK(refusal(kShape, {.executor = Executor::kCuda, .plan = {.comm_ctas = 4}}) ==
        begin + "comm_ctas and nic_gbytes must be 0: it does not communicate");
}

}  // namespace mkernel::test
