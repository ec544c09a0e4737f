// What a launch that fails leaves to those behind it, on the cuda executor. Three ranks share one GPU.
#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <latch>
#include <string>

#include "tests/support/gpu_ranks.h"

using namespace mkernel;
using namespace mkernel::kernels;
using namespace mkernel::test;
using namespace std::chrono_literals;

namespace {

constexpr int kLate = 2;
constexpr int kQueuedBehind = 4;

/// The ranks that are on time: a launch that waits for the late rank until its deadline, and others with
/// other inputs queued behind it before anybody can know.
Status run_ahead(GpuRanks& all, int rank, const ExecutorOptions& options) {
  for (std::uint64_t launch = 1; launch <= 1 + kQueuedBehind; ++launch) {
    MK_RETURN_IF_ERROR(all.fill(rank, launch));
    MK_RETURN_IF_ERROR(all.operation(rank).enqueue(all.arguments(rank), options, all.stream(rank).get()));
  }
  return all.stream(rank).synchronize();
}

template <class Op>
void check_late_rank(const FabricOptions& fabric, const GemmShape& shape) {
  CAPTURE(fabric.nodes);
  GpuRanks all = gpu_ranks<Op>(fabric, shape);
  const ExecutorOptions options{.deadline = 400ms};
  std::latch over(kLate);
  require_ok(all.each([&](int rank) -> Status {
    if (rank < kLate) {
      const Status ran = run_ahead(all, rank, options);
      over.count_down();
      MK_RETURN_IF_ERROR(ran);
      // The first failure is told, and not what the launches behind it would have missed.
      const Status failed = all.operation(rank).status();
      CHECK(failed.code() == StatusCode::kDeadlineExceeded);
      CHECK_MESSAGE(failed.text().find(" of rank 2") != std::string::npos, failed.text());
      CHECK_MESSAGE(failed.text().find("after 0.") != std::string::npos, failed.text());
      return {};
    }
    over.wait();
    MK_RETURN_IF_ERROR(all.fill(rank, 1));
    const Status late = all.run(rank, options);
    INFO(late.to_string());
    // Right or refused: every element is that of the first inputs.
    CHECK((late.ok() || late.code() == StatusCode::kDeadlineExceeded));
    return late.ok() ? all.verify(rank) : Status();
  }));
}

}  // namespace

TEST_CASE_TEMPLATE("launches behind a failed one neither push nor count: a late rank's result is right", Op,
                   AgGemm, GemmRs, GemmAr) {
  if (!peers_or_skip(1)) return;
  check_late_rank<Op>({.ranks_per_node = 3}, {3000, 512, 1024});
  check_late_rank<Op>({.ranks_per_node = 3}, {300, 136, 72});
  check_late_rank<Op>({.nodes = 3}, {3000, 512, 1024});
}

TEST_CASE_TEMPLATE("launches behind a failed one leave their results as they were", Op, AgGemm, GemmRs,
                   GemmAr) {
  if (!peers_or_skip(1)) return;
  GpuRanks all = gpu_ranks<Op>(2, {2048, 512, 1024});
  require_ok(all.each([&](int rank) -> Status {
    if (rank != 0) return {};
    const ExecutorOptions options{.deadline = 300ms};
    const auto enqueue = [&] {
      return all.operation(rank).enqueue(all.arguments(rank), options, all.stream(rank).get());
    };
    auto graph = bench::GpuGraph::capture(all.stream(rank), enqueue);
    MK_RETURN_IF_ERROR(graph.status());
    MK_RETURN_IF_ERROR(all.fill(rank, 1));
    MK_RETURN_IF_ERROR(graph->launch(all.stream(rank)));
    MK_RETURN_IF_ERROR(all.fill(rank, 2));
    MK_RETURN_IF_ERROR(all.stream(rank).synchronize());
    auto before = all.digest(rank);
    MK_RETURN_IF_ERROR(before.status());
    // A replay asks nobody, so this one is queued.
    const auto begin = std::chrono::steady_clock::now();
    MK_RETURN_IF_ERROR(graph->launch(all.stream(rank)));
    MK_RETURN_IF_ERROR(all.stream(rank).synchronize());
    CHECK(std::chrono::steady_clock::now() - begin < 200ms);
    auto after = all.digest(rank);
    MK_RETURN_IF_ERROR(after.status());
    CHECK(*after == *before);
    // The next call returns the reason, although nobody has asked for the status.
    const Status refused = enqueue();
    CHECK(refused.code() == StatusCode::kDeadlineExceeded);
    CHECK_MESSAGE(refused.text().find(" of rank 1") != std::string::npos, refused.text());
    CHECK(all.operation(rank).status().code() == StatusCode::kDeadlineExceeded);
    CHECK(enqueue().code() == StatusCode::kFailedPrecondition);
    return {};
  }));
}
