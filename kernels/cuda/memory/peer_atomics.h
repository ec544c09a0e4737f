// Whether kernels may add to words in memory of other GPUs. Plain C++: no CUDA header needed.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "proto/abi/status.h"

namespace mkernel::kernels {

/// kFailedPrecondition, naming both GPUs and their link, when kernels of the current device cannot add to one
/// of `memory`, mapped here and each on the GPU of some rank. Peer access alone is not enough: over PCIe a
/// GPU may load and store where it cannot add, and an add that is lost looks like a rank that hangs. `name`
/// begins the error.
Status check_peer_atomics(const std::string& name, const std::vector<std::byte*>& memory);

}  // namespace mkernel::kernels
