#include "proto/abi/ring_share.h"

#include <doctest/doctest.h>

#include <set>
#include <vector>

namespace mkernel::abi {
namespace {

/// Rings of the first lanes of a rank.
std::vector<std::uint32_t> rings_of(std::uint32_t local_rank, std::uint32_t local_ranks, std::uint32_t rings,
                                    std::uint32_t lanes) {
  std::vector<std::uint32_t> all;
  for (std::uint32_t lane = 0; lane < lanes; ++lane)
    all.push_back(RingShare::of(local_rank, local_ranks, rings).ring(lane));
  return all;
}

TEST_CASE("ring share: a node of eight ranks over eight rails, sixteen rails, two rails") {
  CHECK(rings_of(3, 8, 8, 3) == std::vector<std::uint32_t>{3, 3, 3});
  CHECK(rings_of(3, 8, 16, 3) == std::vector<std::uint32_t>{3, 11, 3});
  CHECK(rings_of(3, 8, 2, 3) == std::vector<std::uint32_t>{1, 1, 1});
}

TEST_CASE("ring share: a rank alone on its node goes over all rails") {
  CHECK(rings_of(0, 1, 4, 6) == std::vector<std::uint32_t>{0, 1, 2, 3, 0, 1});
  CHECK(rings_of(0, 1, 1, 2) == std::vector<std::uint32_t>{0, 0});
}

TEST_CASE(
    "ring share: every ring has a rank when there are ranks enough, and one rank only when there are rings "
    "enough") {
  for (std::uint32_t ranks = 1; ranks <= 9; ++ranks) {
    for (std::uint32_t rings = 1; rings <= 16; ++rings) {
      std::multiset<std::uint32_t> used;
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        const RingShare share = RingShare::of(rank, ranks, rings);
        for (std::uint32_t lane = 0; lane < share.count; ++lane) used.insert(share.ring(lane));
        CHECK(share.ring(share.count) == share.first);
      }
      for (std::uint32_t ring = 0; ring < rings; ++ring) {
        CHECK(used.count(ring) >= 1);
        if (rings >= ranks) CHECK(used.count(ring) == 1);
      }
      CHECK(*used.rbegin() < rings);
    }
  }
}

}  // namespace
}  // namespace mkernel::abi
