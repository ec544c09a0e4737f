// The order in which the row blocks of a product are computed when their owners are waiting for them. Pure
// functions, the same on host and device.
#pragma once

#include <cstdint>

#include "proto/abi/host_device.h"

namespace mkernel::kernels {

/// The j-th row block of every owner in turn, beginning with the next rank and ending with the own block: no
/// owner is written by everybody at a time, and the pieces of an owner's j-th block come from all ranks at
/// about the same time, so that its sums can be made all along. (All blocks of one owner after the other
/// would leave every sum to the last turn, and the links idle during it.) Every owner has as many blocks as
/// the one with most rows; those beyond its rows are empty.
struct OwnerSteps {
  struct Place {
    std::int32_t owner = 0;
    std::int32_t block = 0;  ///< of the owner's rows
  };

  std::int32_t rank = 0;
  std::int32_t world = 1;
  std::int32_t blocks = 1;  ///< of every owner

  MK_HOST_DEVICE std::int32_t steps() const { return world * blocks; }
  MK_HOST_DEVICE Place place(std::int32_t step) const {
    const std::int32_t owner = rank + 1 + step % world;
    return {owner < world ? owner : owner - world, step / world};
  }
};

}  // namespace mkernel::kernels
