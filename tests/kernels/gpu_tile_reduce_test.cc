// GEMM+RS and GEMM+AR on the cuda executor, every rank on a GPU of its own: random inputs, poisoned outputs,
// every element against fp64, all ranks' bits against each other; replayed by graphs, and with a rank that
// does not come.
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

#include "kernels/memory/cuda_error.h"
#include "kernels/ops/cuda_operations.h"
#include "tests/support/gpu_world.h"
#include "tools/mkbench/gpu_matrix.h"

using namespace mkernel;
using namespace mkernel::kernels;
using namespace mkernel::bench;
using mkernel::test::GpuWorld;

namespace {

struct GemmRs {
  static constexpr OpKind kKind = OpKind::kGemmRs;
  static constexpr auto make = make_cuda_gemm_rs;
};
struct GemmAr {
  static constexpr OpKind kKind = OpKind::kGemmAr;
  static constexpr auto make = make_cuda_gemm_ar;
};

}  // namespace

TYPE_TO_STRING(GemmRs);
TYPE_TO_STRING(GemmAr);

namespace {

constexpr ExecutorOptions kOptions{.deadline = std::chrono::milliseconds(10000)};

std::string text(const GemmShape& s) {
  return std::to_string(s.m) + "x" + std::to_string(s.n) + "x" + std::to_string(s.k) +
         (s.dtype == DataType::kBf16 ? " bf16" : " fp16") +
         (s.b_layout == Layout::kRowMajor ? " row-major" : " column-major");
}

void require_ok(const Status& status) {
  REQUIRE_MESSAGE(status.ok(), status.to_string());
}

struct Rank {
  std::unique_ptr<CudaGemmOperation> op;
  GpuBuffer a, b, c;
  GemmArguments arguments;
};

/// One operation on every rank, bound, with operands.
template <class Op>
class Ranks {
 public:
  Ranks(int ranks, const GemmShape& shape, const TileReduceOptions& options = {})
      : shape_(shape), all_(ranks) {
    auto world = GpuWorld::make(ranks);
    require_ok(world.status());
    world_ = std::move(world).value();
    require_ok(world_->each([&](int rank) { return make(rank, options); }));
    auto workspace = world_->symmetric(all_[0].op->requirements().workspace_bytes);
    require_ok(workspace.status());
    require_ok(world_->each(
        [&](int rank) { return all_[rank].op->bind(world_->group(rank), (*workspace)[rank], 0); }));
  }

  GpuWorld& world() { return *world_; }
  Rank& operator[](int rank) { return all_[rank]; }
  /// That the rank gets.
  Range rows(int rank) const {
    return Op::kKind == OpKind::kGemmRs ? block_range(shape_.m, world_->size(), rank) : Range{0, shape_.m};
  }

  /// New operands, poisoned result.
  Status refill(int rank, std::uint64_t seed, CUstream_st* stream = nullptr) {
    Rank& me = all_[rank];
    const auto a_count = static_cast<std::uint64_t>(shape_.m * shape_.k);
    const auto b_count = static_cast<std::uint64_t>(shape_.k * shape_.n);
    MK_RETURN_IF_ERROR(fill_random(me.a.get(), shape_.dtype, a_count, 100 * seed + 2 * rank, stream));
    MK_RETURN_IF_ERROR(fill_random(me.b.get(), shape_.dtype, b_count, 100 * seed + 2 * rank + 1, stream));
    return poison(me.c, stream);
  }

  /// When no rank changes its operands: all of them are read.
  void verify() const {
    const int checked = Op::kKind == OpKind::kGemmRs ? world_->size() : 1;
    require_ok(world_->each([&](int rank) { return rank < checked ? verify(rank) : Status(); }));
    const std::vector<std::uint16_t> first = result(0);
    for (int rank = checked; rank < world_->size(); ++rank) REQUIRE(result(rank) == first);
  }

  Status verify(int rank) const {
    std::vector<GemmArguments> partials;
    for (const Rank& other : all_) partials.push_back(other.arguments);
    auto check = check_reduced_product(partials, all_[rank].c.get(), shape_, rows(rank), nullptr);
    if (!check.ok()) return check.status();
    if (check->wrong == 0) return {};
    return {StatusCode::kDataLoss, text(shape_) + ": " + std::to_string(check->wrong) +
                                       " elements wrong, one at " + std::to_string(check->first_wrong)};
  }

  std::vector<std::uint16_t> result(int rank) const {
    std::vector<std::uint16_t> host(static_cast<std::size_t>(rows(rank).size() * shape_.n));
    require_ok(cuda_status(
        cudaMemcpy(host.data(), all_[rank].c.get(), host.size() * 2, cudaMemcpyDeviceToHost), "copy"));
    return host;
  }

 private:
  Status make(int rank, const TileReduceOptions& options) {
    Rank& me = all_[rank];
    auto made = Op::make(shape_, Topology(1, world_->size()), rank, options);
    if (!made.ok()) return made.status();
    me.op = std::move(made).value();
    const std::int64_t own = std::max<std::int64_t>(1, rows(rank).size());
    for (const auto& [buffer, count] :
         {std::pair{&me.a, shape_.m * shape_.k}, std::pair{&me.b, shape_.k * shape_.n},
          std::pair{&me.c, own * shape_.n}}) {
      auto allocated = GpuBuffer::allocate(static_cast<std::uint64_t>(count) * 2);
      if (!allocated.ok()) return allocated.status();
      *buffer = std::move(allocated).value();
    }
    me.arguments = {me.a.get(), me.b.get(), me.c.get()};
    return {};
  }

  const GemmShape shape_;
  std::unique_ptr<GpuWorld> world_;
  std::vector<Rank> all_;
};

/// `launches` of one operation with new operands each time, every one verified.
template <class Op>
void check_case(int ranks, const GemmShape& s, const TileReduceOptions& options = {}, int launches = 3) {
  CAPTURE(text(s));
  Ranks<Op> all(ranks, s, options);
  for (int launch = 0; launch < launches; ++launch) {
    // Launches of the ranks are not aligned: whoever is filled first begins.
    require_ok(all.world().each([&](int rank) -> Status {
      MK_RETURN_IF_ERROR(all.refill(rank, launch + 1));
      return all[rank].op->run(all[rank].arguments, kOptions);
    }));
    all.verify();
  }
}

}  // namespace

TEST_CASE_TEMPLATE("every tile, type and layout, with tails in all dimensions", Op, GemmRs, GemmAr) {
  if (!test::peers_or_skip(2)) return;
  const int ranks = test::peer_count();
  for (const Sm90Tile tile : kSm90Tiles) {
    for (const DataType type : {DataType::kBf16, DataType::kF16}) {
      for (const Layout layout : {Layout::kRowMajor, Layout::kColumnMajor}) {
        check_case<Op>(ranks, {1000, 392, 1032, type, layout}, {.tile = tile}, 2);
      }
    }
  }
}

TEST_CASE_TEMPLATE("a shape small enough for tools that watch every access", Op, GemmRs, GemmAr) {
  if (!test::peers_or_skip(2)) return;
  check_case<Op>(2, {300, 136, 72});
}

TEST_CASE_TEMPLATE("shapes: few rows, ranks without rows, one row, narrow, long", Op, GemmRs, GemmAr) {
  if (!test::peers_or_skip(2)) return;
  const int ranks = test::peer_count();
  for (const GemmShape& s :
       {GemmShape{1, 8, 8}, GemmShape{2, 64, 64}, GemmShape{3, 4096, 384}, GemmShape{4097, 384, 512},
        GemmShape{12345, 384, 256}, GemmShape{256, 128, 20000}, GemmShape{2048, 2048, 512},
        GemmShape{5000, 3000, 264}}) {
    check_case<Op>(ranks, s);
  }
}

TEST_CASE_TEMPLATE("two and three ranks, and any number of summing CTAs", Op, GemmRs, GemmAr) {
  if (!test::peers_or_skip(2)) return;
  for (const std::int32_t reduce_ctas : {2, 6, 32})
    check_case<Op>(2, {3000, 512, 1024}, {.reduce_ctas = reduce_ctas});
  if (test::peer_count() >= 3) check_case<Op>(3, {3000, 512, 1024});
  check_case<Op>(1, {1000, 512, 256});
}

TEST_CASE_TEMPLATE("captured in a graph and replayed with new operands, no host call between", Op, GemmRs,
                   GemmAr) {
  if (!test::peers_or_skip(2)) return;
  constexpr int kRounds = 10, kReplays = 100;
  Ranks<Op> all(test::peer_count(), {1024, 256, 512});
  std::vector<cudaStream_t> streams(all.world().size());
  std::vector<cudaGraphExec_t> replays(all.world().size());
  require_ok(all.world().each([&](int rank) -> Status {
    cudaStream_t& stream = streams[rank];
    cudaGraph_t graph = nullptr;
    MK_RETURN_IF_ERROR(cuda_status(cudaStreamCreate(&stream), "stream"));
    MK_RETURN_IF_ERROR(
        cuda_status(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture"));
    MK_RETURN_IF_ERROR(all[rank].op->enqueue(all[rank].arguments, kOptions, stream));
    MK_RETURN_IF_ERROR(cuda_status(cudaStreamEndCapture(stream, &graph), "capture"));
    MK_RETURN_IF_ERROR(cuda_status(cudaGraphInstantiate(&replays[rank], graph, 0), "instantiate"));
    return cuda_status(cudaGraphDestroy(graph), "graph");
  }));
  for (int round = 0; round < kRounds; ++round) {
    require_ok(all.world().each([&](int rank) -> Status {
      for (int i = 0; i < kReplays; ++i) {
        // Filled on the stream itself, so that nothing but the stream orders it.
        MK_RETURN_IF_ERROR(all.refill(rank, round * kReplays + i, streams[rank]));
        MK_RETURN_IF_ERROR(cuda_status(cudaGraphLaunch(replays[rank], streams[rank]), "replay"));
      }
      MK_RETURN_IF_ERROR(cuda_status(cudaStreamSynchronize(streams[rank]), "replays"));
      return all[rank].op->status();
    }));
    all.verify();
  }
  require_ok(all.world().each([&](int rank) -> Status {
    MK_RETURN_IF_ERROR(cuda_status(cudaGraphExecDestroy(replays[rank]), "graph"));
    return cuda_status(cudaStreamDestroy(streams[rank]), "stream");
  }));
}

TEST_CASE_TEMPLATE("the same operands give the same bits, whoever comes first and whoever sums", Op, GemmRs,
                   GemmAr) {
  if (!test::peers_or_skip(2)) return;
  const GemmShape s{3000, 1032, 520};
  std::vector<std::vector<std::uint16_t>> expected;
  for (const std::int32_t reduce_ctas : {0, 8}) {
    Ranks<Op> all(test::peer_count(), s, {.tile = Sm90Tile::k128x256, .reduce_ctas = reduce_ctas});
    for (int run = 0; run < 5; ++run) {
      require_ok(all.world().each([&](int rank) -> Status {
        MK_RETURN_IF_ERROR(all.refill(rank, 7));
        return all[rank].op->run(all[rank].arguments, kOptions);
      }));
      for (int rank = 0; rank < all.world().size(); ++rank) {
        auto result = all.result(rank);
        if (static_cast<int>(expected.size()) == rank)
          expected.push_back(std::move(result));
        else
          CHECK(result == expected[rank]);
      }
    }
  }
}

TEST_CASE_TEMPLATE("a rank that does not come is named within the deadline, and the GPU is usable at once",
                   Op, GemmRs, GemmAr) {
  if (!test::peers_or_skip(2)) return;
  const GemmShape s{2048, 512, 1024};
  Ranks<Op> all(2, s);
  require_ok(all.world().each([&](int rank) -> Status {
    if (rank != 0) return {};
    MK_RETURN_IF_ERROR(all.refill(0, 1));
    const auto begin = std::chrono::steady_clock::now();
    const Status missed = all[0].op->run(all[0].arguments, {.deadline = std::chrono::milliseconds(500)});
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5));
    CHECK(missed.code() == StatusCode::kDeadlineExceeded);
    CHECK_MESSAGE(missed.text().find("a tile of rank 1") != std::string::npos, missed.text());
    CHECK(all[0].op->run(all[0].arguments, kOptions).code() == StatusCode::kFailedPrecondition);
    return {};
  }));
  check_case<Op>(2, s);
}

TEST_CASE_TEMPLATE("a group that fails ends the launch long before the deadline, with the group's reason", Op,
                   GemmRs, GemmAr) {
  if (!test::peers_or_skip(2)) return;
  Ranks<Op> all(2, {2048, 512, 1024});
  require_ok(all.world().each([&](int rank) -> Status {
    if (rank != 0) return {};
    MK_RETURN_IF_ERROR(all.refill(0, 1));
    MK_RETURN_IF_ERROR(all[0].op->enqueue(all[0].arguments, {.deadline = std::chrono::seconds(60)}, nullptr));
    all.world().fail_group(0, static_cast<std::uint32_t>(StatusCode::kUnavailable), "node b is gone");
    const auto begin = std::chrono::steady_clock::now();
    MK_RETURN_IF_ERROR(cuda_status(cudaDeviceSynchronize(), "launch"));
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5));
    const Status failed = all[0].op->status();
    CHECK(failed.code() == StatusCode::kUnavailable);
    CHECK_MESSAGE(failed.text().find("node b is gone") != std::string::npos, failed.text());
    return {};
  }));
}

TEST_CASE_TEMPLATE("a result that is not aligned is refused before anything is queued", Op, GemmRs, GemmAr) {
  if (!test::peers_or_skip(2)) return;
  Ranks<Op> all(2, {64, 64, 64});
  require_ok(all.world().each([&](int rank) -> Status {
    GemmArguments off = all[rank].arguments;
    off.c = static_cast<std::byte*>(off.c) + 8;
    const Status refused = all[rank].op->enqueue(off, kOptions, nullptr);
    CHECK(refused.code() == StatusCode::kInvalidArgument);
    CHECK_MESSAGE(refused.text().find("matrix c: address modulo 16 is 8") != std::string::npos,
                  refused.text());
    return {};
  }));
}
