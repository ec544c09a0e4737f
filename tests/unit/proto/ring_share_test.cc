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
    all.push_back(RingShare::of(0, local_rank, local_ranks, rings).ring(lane));
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
        const RingShare share = RingShare::of(0, rank, ranks, rings);
        for (std::uint32_t lane = 0; lane < share.count(); ++lane) used.insert(share.ring(lane));
        CHECK(share.ring(share.count()) == share.ring(0));
      }
      for (std::uint32_t ring = 0; ring < rings; ++ring) {
        CHECK(used.count(ring) >= 1);
        if (rings >= ranks) CHECK(used.count(ring) == 1);
      }
      CHECK(*used.rbegin() < rings);
    }
  }
}

TEST_CASE("ring share: the rings near a rank's GPU, whatever the others of its node have") {
  const RingShare share = RingShare::of(1U << 31 | 1U << 7 | 1U << 4, 0, 8, 32);
  CHECK(share.count() == 3);
  std::vector<std::uint32_t> rings;
  for (std::uint32_t lane = 0; lane < 5; ++lane) rings.push_back(share.ring(lane));
  CHECK(rings == std::vector<std::uint32_t>{4, 7, 31, 4, 7});
  const RingShare all = RingShare::of(~0U, 0, 1, 32);
  CHECK(all.count() == 32);
  CHECK(all.ring(31) == 31);
}

}  // namespace
}  // namespace mkernel::abi
