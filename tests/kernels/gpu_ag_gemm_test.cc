// What only AG+GEMM on the cuda executor has: rows that come in parts, narrow tiles at the end, CTAs that
// push.
#include <doctest/doctest.h>

#include <cstdint>

#include "tests/support/gpu_ranks.h"

using namespace mkernel;
using namespace mkernel::kernels;
using namespace mkernel::test;

TEST_CASE("any number of narrow tiles at the end, and rows that come in parts") {
  if (!peers_or_skip(2)) return;
  for (const std::int32_t tail : {0, 1, 1000}) {
    check_gpu_case<AgGemm>(2, {1000, 776, 4104}, {.tile = Sm90Tile::k128x256, .tail_tiles = tail}, 2);
    check_gpu_case<AgGemm>(2, {4097, 1032, 8200},
                           {.tile = Sm90Tile::k128x128, .comm_ctas = 4, .tail_tiles = tail}, 2);
  }
}

TEST_CASE("any number of pushing CTAs") {
  if (!peers_or_skip(2)) return;
  for (const std::int32_t comm_ctas : {2, 6, 32})
    check_gpu_case<AgGemm>(2, {3000, 512, 1024}, {.comm_ctas = comm_ctas});
}
