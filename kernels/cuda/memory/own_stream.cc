#include "kernels/cuda/memory/own_stream.h"

#include <cuda_runtime_api.h>

#include <cstring>
#include <utility>

#include "kernels/cuda/memory/error.h"

namespace mkernel::kernels {

void OwnStream::Destroy::operator()(CUstream_st* stream) const {
  (void)cudaStreamDestroy(stream);
}

Result<OwnStream> OwnStream::make(const std::string& what) {
  cudaStream_t created = nullptr;
  MK_RETURN_IF_ERROR(
      cuda_status(cudaStreamCreateWithFlags(&created, cudaStreamNonBlocking), what + ": stream"));
  OwnStream stream;
  stream.stream_.reset(created);
  return Result<OwnStream>(std::move(stream));
}

Status OwnStream::wait(const std::string& what) const {
  return cuda_status(cudaStreamSynchronize(get()), what);
}

Status OwnStream::fill(void* device, std::uint8_t byte, std::uint64_t bytes, const std::string& what) const {
  MK_RETURN_IF_ERROR(cuda_status(cudaMemsetAsync(device, byte, bytes, get()), what));
  return wait(what);
}

Status OwnStream::to_device(void* device, const void* host, std::uint64_t bytes,
                            const std::string& what) const {
  MK_RETURN_IF_ERROR(cuda_status(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, get()), what));
  return wait(what);
}

Status OwnStream::to_host(void* host, const void* device, std::uint64_t bytes,
                          const std::string& what) const {
  MK_RETURN_IF_ERROR(cuda_status(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, get()), what));
  return wait(what);
}

Status OwnStream::rows_to_host(void* host, const void* device, std::uint64_t width, std::uint64_t pitch,
                               std::uint64_t rows, const std::string& what) const {
  MK_RETURN_IF_ERROR(cuda_status(
      cudaMemcpy2DAsync(host, width, device, pitch, width, rows, cudaMemcpyDeviceToHost, get()), what));
  return wait(what);
}

void FreePinned::operator()(void* memory) const {
  (void)cudaFreeHost(memory);
}

Result<std::unique_ptr<void, FreePinned>> pinned_memory(std::uint64_t bytes, const std::string& what) {
  void* memory = nullptr;
  MK_RETURN_IF_ERROR(cuda_status(cudaMallocHost(&memory, bytes), what + ": pinned memory"));
  std::memset(memory, 0, bytes);
  return std::unique_ptr<void, FreePinned>(memory);
}

}  // namespace mkernel::kernels
