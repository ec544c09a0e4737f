// Built instead of gpu_memory.cc where there is no CUDA toolkit.
#include "client/src/gpu_memory.h"

namespace mkernel::client {
namespace {

Status without_cuda(const std::string& what) {
  return {StatusCode::kUnimplemented, what + ": this libmkernel was built without CUDA"};
}

}  // namespace

Result<std::shared_ptr<MemorySource>> open_gpu_memory(int device) {
  return without_cuda("memory of GPU " + std::to_string(device));
}

Result<std::shared_ptr<MemorySource>> open_gpu_pointer(int device, void*) {
  return without_cuda("memory of GPU " + std::to_string(device));
}

std::uint64_t gpu_pci_address(int) {
  return 0;
}

Result<std::shared_ptr<const void>> pin_for_gpu(int device, void*, std::uint64_t) {
  return without_cuda("host memory for GPU " + std::to_string(device));
}

Result<std::shared_ptr<kernels::RingsOnDevice>> make_rings_on_gpu(int device, abi::SessionSegment&) {
  return without_cuda("work rings on GPU " + std::to_string(device));
}

Result<std::shared_ptr<kernels::EndpointOnDevice>> make_endpoint_on_gpu(
    int device, const kernels::GroupView&, std::shared_ptr<kernels::RingsOnDevice>,
    const kernels::SymmetricView&, const kernels::EndpointOnDeviceOptions&) {
  return without_cuda("endpoint on GPU " + std::to_string(device));
}

Result<device::Peers> peers_on_gpu(kernels::EndpointOnDevice&, const kernels::SymmetricView&) {
  return without_cuda("addresses on a GPU");
}

Status status_of_launches(const kernels::EndpointOnDevice&) {
  return without_cuda("launches of a GPU");
}

}  // namespace mkernel::client
