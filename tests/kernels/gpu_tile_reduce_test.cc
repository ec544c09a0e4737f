// What only the sums of GEMM+RS and GEMM+AR on the cuda executor have: CTAs that sum, and the same bits every
// time.
#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "tests/support/gpu_ranks.h"

using namespace mkernel;
using namespace mkernel::kernels;
using namespace mkernel::test;

TEST_CASE_TEMPLATE("any number of summing CTAs", Op, GemmRs, GemmAr) {
  if (!peers_or_skip(2)) return;
  for (const std::int32_t reduce_ctas : {2, 6, 32})
    check_gpu_case<Op>(2, {3000, 512, 1024}, {.reduce_ctas = reduce_ctas});
}

TEST_CASE_TEMPLATE("the same operands give the same bits, whoever comes first and whoever sums", Op, GemmRs,
                   GemmAr) {
  if (!peers_or_skip(2)) return;
  std::vector<std::optional<std::uint64_t>> expected(peer_count());
  for (const std::int32_t reduce_ctas : {0, 8}) {
    GpuRanks all = gpu_ranks<Op>(peer_count(), {3000, 1032, 520},
                                 {.tile = Sm90Tile::k128x256, .reduce_ctas = reduce_ctas});
    for (int run = 0; run < 5; ++run) {
      require_ok(all.each([&](int rank) -> Status {
        MK_RETURN_IF_ERROR(all.fill(rank, 7));
        MK_RETURN_IF_ERROR(all.run(rank));
        auto digest = all.digest(rank);
        if (!digest.ok()) return digest.status();
        if (!expected[rank]) expected[rank] = *digest;
        return *digest == *expected[rank] ? Status() : Status(StatusCode::kDataLoss, "other bits");
      }));
    }
  }
}
