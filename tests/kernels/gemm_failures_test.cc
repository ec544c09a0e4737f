// What a GEMM operation says when something is wrong: before the launch, and when another rank is not there.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/lent_workspace.h"
#include "kernels/ops/make.h"
#include "kernels/plan/gemm_shape.h"
#include "tests/kernels/gemm_case.h"

using namespace mkernel;
using test::GemmCase;
using test::kGemmKinds;

namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a rank that never starts is named by those who wait for it") {
  for (const OpKind kind : kGemmKinds) {
    GemmCase gemm(kind, {40, 24, 16}, {.nodes = 2, .ranks_per_node = 2});
    gemm.fill(1);
    const auto statuses = gemm.run({std::chrono::milliseconds(800), 1}, {true, true, true, false});
    // Rank 2 shares the node of rank 3: its tiles and what it forwards are missing first.
    CAPTURE(statuses[2].to_string());
    CHECK(statuses[2].code() == StatusCode::kDeadlineExceeded);
    CHECK(contains(statuses[2].text(), "rank 3"));
    CHECK(contains(statuses[2].text(), "expected "));
    for (const std::uint32_t rank : {0, 1}) CHECK(statuses[rank].code() == StatusCode::kDeadlineExceeded);
    if (kind == OpKind::kAgGemm) {  // rank 1 hands rows of rank 3 on to rank 0, and gets them itself directly
      CHECK_MESSAGE(contains(statuses[0].text(), "of rank 3 through rank 1"), statuses[0].text());
      CHECK_MESSAGE(!contains(statuses[1].text(), "through"), statuses[1].text());
    }
    // The counts of the ranks no longer agree: no further launch.
    CHECK(gemm.run_rank(0, {}).code() == StatusCode::kFailedPrecondition);
  }
}

namespace {

/// Begins a launch of rank 0 in each of `cases`, all at the same time, while rank 1 is late. One begins; when
/// the other has been rejected, rank 1 comes. The number of the one that was rejected, and what it said.
std::pair<std::size_t, Status> launch_at_the_same_time(const std::array<GemmCase*, 2>& cases) {
  std::array<Status, 2> statuses;
  std::atomic<int> over{0};
  std::vector<std::thread> launches;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    launches.emplace_back([&, i] {
      statuses[i] = cases[i]->run_rank(0, {.compute_threads = 2});
      int none = 0;
      over.compare_exchange_strong(none, static_cast<int>(i) + 1);
      over.notify_all();
    });
  }
  over.wait(0);
  const auto rejected = static_cast<std::size_t>(over - 1), first = 1 - rejected;
  const Status late = cases[first]->run_rank(1, {.compute_threads = 2});
  for (std::thread& launch : launches) launch.join();
  CHECK(late.to_string() == Status().to_string());
  CHECK(statuses[first].to_string() == Status().to_string());
  return {rejected, statuses[rejected]};
}

}  // namespace

TEST_CASE("of two launches of an operation at a time the second is rejected, and the first is right") {
  for (const OpKind kind : kGemmKinds) {
    GemmCase gemm(kind, {40, 24, 16}, {.ranks_per_node = 2});
    gemm.fill(1);
    const auto outcome = launch_at_the_same_time({&gemm, &gemm});
    const Status& why = outcome.second;
    CHECK(why.code() == StatusCode::kFailedPrecondition);
    CHECK_MESSAGE(
        why.text().find(std::string(kernels::name_of(kind)) +
                        ": a launch of this operation is under way: launches of a group must follow "
                        "each other") == 0,
        why.text());
    CHECK(gemm.judge() == "");
    // Nothing has failed.
    gemm.fill(2);
    for (const Status& status : gemm.run({.compute_threads = 2})) CHECK(status.ok());
    CHECK(gemm.judge() == "");
  }
}

TEST_CASE("of two operations with one shared workspace the second is rejected while the first runs") {
  const auto fabric = std::make_shared<test::FakeFabric>(test::FabricOptions{.ranks_per_node = 2});
  GemmCase one(OpKind::kAgGemm, {40, 24, 16}, fabric), other(OpKind::kGemmAr, {40, 24, 16}, fabric);
  const auto lent = fabric->symmetric(kernels::lent_workspace_bytes(
      std::max(one.requirements().lent_bytes, other.requirements().lent_bytes)));
  for (GemmCase* each : {&one, &other}) {
    each->bind(lent, 0);
    each->fill(1);
  }
  const std::array<GemmCase*, 2> cases{&one, &other};
  const auto outcome = launch_at_the_same_time(cases);
  const Status& why = outcome.second;
  const std::size_t rejected = outcome.first;
  CHECK(why.code() == StatusCode::kFailedPrecondition);
  CHECK_MESSAGE(contains(why.text(),
                         ": a launch of another operation of this group is under way: launches of "
                         "a group must follow each other"),
                why.text());
  CHECK(cases[1 - rejected]->judge() == "");
  for (const Status& status : cases[rejected]->run({.compute_threads = 2})) CHECK(status.ok());
  CHECK(cases[rejected]->judge() == "");
}

TEST_CASE("a failed group ends the launch with the daemon's words") {
  for (const OpKind kind : kGemmKinds) {
    GemmCase gemm(kind, {40, 24, 16}, {.nodes = 2, .ranks_per_node = 2});
    gemm.fill(1);
    std::atomic<bool> done{false};
    Status status;
    std::thread rank([&] {
      status = gemm.run_rank(1, {std::chrono::minutes(5), 1});
      done = true;
    });
    gemm.fabric().fail_group(StatusCode::kUnavailable, 3, "n1", "client of rank 3 was killed");
    rank.join();
    CAPTURE(status.to_string());
    CHECK(status.code() == StatusCode::kUnavailable);
    CHECK(contains(status.text(), "client of rank 3 was killed"));
    CHECK(contains(status.text(), "rank 3"));
    CHECK(contains(status.text(), "n1"));
    CHECK(contains(status.text(), "rank 1"));
  }
}

TEST_CASE("shapes that no launch can take are refused by name") {
  test::FakeFabric fabric({});
  const auto refusal = [&](const GemmShape& shape, OpKind kind = OpKind::kGemmRs) {
    const auto operation = kernels::make_gemm(kind, shape, fabric.group(0));
    CHECK(operation.status().code() == StatusCode::kInvalidArgument);
    return operation.status().text();
  };
  CHECK(contains(refusal({0, 4, 4}), "gemm_rs: m = 0, must be 1.."));
  CHECK(contains(refusal({4, 0, 4}), "n = 0"));
  CHECK(contains(refusal({(1 << 30) + 1, 4, 4}), "gemm_rs: m = 1073741825, must be 1..1073741824"));
  CHECK(contains(refusal({4, 4, -1}), "k = -1"));
  for (const auto kind : {OpKind::kAgGemm, OpKind::kGemmRs, OpKind::kGemmAr})
    CHECK(contains(refusal({-8, 4, 4}, kind), "m = -8"));  // once a tile was chosen for it first: an abort
  CHECK(contains(refusal({4, std::int64_t{1} << 31, 4}), "n = 2147483648, must be 1..2147483647"));
  CHECK(contains(refusal({4, 4, std::int64_t{1} << 30}), "k = 1073741824, must be 1..536870912"));
  CHECK(contains(refusal({1 << 30, 1 << 30, 1}), "m * n"));
  CHECK(contains(refusal({4, 4, 4, static_cast<DataType>(9)}), "dtype = 9"));
  CHECK(contains(refusal({4, 4, 4, DataType::kBf16, static_cast<Layout>(5)}), "b_layout = 5"));
  CHECK(contains(refusal({4, 4, 4}, OpKind::kRingAttention), "kind is ring_attention"));
}

TEST_CASE("more than one b: refused where it is none of AG+GEMM's, or has a gap, or is too large") {
  test::FakeFabric fabric({.nodes = 1, .ranks_per_node = 2});
  const auto refusal = [&](std::array<std::int64_t, kMostMoreB> more, OpKind kind = OpKind::kAgGemm) {
    GemmShape shape{4, 4, 4};
    std::copy(more.begin(), more.end(), shape.more_n);
    return kernels::make_gemm(kind, shape, fabric.group(0)).status().text();
  };
  CHECK(refusal({8, 0, 0}, OpKind::kGemmRs) ==
        "gemm_rs: more_n[0] = 8, and only ag_gemm takes more than one b");
  CHECK(refusal({0, 8, 0}) == "ag_gemm: more_n[1] = 8, and the one before it is 0");
  CHECK(refusal({8, -1, 0}) == "ag_gemm: more_n[1] = -1, must be 1..2147483647");
  CHECK(refusal({1 << 30, 1 << 30, 0}) == "ag_gemm: n of all products = 2147483652, must be 1..2147483647");
  CHECK(refusal({1, 2, 3}).empty());
  std::uint16_t memory[16]{};
  GemmArguments arguments{memory, memory, memory};
  GemmShape shape{4, 4, 4};
  shape.more_n[0] = 4;
  CHECK(kernels::check_operands(OpKind::kAgGemm, shape, arguments, 0, 2).text() ==
        "ag_gemm: more_b[0] is null");
  arguments.more_b[0] = memory;
  CHECK(kernels::check_operands(OpKind::kAgGemm, shape, arguments, 0, 2).text() ==
        "ag_gemm: more_c[0] is null");
}

TEST_CASE("an operation refuses a workspace, lanes or operands that do not fit") {
  test::FakeFabric two_nodes({.nodes = 2, .ranks_per_node = 1, .lanes = 2});
  auto wide = kernels::make_gemm(OpKind::kGemmAr, {8, 8, 8}, two_nodes.group(0));
  REQUIRE(wide.ok());
  const auto lent_bytes = [](const auto& made) {
    return kernels::lent_workspace_bytes(made.value()->requirements().lent_bytes);
  };
  auto room = two_nodes.symmetric(wide.value()->requirements().workspace_bytes);
  const Status lanes =
      wide.value()->bind(two_nodes.group(0), room[0], two_nodes.symmetric(lent_bytes(wide))[0], 1);
  CHECK(lanes.code() == StatusCode::kInvalidArgument);
  CHECK(contains(lanes.text(), "needs 2 lanes from lane 1 on, the group has 2"));

  test::FakeFabric fabric({});
  auto operation = kernels::make_gemm(OpKind::kGemmAr, {8, 8, 8}, fabric.group(0));
  REQUIRE(operation.ok());
  std::uint16_t a[64] = {}, b[64] = {}, c[64] = {};
  CHECK(operation.value()->run({a, b, c}, {}).code() == StatusCode::kFailedPrecondition);

  const std::uint64_t bytes = operation.value()->requirements().workspace_bytes;
  const auto small = fabric.symmetric(bytes - 1), enough = fabric.symmetric(bytes);
  const auto small_lent = fabric.symmetric(lent_bytes(operation) - 1);
  const auto lent = fabric.symmetric(lent_bytes(operation));
  const auto bind = [&](const auto& workspace, const auto& lent_one) {
    return operation.value()->bind(fabric.group(0), workspace[0], lent_one[0], 0);
  };
  CHECK(contains(bind(small, lent).text(), "gemm_ar: workspace of " + std::to_string(bytes - 1)));
  CHECK(contains(bind(enough, small_lent).text(), "gemm_ar: lent workspace of "));
  REQUIRE(bind(enough, lent).ok());
  CHECK(bind(enough, lent).code() == StatusCode::kFailedPrecondition);

  CHECK(contains(operation.value()->run({nullptr, b, c}, {}).text(), "a is null"));
  CHECK(contains(operation.value()->run({a, nullptr, c}, {}).text(), "b is null"));
  CHECK(contains(operation.value()->run({a, b, nullptr}, {}).text(), "c is null"));
  CHECK(contains(operation.value()->run({a, b, c, a}, {}).text(), "gemm_ar: gathered is not null"));
  CHECK(contains(operation.value()->run({a, b, c}, {.deadline = std::chrono::minutes(31)}).text(),
                 "gemm_ar: deadline = 1860000 ms, must be 1..1800000"));
  CHECK(operation.value()->run({a, b, c}, {}).ok());  // a refusal is no failed launch
  CHECK(operation.value()->signature() == "gemm_ar m=8 n=8 k=8 bf16 row-major");
}
