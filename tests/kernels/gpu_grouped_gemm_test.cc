// The grouped GEMM on the cuda executor: random inputs, poisoned outputs, every element against fp64, ends
// that are refused, launches queued and replayed by graphs.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/launch/operation.h"
#include "kernels/cuda/memory/error.h"
#include "kernels/ops/make.h"
#include "tests/support/gpu_held_stream.h"
#include "tests/support/gpu_two_launches.h"
#include "tests/support/gpu_world.h"
#include "tests/support/grouped_gemm_cases.h"
#include "tests/support/require.h"
#include "tools/mkbench/gpu_matrix.h"
#include "tools/mkbench/gpu_stream.h"

namespace mkernel::test {
namespace {

using namespace std::chrono_literals;
using Ends = std::vector<std::int32_t>;
using Tensor = std::vector<std::uint16_t>;

constexpr ExecutorOptions kOptions{.deadline = 10s};
constexpr std::uint16_t kUntouched = 0xffff;  // of bench::poison()

bench::GpuBuffer allocate(std::int64_t elements, std::int64_t bytes_each = 2) {
  return require(bench::GpuBuffer::allocate(static_cast<std::uint64_t>(elements * bytes_each)));
}

/// An operation of a rank alone, bound, with operands on the GPU.
class GroupedRank {
 public:
  explicit GroupedRank(const GroupedGemmShape& shape, const kernels::GroupedGemmOptions& options = {})
      : shape_(shape),
        world_(require(GpuWorld::make(1))),
        operation_(require(kernels::make_cuda_grouped_gemm(shape, {1, 1}, 0, options))),
        stream_(require(bench::GpuStream::create())),
        a_(allocate(shape.max_rows * shape.k)),
        ends_(allocate(shape.groups, 4)),
        b_(allocate(shape.groups * shape.k * shape.n)),
        c_(allocate(shape.max_rows * shape.n)) {
    require_ok(operation_->bind(world_->group(0), {}, {}, 1));
  }

  GpuWorld& world() { return *world_; }
  kernels::CudaGroupedGemmOperation& operation() { return *operation_; }
  const bench::GpuStream& stream() const { return stream_; }
  GroupedGemmArguments arguments() const {
    return {a_.get(), static_cast<const std::int32_t*>(ends_.get()), b_.get(), c_.get()};
  }

  /// Queues new matrices, these ends, and poison into c.
  void fill(const Ends& ends, std::uint64_t seed) {
    REQUIRE(static_cast<std::int64_t>(ends.size()) == shape_.groups);
    require_ok(random(a_, 2 * seed));
    require_ok(random(b_, 2 * seed + 1));
    require_ok(copy(ends_.get(), ends.data(), ends.size() * 4));
    require_ok(poison_output());
  }
  Status poison_output() { return bench::poison(c_, stream_.get()); }
  Status enqueue() { return operation_->enqueue(arguments(), kOptions, stream_.get()); }

  /// All of c. Waits for the stream.
  Tensor output() const {
    Tensor c(static_cast<std::size_t>(shape_.max_rows * shape_.n));
    require_ok(copy(c.data(), c_.get(), c.size() * 2));
    require_ok(stream_.synchronize());
    return c;
  }

  /// What a launch with these ends has left, element by element.
  void verify(const Ends& ends) {
    require_ok(stream_.synchronize());
    const auto* a = static_cast<const std::uint16_t*>(a_.get());
    const auto* b = static_cast<const std::uint16_t*>(b_.get());
    auto* c = static_cast<std::uint16_t*>(c_.get());
    for (const auto& [begin, rows] : rows_of(ends)) {
      if (rows > 0) {
        const auto check = require(
            bench::check_product({a + begin * shape_.k, b, c + begin * shape_.n},
                                 {rows, shape_.n, shape_.k, shape_.dtype, shape_.b_layout}, stream_.get()));
        const std::int64_t first = begin;
        CHECK_MESSAGE(check.wrong == 0, check.wrong << " of " << check.elements
                                                    << " elements of the group from row " << first
                                                    << ", one at " << check.first_wrong);
      }
      b += shape_.k * shape_.n;
    }
    const Tensor all = output();
    const auto end = all.begin() + std::ptrdiff_t{ends.back()} * static_cast<std::ptrdiff_t>(shape_.n);
    CHECK(std::all_of(end, all.end(), [](std::uint16_t bits) { return bits == kUntouched; }));
  }

  /// One launch with new matrices; c.
  Tensor run_checked(const Ends& ends, std::uint64_t seed) {
    fill(ends, seed);
    require_ok(stream_.synchronize());  // run() has a stream of its own
    require_ok(operation_->run(arguments(), kOptions));
    CHECK_FALSE(operation_->refused());
    verify(ends);
    return output();
  }

  /// One launch that is refused with these words, and writes nothing.
  void run_refused(const Ends& ends, const std::string& text) {
    fill(ends, 1);
    require_ok(stream_.synchronize());
    CHECK(operation_->run(arguments(), kOptions).to_string() == "INVALID_ARGUMENT: grouped_gemm: " + text);
    CHECK(operation_->refused());
    check_nothing_written();
    CHECK(operation_->status().to_string() == "OK");  // it was told
    CHECK_FALSE(operation_->refused());
  }
  void check_nothing_written() const {
    const Tensor all = output();
    CHECK(std::all_of(all.begin(), all.end(), [](std::uint16_t bits) { return bits == kUntouched; }));
  }

 private:
  Status random(const bench::GpuBuffer& buffer, std::uint64_t seed) const {
    return bench::fill_random(buffer.get(), shape_.dtype, buffer.bytes() / 2, seed, stream_.get());
  }
  Status copy(void* to, const void* from, std::size_t bytes) const {
    return kernels::cuda_status(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_.get()),
                                "operands");
  }

  const GroupedGemmShape shape_;
  std::unique_ptr<GpuWorld> world_;
  std::unique_ptr<kernels::CudaGroupedGemmOperation> operation_;
  bench::GpuStream stream_;
  bench::GpuBuffer a_, ends_, b_, c_;
};

/// Groups of every kind: none of their rows, a tile's, a block's, an odd number of blocks, several.
const Ends kMixed = ends_of({0, 1, 64, 65, 0, 0, 128, 129, 300, 7, 520, 0});
constexpr GroupedGemmShape kOdd{.max_rows = 1300, .k = 200, .n = 776, .groups = 12};
constexpr GroupedGemmShape kSmall{.max_rows = 300, .k = 72, .n = 264, .groups = 5};

/// Every type and layout.
template <class Check>
void for_all(GroupedGemmShape shape, const Check& check) {
  for (const DataType type : {DataType::kBf16, DataType::kF16}) {
    for (const Layout layout : {Layout::kRowMajor, Layout::kColumnMajor}) {
      shape.dtype = type;
      shape.b_layout = layout;
      GroupedRank rank(shape);
      CAPTURE(rank.operation().signature());
      check(rank);
    }
  }
}

}  // namespace

TEST_CASE("grouped gemm: every type and layout, groups of any number of rows") {
  if (!peers_or_skip(1)) return;
  for_all(kOdd, [](GroupedRank& rank) {
    rank.run_checked(kMixed, 1);
    rank.run_checked(ends_of({0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1300}), 2);
    rank.run_checked(ends_of({1300, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}), 3);
    for (std::uint64_t seed = 4; seed < 8; ++seed) rank.run_checked(random_ends(12, 1299, seed), seed);
  });
  for_all({.max_rows = 1, .k = 8, .n = 8, .groups = 1}, [](GroupedRank& rank) { rank.run_checked({1}, 1); });
  for_all({.max_rows = 257, .k = 1032, .n = 520, .groups = 3}, [](GroupedRank& rank) {
    rank.run_checked({128, 128, 257}, 1);
  });
}

TEST_CASE("grouped gemm: a shape small enough for tools that watch every access") {
  if (!peers_or_skip(1)) return;
  GroupedGemmShape shape = kSmall;
  for (const auto& [type, layout] :
       {std::pair{DataType::kBf16, Layout::kRowMajor}, {DataType::kF16, Layout::kColumnMajor}}) {
    shape.dtype = type;
    shape.b_layout = layout;
    GroupedRank(shape, {.sms = 8}).run_checked({130, 130, 131, 240, 300}, 1);
  }
}

TEST_CASE("grouped gemm: many groups, most of them without rows") {
  if (!peers_or_skip(1)) return;
  for (const std::int64_t groups : {31, 32, 33, 1000, 1024}) {
    GroupedRank rank({.max_rows = 700, .k = 24, .n = 40, .groups = groups});
    rank.run_checked(random_ends(groups, 700, 1), 1);
    Ends last(static_cast<std::size_t>(groups), 0);
    last.back() = 400;
    rank.run_checked(last, 2);
    Ends one_each;
    for (std::int32_t group = 0; group < groups; ++group) one_each.push_back(std::min(group + 1, 700));
    rank.run_checked(one_each, 3);
  }
}

TEST_CASE("grouped gemm: more tiles than CTAs, and none at all") {
  if (!peers_or_skip(1)) return;
  GroupedRank rank({.max_rows = 5000, .k = 136, .n = 2056, .groups = 7, .b_layout = Layout::kColumnMajor});
  for (std::uint64_t seed = 1; seed < 4; ++seed) rank.run_checked(random_ends(7, 5000, seed), seed);
  rank.run_checked(Ends(7, 0), 4);
  rank.run_checked(random_ends(7, 2000, 5), 5);
}

TEST_CASE("grouped gemm: few rows, some tasks cut, and a group that goes through its columns in bands") {
  if (!peers_or_skip(1)) return;
  for (const Layout layout : {Layout::kRowMajor, Layout::kColumnMajor}) {
    const GroupedGemmShape few{.max_rows = 64, .k = 520, .n = 4000, .groups = 50, .b_layout = layout};
    for (std::uint64_t seed = 1; seed < 4; ++seed) {
      const Ends ends = random_ends(50, 64, seed);
      const Tensor all = GroupedRank(few).run_checked(ends, seed);
      for (const std::int32_t sms : {10, 34, 70})
        CHECK(GroupedRank(few, {.sms = sms}).run_checked(ends, seed) == all);
    }
    // Low boxes of a: one, whole ones, one row more, and high boxes in the same launch.
    GroupedRank({.max_rows = 211, .k = 520, .n = 4000, .groups = 6, .b_layout = layout})
        .run_checked(ends_of({1, 8, 9, 63, 64, 66}), 1);
    GroupedRank({.max_rows = 1800, .k = 7168, .n = 520, .groups = 2, .b_layout = layout})
        .run_checked({1700, 1790}, 1);
  }
}

TEST_CASE("grouped gemm: the same bits on few multiprocessors as on all") {
  if (!peers_or_skip(1)) return;
  const auto bits = [](const kernels::GroupedGemmOptions& options) {
    return GroupedRank(kOdd, options).run_checked(kMixed, 1);
  };
  const Tensor all = bits({});
  CHECK(bits({.sms = 2}) == all);
  CHECK(bits({.sms = 7}) == all);
}

TEST_CASE("grouped gemm: bad ends are refused by group and value, and the next launch is right") {
  if (!peers_or_skip(1)) return;
  GroupedRank rank(kSmall);
  const Ends good{130, 130, 131, 240, 300};
  rank.run_checked(good, 1);
  for (int round = 0; round < 2; ++round) {
    rank.run_refused({130, 129, 131, 240, 300}, "ends[1] = 129, but it must be 130..300");
    rank.run_refused({-1, 130, 131, 240, 300}, "ends[0] = -1, but it must be 0..300");
    rank.run_refused({1, 1, 1, 1, 301}, "ends[4] = 301, but it must be 1..300");
    rank.run_checked(good, 2);
  }
  // Of several the first; also when a sum of 32 bits would overflow.
  rank.run_refused({2000000000, -2000000000, 1, 7, 9}, "ends[0] = 2000000000, but it must be 0..300");
  rank.run_checked(good, 3);

  GroupedRank many({.max_rows = 700, .k = 24, .n = 40, .groups = 100});
  Ends ends(100, 10);
  ends[70] = 9;
  many.run_refused(ends, "ends[70] = 9, but it must be 10..700");
  ends[70] = 10;
  many.run_checked(ends, 1);
}

TEST_CASE(
    "grouped gemm: of launches queued one behind the other a refused one stops none, and is told once") {
  if (!peers_or_skip(1)) return;
  GroupedRank rank(kSmall);
  const Ends good{10, 20, 140, 140, 290};
  rank.fill(good, 1);
  require_ok(rank.enqueue());
  rank.fill({10, 20, 19, 140, 290}, 2);
  require_ok(rank.enqueue());
  rank.fill(good, 3);
  require_ok(rank.enqueue());
  require_ok(rank.stream().synchronize());
  CHECK(rank.operation().status().to_string() ==
        "INVALID_ARGUMENT: grouped_gemm: ends[2] = 19, but it must be 20..300");
  CHECK(rank.operation().refused());
  CHECK(rank.operation().status().to_string() == "OK");
  CHECK_FALSE(rank.operation().refused());
  rank.verify(good);
}

TEST_CASE("grouped gemm: captured in a graph and replayed with new matrices and ends, also bad ones") {
  if (!peers_or_skip(1)) return;
  GroupedRank rank(kOdd);
  const auto graph = require(bench::GpuGraph::capture(rank.stream(), [&] { return rank.enqueue(); }));
  for (std::uint64_t round = 0; round < 30; ++round) {
    CAPTURE(round);
    Ends ends = random_ends(12, static_cast<std::int64_t>(44 * round), round);
    const bool bad = round % 7 == 3;
    if (bad) ends[5] = 1301;
    rank.fill(ends, round);
    require_ok(graph.launch(rank.stream()));
    require_ok(rank.stream().synchronize());
    if (bad) {
      CHECK(rank.operation().status().code() == StatusCode::kInvalidArgument);
      rank.check_nothing_written();
    } else {
      require_ok(rank.operation().status());
      rank.verify(ends);
    }
  }
}

TEST_CASE("grouped gemm: a group that failed ends the launches, with the group's reason") {
  if (!peers_or_skip(1)) return;
  GroupedRank rank(kSmall);
  const Ends ends{130, 130, 131, 240, 300};
  rank.run_checked(ends, 1);
  rank.world().fail_group(0, static_cast<std::uint32_t>(StatusCode::kUnavailable), "node b is gone");
  rank.fill(ends, 2);
  require_ok(rank.stream().synchronize());
  {  // until both are queued: one that is queued when the first has failed is refused at once
    const HeldStream held(rank.stream().get());
    require_ok(held.status());
    require_ok(rank.enqueue());
    require_ok(rank.poison_output());
    require_ok(rank.enqueue());
    CHECK(held.holds());
  }
  require_ok(rank.stream().synchronize());
  const Status failed = rank.operation().status();
  CHECK(failed.code() == StatusCode::kUnavailable);
  CHECK_MESSAGE(failed.text().find("node b is gone") != std::string::npos, failed.text());
  CHECK_FALSE(rank.operation().refused());
  rank.check_nothing_written();  // by the one behind it
  CHECK(rank.enqueue().code() == StatusCode::kFailedPrecondition);
}

TEST_CASE("grouped gemm: operands and shapes that the kernel does not take are refused by name") {
  if (!peers_or_skip(1)) return;
  GroupedRank rank(kSmall);
  const GroupedGemmArguments good = rank.arguments();
  const auto refused = [&](const GroupedGemmArguments& arguments) {
    const Status status = rank.operation().enqueue(arguments, kOptions, rank.stream().get());
    CHECK(status.code() == StatusCode::kInvalidArgument);
    CHECK_FALSE(rank.operation().refused());
    return status.text();
  };
  GroupedGemmArguments bad = good;
  bad.ends = nullptr;
  CHECK(refused(bad) == "grouped_gemm: ends is null");
  bad = good;
  bad.b = static_cast<const std::byte*>(good.b) + 8;
  CHECK(refused(bad) == "grouped_gemm: matrix b: address modulo 16 is 8, must be 0");
  rank.run_checked({130, 130, 131, 240, 300}, 1);

  const auto refusal = [](const GroupedGemmShape& shape, const kernels::GroupedGemmOptions& options = {}) {
    return kernels::make_cuda_grouped_gemm(shape, {1, 1}, 0, options).status().to_string();
  };
  const std::string begin = "INVALID_ARGUMENT: grouped_gemm: ";
  CHECK(refusal({.max_rows = 8, .k = 12, .n = 8, .groups = 1}) ==
        begin + "k = 12, but it must be a multiple of 8 on the cuda executor");
  CHECK(refusal({.max_rows = 8, .k = 8, .n = 8, .groups = 1025}) ==
        begin + "groups = 1025, but it must be 1..1024");
  CHECK(refusal(kSmall, {.sms = 1}) == begin + "sms = 1, but it must be at least 2 on the cuda executor");
  CHECK(refusal(kSmall, {.machine = "H300"}).find("machine = \"H300\"") != std::string::npos);
}

TEST_CASE("grouped gemm: of two launches at a time one says so, and nothing is launched after them") {
  if (!peers_or_skip(1)) return;
  GroupedRank rank({.max_rows = 32768, .k = 1024, .n = 2048, .groups = 4}, {.sms = half_of_the_sms()});
  rank.run_checked({9000, 18000, 25000, 32768}, 1);
  const auto launch = [&](CUstream_st* stream) {
    return rank.operation().enqueue(rank.arguments(), kOptions, stream);
  };
  launch_at_the_same_time(launch, launch);
  check_not_alone(rank.operation().status(), "grouped_gemm");
  CHECK(rank.enqueue().code() == StatusCode::kFailedPrecondition);
}

}  // namespace mkernel::test
