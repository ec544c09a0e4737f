// AG+GEMM on the cuda executor, every rank on a GPU of its own: random inputs, poisoned outputs, every
// element against fp64; replayed by graphs, and with a rank that does not come.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/memory/cuda_error.h"
#include "kernels/ops/cuda_operations.h"
#include "tests/support/gpu_world.h"
#include "tools/mkbench/gpu_matrix.h"

using namespace mkernel;
using namespace mkernel::kernels;
using namespace mkernel::bench;
using mkernel::test::GpuWorld;

namespace {

constexpr ExecutorOptions kOptions{.deadline = std::chrono::milliseconds(10000)};

std::string text(const GemmShape& s) {
  return std::to_string(s.m) + "x" + std::to_string(s.n) + "x" + std::to_string(s.k) +
         (s.dtype == DataType::kBf16 ? " bf16" : " fp16") +
         (s.b_layout == Layout::kRowMajor ? " row-major" : " column-major");
}

/// One rank's operation and operands. The whole of a is here too, for the reference; the operation sees its
/// rows.
struct Rank {
  std::unique_ptr<CudaGemmOperation> op;
  GpuBuffer whole_a, b, c;
  GemmArguments arguments;

  Status make(const GpuWorld& world, int rank, const GemmShape& s, const AgGemmCudaOptions& options) {
    auto made = make_cuda_ag_gemm(s, Topology(1, world.size()), rank, options);
    if (!made.ok()) return made.status();
    op = std::move(made).value();
    for (const auto& [buffer, bytes] :
         {std::pair{&whole_a, s.m * s.k * 2}, std::pair{&b, s.k * s.n * 2}, std::pair{&c, s.m * s.n * 2}}) {
      auto allocated = GpuBuffer::allocate(static_cast<std::uint64_t>(bytes));
      if (!allocated.ok()) return allocated.status();
      *buffer = std::move(allocated).value();
    }
    const std::int64_t first = block_range(s.m, world.size(), rank).begin;
    arguments = {static_cast<const std::byte*>(whole_a.get()) + first * s.k * 2, b.get(), c.get()};
    return {};
  }

  /// New operands (a the same on every rank), poisoned result.
  Status refill(const GemmShape& s, int rank, std::uint64_t seed) {
    MK_RETURN_IF_ERROR(
        fill_random(whole_a.get(), s.dtype, static_cast<std::uint64_t>(s.m * s.k), 100 * seed, nullptr));
    MK_RETURN_IF_ERROR(
        fill_random(b.get(), s.dtype, static_cast<std::uint64_t>(s.k * s.n), 100 * seed + rank + 1, nullptr));
    return poison(c, nullptr);
  }

  Status verify(const GemmShape& s) const {
    auto check = check_product({whole_a.get(), b.get(), c.get()}, s, false, nullptr);
    if (!check.ok()) return check.status();
    if (check->wrong == 0) return {};
    return {StatusCode::kDataLoss, text(s) + ": " + std::to_string(check->wrong) +
                                       " elements wrong, one at " + std::to_string(check->first_wrong)};
  }
};

void require_ok(const Status& status) {
  REQUIRE_MESSAGE(status.ok(), status.to_string());
}

/// `launches` of one operation with new operands each time, every one verified.
void check_case(int ranks, const GemmShape& s, const AgGemmCudaOptions& options = {}, int launches = 3) {
  CAPTURE(text(s));
  auto world = GpuWorld::make(ranks);
  require_ok(world.status());
  std::vector<Rank> all(ranks);
  require_ok((*world)->each([&](int rank) { return all[rank].make(**world, rank, s, options); }));
  auto workspace = (*world)->symmetric(all[0].op->requirements().workspace_bytes);
  require_ok(workspace.status());
  require_ok((*world)->each(
      [&](int rank) { return all[rank].op->bind((*world)->group(rank), (*workspace)[rank], 0); }));
  for (int launch = 0; launch < launches; ++launch) {
    // Launches of the ranks are not aligned: whoever is filled first begins, also with the next launch.
    require_ok((*world)->each([&](int rank) -> Status {
      MK_RETURN_IF_ERROR(all[rank].refill(s, rank, launch + 1));
      MK_RETURN_IF_ERROR(all[rank].op->run(all[rank].arguments, kOptions));
      return all[rank].verify(s);
    }));
  }
}

}  // namespace

TEST_CASE("every tile, type and layout, with tails in all dimensions") {
  if (!test::peers_or_skip(2)) return;
  const int ranks = test::peer_count();
  for (const Sm90Tile tile : kSm90Tiles) {
    for (const DataType type : {DataType::kBf16, DataType::kF16}) {
      for (const Layout layout : {Layout::kRowMajor, Layout::kColumnMajor}) {
        check_case(ranks, {1000, 392, 1032, type, layout}, {.tile = tile}, 2);
      }
    }
  }
}

TEST_CASE("any number of narrow tiles at the end, and rows that come in parts") {
  if (!test::peers_or_skip(2)) return;
  for (const std::int32_t tail : {0, 1, 1000}) {
    check_case(2, {1000, 776, 4104}, {.tile = Sm90Tile::k128x256, .tail_tiles = tail}, 2);
    check_case(2, {4097, 1032, 8200}, {.tile = Sm90Tile::k128x128, .comm_ctas = 4, .tail_tiles = tail}, 2);
  }
}

TEST_CASE("shapes: few rows, ranks without rows, one row, narrow, long") {
  if (!test::peers_or_skip(2)) return;
  const int ranks = test::peer_count();
  for (const GemmShape& s :
       {GemmShape{1, 8, 8}, GemmShape{2, 64, 64}, GemmShape{3, 384, 4096}, GemmShape{4097, 384, 512},
        GemmShape{12345, 384, 256}, GemmShape{256, 128, 20000}, GemmShape{2048, 2048, 2048}}) {
    check_case(ranks, s);
  }
}

TEST_CASE("a rank alone has nobody to push to") {
  if (!test::peers_or_skip(1)) return;
  for (const GemmShape& s : {GemmShape{1, 8, 8}, GemmShape{1000, 384, 512}}) check_case(1, s);
}

TEST_CASE("two ranks, and any number of pushing CTAs") {
  if (!test::peers_or_skip(2)) return;
  for (const std::int32_t comm_ctas : {2, 6, 32}) check_case(2, {3000, 512, 1024}, {.comm_ctas = comm_ctas});
}

TEST_CASE("captured in a graph and replayed with new operands, no host call between") {
  if (!test::peers_or_skip(2)) return;
  constexpr int kReplays = 1000;
  const int ranks = test::peer_count();
  const GemmShape s{1024, 256, 512};
  auto world = GpuWorld::make(ranks);
  require_ok(world.status());
  std::vector<Rank> all(ranks);
  require_ok((*world)->each([&](int rank) { return all[rank].make(**world, rank, s, {}); }));
  auto workspace = (*world)->symmetric(all[0].op->requirements().workspace_bytes);
  require_ok(workspace.status());
  require_ok((*world)->each(
      [&](int rank) { return all[rank].op->bind((*world)->group(rank), (*workspace)[rank], 0); }));
  require_ok((*world)->each([&](int rank) -> Status {
    Rank& me = all[rank];
    cudaStream_t stream = nullptr;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    MK_RETURN_IF_ERROR(cuda_status(cudaStreamCreate(&stream), "stream"));
    MK_RETURN_IF_ERROR(
        cuda_status(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture"));
    MK_RETURN_IF_ERROR(me.op->enqueue(me.arguments, kOptions, stream));
    MK_RETURN_IF_ERROR(cuda_status(cudaStreamEndCapture(stream, &graph), "capture"));
    MK_RETURN_IF_ERROR(cuda_status(cudaGraphInstantiate(&replay, graph, 0), "instantiate"));
    for (int i = 0; i < kReplays; ++i) {
      // Filled on the stream itself, so that nothing but the stream orders it.
      MK_RETURN_IF_ERROR(fill_random(me.whole_a.get(), s.dtype, s.m * s.k, i, stream));
      MK_RETURN_IF_ERROR(cuda_status(cudaGraphLaunch(replay, stream), "replay"));
    }
    MK_RETURN_IF_ERROR(cuda_status(cudaStreamSynchronize(stream), "replays"));
    MK_RETURN_IF_ERROR(me.op->status());
    MK_RETURN_IF_ERROR(me.verify(s));  // the last one
    cudaGraphExecDestroy(replay);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
    return {};
  }));
}

TEST_CASE("a rank that does not come is named within the deadline, and the GPU is usable at once") {
  if (!test::peers_or_skip(2)) return;
  const GemmShape s{2048, 512, 1024};
  auto world = GpuWorld::make(2);
  require_ok(world.status());
  std::vector<Rank> all(2);
  require_ok((*world)->each([&](int rank) { return all[rank].make(**world, rank, s, {}); }));
  auto workspace = (*world)->symmetric(all[0].op->requirements().workspace_bytes);
  require_ok(workspace.status());
  require_ok((*world)->each(
      [&](int rank) { return all[rank].op->bind((*world)->group(rank), (*workspace)[rank], 0); }));
  require_ok((*world)->each([&](int rank) -> Status {
    if (rank != 0) return {};
    MK_RETURN_IF_ERROR(all[0].refill(s, 0, 1));
    const auto begin = std::chrono::steady_clock::now();
    const Status missed = all[0].op->run(all[0].arguments, {.deadline = std::chrono::milliseconds(500)});
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5));
    CHECK(missed.code() == StatusCode::kDeadlineExceeded);
    CHECK_MESSAGE(missed.text().find("of rank 1") != std::string::npos, missed.text());
    CHECK(all[0].op->run(all[0].arguments, kOptions).code() == StatusCode::kFailedPrecondition);
    return {};
  }));
  check_case(2, s);
}

TEST_CASE("a group that fails ends the launch long before the deadline, with the group's reason") {
  if (!test::peers_or_skip(2)) return;
  const GemmShape s{2048, 512, 1024};
  auto world = GpuWorld::make(2);
  require_ok(world.status());
  std::vector<Rank> all(2);
  require_ok((*world)->each([&](int rank) { return all[rank].make(**world, rank, s, {}); }));
  auto workspace = (*world)->symmetric(all[0].op->requirements().workspace_bytes);
  require_ok(workspace.status());
  require_ok((*world)->each(
      [&](int rank) { return all[rank].op->bind((*world)->group(rank), (*workspace)[rank], 0); }));
  require_ok((*world)->each([&](int rank) -> Status {
    if (rank != 0) return {};
    MK_RETURN_IF_ERROR(all[0].refill(s, 0, 1));
    MK_RETURN_IF_ERROR(all[0].op->enqueue(all[0].arguments, {.deadline = std::chrono::seconds(60)}, nullptr));
    (*world)->fail_group(0, static_cast<std::uint32_t>(StatusCode::kUnavailable), "node b is gone");
    const auto begin = std::chrono::steady_clock::now();
    MK_RETURN_IF_ERROR(cuda_status(cudaDeviceSynchronize(), "launch"));
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5));
    const Status failed = all[0].op->status();
    CHECK(failed.code() == StatusCode::kUnavailable);
    CHECK_MESSAGE(failed.text().find("node b is gone") != std::string::npos, failed.text());
    return {};
  }));
}
