// Compiled for its static asserts: both compilers must lay out what crosses a process border alike.
#include "proto/abi/messages.h"
#include "proto/abi/region_map.h"
#include "proto/abi/work_request.h"

namespace mkernel::abi {

/// The slot is encoded on the device by the same function as on the host.
__global__ void encode_slot(WorkRequest request, std::uint64_t position, std::uint32_t log2_slots,
                            WorkSlot* slot) {
  *slot = encode(request, lap_bit(position, log2_slots));
}

}  // namespace mkernel::abi
