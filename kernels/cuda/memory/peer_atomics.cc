#include "kernels/cuda/memory/peer_atomics.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/memory/error.h"

namespace mkernel::kernels {
namespace {

/// "GPU 1 (NVIDIA H100 PCIe, 0000:3b:00.0)"; what CUDA does not say is left out.
std::string text_of_device(int device) {
  std::string text = "GPU " + std::to_string(device);
  cudaDeviceProp is{};
  if (cudaGetDeviceProperties(&is, device) != cudaSuccess) return text;
  text += " (" + std::string(is.name);
  char address[32] = {};
  if (cudaDeviceGetPCIBusId(address, sizeof(address), device) == cudaSuccess)
    text += ", " + std::string(address);
  return text + ")";
}

Status check_link(const std::string& name, int mine, int theirs) {
  int atomics = 0;
  MK_RETURN_IF_ERROR(
      cuda_status(cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, mine, theirs),
                  name + ": link from GPU " + std::to_string(mine) + " to GPU " + std::to_string(theirs)));
  if (atomics != 0) return {};
  return {
      StatusCode::kFailedPrecondition,
      name + ": kernels of " + text_of_device(mine) + " cannot add to memory of " + text_of_device(theirs) +
          ": the link between them has no native atomics (PCIe has none, NVLink has). This operation counts "
          "with remote adds; ranks of a node need NVLink between all their GPUs"};
}

}  // namespace

Status check_peer_atomics(const std::string& name, const std::vector<std::byte*>& memory) {
  int mine = 0;
  MK_RETURN_IF_ERROR(cuda_status(cudaGetDevice(&mine), name + ": current device"));
  for (const std::byte* address : memory) {
    cudaPointerAttributes of{};
    if (cudaPointerGetAttributes(&of, address) != cudaSuccess) {
      (void)cudaGetLastError();  // CUDA does not say where it lies, and there is nothing to ask about
      continue;
    }
    // What is no device's memory is never added to over a link between GPUs.
    if (of.type == cudaMemoryTypeDevice && of.device != mine)
      MK_RETURN_IF_ERROR(check_link(name, mine, of.device));
  }
  return {};
}

}  // namespace mkernel::kernels
