// What only the sums of GEMM+RS and GEMM+AR on the cuda executor have: CTAs that sum, the same bits every
// time, and over several nodes partials and sums that travel. Nodes of as many ranks as there are GPUs, or
// two, on GPUs that they share.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cuda/memory/own_stream.h"
#include "tests/support/gpu_ranks.h"

using namespace mkernel;
using namespace mkernel::kernels;
using namespace mkernel::test;
using namespace std::chrono_literals;

TEST_CASE_TEMPLATE("any number of summing CTAs", Op, GemmRs, GemmAr) {
  if (!peers_or_skip(1)) return;
  for (const std::int32_t reduce_ctas : {2, 6, 30})
    check_gpu_case<Op>(2, {3000, 512, 1024}, {.reduce_ctas = reduce_ctas});
}

TEST_CASE_TEMPLATE("the same operands give the same bits, whoever comes first and whoever sums", Op, GemmRs,
                   GemmAr) {
  if (!peers_or_skip(1)) return;
  const auto ranks = static_cast<std::uint32_t>(node_ranks());
  for (const std::uint32_t nodes : {1U, 2U}) {
    const FabricOptions fabric{.nodes = nodes, .ranks_per_node = ranks};
    std::vector<std::optional<std::uint64_t>> expected(nodes * ranks);
    for (const std::int32_t reduce_ctas : {0, 8}) {
      GpuRanks all =
          gpu_ranks<Op>(fabric, {3000, 1032, 520}, {.tile = Sm90Tile::k128x256, .reduce_ctas = reduce_ctas});
      for (int run = 0; run < 5; ++run) {
        require_ok(all.each([&](int rank) -> Status {
          MK_RETURN_IF_ERROR(all.fill(rank, 7));
          return all.run(rank);
        }));
        require_ok(all.each([&](int rank) -> Status {
          auto digest = all.digest(rank);
          if (!digest.ok()) return digest.status();
          if (!expected[rank]) expected[rank] = *digest;
          return *digest == *expected[rank] ? Status() : Status(StatusCode::kDataLoss, "other bits");
        }));
      }
    }
  }
}

TEST_CASE_TEMPLATE("few rows: owners share tiles, of every width, type and layout", Op, GemmRs, GemmAr) {
  if (!peers_or_skip(1)) return;
  for (const int ranks : {1, 2, 3, 4, 8}) {
    for (const std::int64_t m : {1, 3, 64, 100, 129, 250, 512}) check_gpu_case<Op>(ranks, {m, 1032, 520});
    for (const Sm90Tile tile : {Sm90Tile::k128x64, Sm90Tile::k128x128, Sm90Tile::k128x256}) {
      check_gpu_case<Op>(ranks, {61, 392, 264}, {.tile = tile}, 2);
      check_gpu_case<Op>(ranks, {100 * ranks, 392, 264, DataType::kF16, Layout::kColumnMajor}, {.tile = tile},
                         2);
    }
  }
  const auto ranks = static_cast<std::uint32_t>(node_ranks());
  for (const FabricOptions& fabric :
       {FabricOptions{.nodes = 2, .ranks_per_node = ranks}, FabricOptions{.nodes = 3},
        FabricOptions{.nodes = 4, .ranks_per_node = 2}}) {
    for (const std::int64_t m : {1, 5, 64, 200}) check_gpu_case<Op>(fabric, {m, 1032, 520});
  }
}

TEST_CASE(
    "GEMM+AR with few rows: owners send sums on, or every rank sums all rows, the same bits every run") {
  if (!peers_or_skip(1)) return;
  for (const bool to_all : {false, true}) {
    for (const int ranks : {2, 4, 8}) {
      for (const std::int64_t m : {1, 16, 100, 200}) {
        GpuRanks all = gpu_ranks<GemmAr>(ranks, {m, 1032, 520}, {.to_all = to_all});
        std::optional<std::uint64_t> expected;
        for (int run = 0; run < 5; ++run) {
          require_ok(all.each([&](int rank) -> Status {
            MK_RETURN_IF_ERROR(all.fill(rank, 7));
            MK_RETURN_IF_ERROR(all.run(rank));
            return all.verify(rank);
          }));
          for (int rank = 0; rank < ranks; ++rank) {
            std::optional<std::uint64_t> digest;
            require_ok(all.each([&](int each) -> Status {
              if (each != rank) return {};
              auto found = all.digest(rank);
              if (found.ok()) digest = *found;
              return found.status();
            }));
            if (!expected) expected = digest;
            CHECK(digest == expected);
          }
        }
      }
    }
  }
}

namespace {

/// 16-bit elements of the device, by the calling thread's stream of its own.
Status copy_in(const void* device, const std::vector<std::uint16_t>& elements) {
  const auto stream = OwnStream::make("elements");
  if (!stream.ok()) return stream.status();
  return stream.value().to_device(const_cast<void*>(device), elements.data(), elements.size() * 2,
                                  "elements");
}
Result<std::vector<std::uint16_t>> copy_out(const void* device, std::size_t count) {
  std::vector<std::uint16_t> elements(count);
  const auto stream = OwnStream::make("elements");
  if (!stream.ok()) return stream.status();
  MK_RETURN_IF_ERROR(stream.value().to_host(elements.data(), device, count * 2, "elements"));
  return elements;
}

}  // namespace

// A NaN of all ones in a slot or a sum would count as an element that has not come, and the launch would
// reach its deadline: no product and no rounding may make one, whatever the operands hold.
TEST_CASE("GEMM+AR of few rows, both ways: NaNs of any bits, infinities and zeros come through") {
  if (!peers_or_skip(1)) return;
  constexpr std::int64_t kK = 520, kN = 1032;
  enum Row : std::size_t { kOnes, kNegativeOnes, kSignalling, kInfinity, kOpposed, kZero, kRows };
  for (const bool to_all : {true, false}) {
    for (const GemmShape& shape :
         {GemmShape{kRows, kN, kK}, GemmShape{kRows, kN, kK, DataType::kF16, Layout::kColumnMajor}}) {
      const std::uint16_t infinity = shape.dtype == DataType::kBf16 ? 0x7F80 : 0x7C00;
      for (const int ranks : {2, 4, 8}) {
        GpuRanks all = gpu_ranks<GemmAr>(ranks, shape, {.to_all = to_all});
        for (int launch = 0; launch < 4; ++launch) {
          require_ok(all.each([&](int rank) -> Status {
            MK_RETURN_IF_ERROR(all.fill(rank, static_cast<std::uint64_t>(launch)));
            MK_RETURN_IF_ERROR(all.stream(rank).synchronize());
            std::vector<std::uint16_t> a(kRows * kK, 0x0000);
            a[kOnes * kK + 7] = 0x7FFF;
            a[kNegativeOnes * kK + 11] = 0xFFFF;
            a[kSignalling * kK + 13] = infinity | 0x8001;
            a[kInfinity * kK + 17] = infinity;
            a[kOpposed * kK + 19] = rank % 2 == 0 ? infinity : infinity | 0x8000;
            std::fill_n(a.begin() + kZero * kK, kK, std::uint16_t{0x8000});
            MK_RETURN_IF_ERROR(copy_in(all.arguments(rank).a, a));
            MK_RETURN_IF_ERROR(all.run(rank));
            auto c = copy_out(all.arguments(rank).c, kRows * kN);
            if (!c.ok()) return c.status();
            for (std::size_t at = 0; at < c->size(); ++at) {
              const std::size_t row = at / kN;
              const std::uint16_t magnitude = (*c)[at] & 0x7FFF;
              const bool right = row == kZero      ? magnitude == 0
                                 : row < kInfinity ? magnitude > infinity
                                                   : magnitude >= infinity;
              if (!right) return {StatusCode::kDataLoss, "element " + std::to_string(at)};
            }
            return {};
          }));
        }
      }
    }
  }
}

TEST_CASE("GEMM+AR of few rows, both ways: replayed by graphs with new operands") {
  if (!peers_or_skip(1)) return;
  const int ranks = node_ranks();
  for (const bool to_all : {true, false}) {
    // Owners without rows; and more units than warps, which are claimed.
    for (const GemmShape& shape : {GemmShape{5, 1032, 520}, GemmShape{100 * ranks, 8192, 264}}) {
      // An odd number, so that rounds end in either half.
      gpu_ranks<GemmAr>(ranks, shape, {.to_all = to_all}).check_replays(20, 51);
    }
  }
}

TEST_CASE("GEMM+AR of few rows, both ways: a rank that does not come is named, and new operations work") {
  if (!peers_or_skip(1)) return;
  const GemmShape shape{16, 1032, 520};
  constexpr int kMissing = 2;
  for (const bool to_all : {true, false}) {
    GpuRanks all = gpu_ranks<GemmAr>(3, shape, {.to_all = to_all});
    all.check(3);
    require_ok(all.each([&](int rank) -> Status {
      if (rank == kMissing) return {};
      MK_RETURN_IF_ERROR(all.fill(rank, 9));
      const Status missed = all.run(rank, {.deadline = 500ms});
      CHECK(missed.code() == StatusCode::kDeadlineExceeded);
      CHECK_MESSAGE(missed.text().find("of rank 2") != std::string::npos, missed.text());
      CHECK(all.run(rank).code() == StatusCode::kFailedPrecondition);
      return {};
    }));
    check_gpu_case<GemmAr>(3, shape, {.to_all = to_all});
  }
}

TEST_CASE_TEMPLATE("several nodes: every tile and type, tails, owners without rows, chunks of several puts",
                   Op, GemmRs, GemmAr) {
  if (!peers_or_skip(1)) return;
  const auto ranks = static_cast<std::uint32_t>(node_ranks());
  const FabricOptions two{.nodes = 2, .ranks_per_node = ranks};
  for (const Sm90Tile tile : kSm90Tiles) {
    check_gpu_case<Op>(two, {1000, 392, 264}, {.tile = tile});
    check_gpu_case<Op>(two, {1000, 392, 264, DataType::kF16, Layout::kColumnMajor}, {.tile = tile});
  }
  for (const GemmShape& s : {GemmShape{1, 8, 8}, GemmShape{3, 384, 256}, GemmShape{4097, 1024, 256},
                             GemmShape{2048, 2048, 512}, GemmShape{6000, 4096, 128}}) {
    check_gpu_case<Op>(two, s, {}, 5);
  }
  check_gpu_case<Op>(FabricOptions{.nodes = 2}, {1000, 512, 256});
  check_gpu_case<Op>(FabricOptions{.nodes = 3}, {1000, 512, 256});
}

TEST_CASE_TEMPLATE("several nodes: a shape small enough for tools that watch every access", Op, GemmRs,
                   GemmAr) {
  if (!peers_or_skip(1)) return;
  check_gpu_case<Op>(FabricOptions{.nodes = 2}, {300, 136, 72}, {.tile = Sm90Tile::k128x64, .sms = 8}, 2);
}

TEST_CASE_TEMPLATE("several nodes: a rank that does not come is named by its own node", Op, GemmRs, GemmAr) {
  if (!peers_or_skip(1)) return;
  const FabricOptions two{.nodes = 2, .ranks_per_node = 2};
  constexpr int kMissing = 3;
  GpuRanks all = gpu_ranks<Op>(two, {2048, 512, 1024});
  require_ok(all.each([&](int rank) -> Status {
    MK_RETURN_IF_ERROR(all.fill(rank, 1));
    return all.stream(rank).synchronize();
  }));
  // At once, so that nobody misses one of the others.
  require_ok(all.each([&](int rank) -> Status {
    if (rank == kMissing) return {};
    const auto begin = std::chrono::steady_clock::now();
    const Status missed = all.run(rank, {.deadline = 500ms});
    CHECK(std::chrono::steady_clock::now() - begin < 5s);
    CHECK(missed.code() == StatusCode::kDeadlineExceeded);
    // Rank 2 misses its tiles, rank 1 its partials; rank 0 misses those of rank 2, which cannot make them.
    const std::string expected = rank == 0 ? "rank 2" : "rank 3";
    CHECK_MESSAGE(missed.text().find(expected) != std::string::npos, missed.text());
    return {};
  }));
  check_gpu_case<Op>(two, {2048, 512, 1024});
}
