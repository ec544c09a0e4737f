// The clock of a GPU against that of its machine.
#pragma once

#include <cstdint>

#include "proto/abi/status.h"

namespace mkernel::kernels {

/// Loads the kernel of gpu_clock_to_monotonic() on the current device.
Status load_gpu_clock();

/// What to add to the global timer of the current device for the machine's monotonic clock, in ns. Every GPU
/// has a timer of its own; the answers of a machine's GPUs compare, each is off by a part of half a round
/// trip to its GPU (about 1 us) that is alike on all. Takes a tenth of a millisecond; waits for no other
/// stream.
Result<std::int64_t> gpu_clock_to_monotonic();

}  // namespace mkernel::kernels
