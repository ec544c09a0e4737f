// What the tests of the three operations' plans try and check alike.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <utility>

#include "kernels/plan/machine.h"
#include "kernels/plan/sm90_tile.h"
#include "proto/abi/status.h"

namespace mkernel::kernels {

/// The tiles of the GPU's kernels, and two of the cpu executor's.
inline constexpr TileSize kTiles[] = {kSm90Tiles[0], kSm90Tiles[1], kSm90Tiles[2],
                                      kSm90Tiles[3], {32, 64, 1},   {64, 1024, 1}};

/// CTAs that communicate and CTAs that compute fit a GPU with `sms` multiprocessors, in whole clusters.
inline void check_grid(std::int32_t comm_ctas, std::int32_t compute_ctas, const TileSize& tile,
                       std::int32_t sms = kH200.sms) {
  CHECK(comm_ctas % 2 == 0);
  CHECK(comm_ctas >= 2);
  CHECK(compute_ctas >= tile.cluster);
  CHECK(compute_ctas % tile.cluster == 0);
  CHECK(comm_ctas + compute_ctas <= sms);
}

/// `refusal(shape)`, the status of a plan, names what is wrong with a shape, whatever the operation.
template <class Refusal>
void check_refused_shapes(const Refusal& refusal) {
  for (const auto& [shape, text] : {std::pair{GemmShape{64, 12, 64}, "n = 12, must be a multiple of 8"},
                                    std::pair{GemmShape{64, 64, 9}, "k = 9, must be a multiple of 8"},
                                    std::pair{GemmShape{0, 64, 64}, "m = 0"}}) {
    const Status status = refusal(shape);
    CHECK(status.code() == StatusCode::kInvalidArgument);
    CHECK_MESSAGE(status.text().find(text) != std::string::npos, status.text());
  }
}

}  // namespace mkernel::kernels
