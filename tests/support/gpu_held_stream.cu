#include <atomic>

#include "kernels/cuda/memory/error.h"
#include "kernels/cuda/ptx/address.cuh"
#include "kernels/cuda/ptx/global.cuh"
#include "tests/support/gpu_held_stream.h"

namespace mkernel::test {
namespace {

constexpr std::uint64_t kMostNs = 10'000'000'000;

__global__ void hold(const std::uint32_t* may_end) {
  const std::uint64_t begin = kernels::ptx::globaltimer();
  while (kernels::ptx::ld_acquire_sys(may_end) == 0 && kernels::ptx::globaltimer() - begin < kMostNs) {
  }
}

Status start(CUstream_st* stream, std::uint32_t*& may_end) {
  void* memory = nullptr;
  MK_RETURN_IF_ERROR(kernels::cuda_status(cudaMallocHost(&memory, sizeof(*may_end)), "held stream"));
  may_end = static_cast<std::uint32_t*>(memory);
  *may_end = 0;
  hold<<<1, 1, 0, stream>>>(may_end);
  return kernels::cuda_status(cudaGetLastError(), "held stream");
}

}  // namespace

HeldStream::HeldStream(CUstream_st* stream) : stream_(stream), status_(start(stream, may_end_)) {}

HeldStream::~HeldStream() {
  if (may_end_ == nullptr) return;
  let_go();
  (void)cudaStreamSynchronize(stream_);
  (void)cudaFreeHost(may_end_);
}

void HeldStream::let_go() {
  if (may_end_ != nullptr) std::atomic_ref(*may_end_).store(1, std::memory_order_release);
}

bool HeldStream::holds() const {
  return cudaStreamQuery(stream_) == cudaErrorNotReady;
}

}  // namespace mkernel::test
