// The tiles that the cpu executor's plans are made of.
#include <doctest/doctest.h>

#include "kernels/cpu/gemm/gemm.h"
#include "kernels/plan/cuts.h"
#include "kernels/plan/reduce_units.h"

namespace mkernel::kernels {

TEST_CASE("tiles of the host hold whole units of sums, whatever the shape") {
  for (const std::int64_t m : {1, 7, 61, 700, 100000}) {
    for (const std::int64_t n : {1, 37, 64, 65, 520, 1100, 100000}) {
      for (const Topology& topology : {Topology(1, 1), Topology(1, 4), Topology(3, 2)}) {
        const TileSize tile = host_tile({m, n, 16}, topology);
        CHECK(kReduceUnitElements % tile.columns == 0);
        CHECK(tile.rows % (kReduceUnitElements / tile.columns) == 0);
        CHECK(tile.cluster == 1);
        const bool wide = tile.columns > 64, wire = topology.nodes() > 1;
        if (wide && wire) CHECK(ceil_div(n, tile.columns) * tile.columns - n <= n / 8);
      }
    }
  }
}

TEST_CASE("tiles of the host are no larger than what a rank has, nor than a fast product needs") {
  CHECK(host_tile({4096, 4096, 64}, Topology(1, 4)) == TileSize(256, 1024, 1));
  CHECK(host_tile({400, 100, 64}, Topology(1, 4)) == TileSize(128, 128, 1));
  CHECK(host_tile({4, 1, 64}, Topology(1, 4)) == TileSize(32, 64, 1));
  CHECK(host_tile({4096, 1100, 64}, Topology(2, 2)) == TileSize(256, 128, 1));  // 1024 would travel twice
}

}  // namespace mkernel::kernels
