// Memory of one GPU that other processes can map: CUDA's virtual memory management behind MemorySource. The
// only door between this library and CUDA; nothing links libcuda, so a machine without driver loads the
// library all the same.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "client/src/memory.h"
#include "kernels/base/views.h"
#include "kernels/cuda/launch/endpoint.h"
#include "proto/abi/status.h"

namespace mkernel::client {

/// The memory of GPU `device` as CUDA counts them in this process. Keeps the device's primary context (the
/// one the CUDA runtime and PyTorch use) for as long as it or anything mapped lives; no call changes which
/// context is current. make() and map() map for this device alone: a peer's memory is reached over NVLink.
///
/// Errors: kUnimplemented (this library was built without CUDA); kFailedPrecondition (no driver, one that is
/// too old, no such device, a device without VMM, POSIX fds or access to a peer's memory), each saying which;
/// kResourceExhausted (memory, with what is free and what there is).
Result<std::shared_ptr<MemorySource>> open_gpu_memory(int device);

/// Plain memory of GPU `device` that the caller has allocated (cudaMalloc, PyTorch's caching allocator): its
/// make() checks that the bytes from `data` on can be shared and names them, its map() opens a neighbour's by
/// CUDA IPC, or reaches it as it is when this process owns it. Errors of open_gpu_memory(); of make():
/// kInvalidArgument (no device memory, or of another GPU), kOutOfRange (not within one allocation),
/// kFailedPrecondition (memory that CUDA IPC cannot share: what to do instead); of map(): kFailedPrecondition
/// (its GPU is not visible here, or out of reach), CUDA's.
Result<std::shared_ptr<MemorySource>> open_gpu_pointer(int device, void* data);

/// Where GPU `device` sits, as abi::pci_address(); 0 when nobody can tell: a negative `device`, no driver, no
/// such device, a library that was built without CUDA.
std::uint64_t gpu_pci_address(int device);

/// Host memory that kernels of GPU `device` may read and write at the same address, for as long as the result
/// lives. The memory stays the caller's and must outlive it. Errors: kUnimplemented, kResourceExhausted (it
/// cannot be locked), CUDA's.
Result<std::shared_ptr<const void>> pin_for_gpu(int device, void* data, std::uint64_t bytes);

// What a device endpoint is made of: the classes of kernels/cuda/launch/, on GPU `device`. Errors: theirs,
// kUnimplemented (this library was built without CUDA).
Result<std::shared_ptr<kernels::RingsOnDevice>> make_rings_on_gpu(int device, abi::SessionSegment& segment);
Result<std::shared_ptr<kernels::EndpointOnDevice>> make_endpoint_on_gpu(
    int device, const kernels::GroupView& group, std::shared_ptr<kernels::RingsOnDevice> rings,
    const kernels::SymmetricView& workspace, const kernels::EndpointOnDeviceOptions& options);
Result<device::Peers> peers_on_gpu(kernels::EndpointOnDevice& endpoint, const kernels::SymmetricView& buffer);
Status status_of_launches(const kernels::EndpointOnDevice& endpoint);

}  // namespace mkernel::client
