#include <atomic>

#include "kernels/cuda/memory/error.h"
#include "kernels/cuda/ptx/address.cuh"
#include "kernels/cuda/ptx/global.cuh"
#include "tests/support/gpu_held_stream.h"

namespace mkernel::test {
namespace {

constexpr std::uint64_t kMostNs = 10'000'000'000;

__global__ void hold(const std::uint32_t* let_go) {
  const std::uint64_t begin = kernels::ptx::globaltimer();
  while (kernels::ptx::ld_acquire_sys(let_go) == 0 && kernels::ptx::globaltimer() - begin < kMostNs) {
  }
}

Status start(CUstream_st* stream, std::uint32_t*& let_go) {
  void* memory = nullptr;
  MK_RETURN_IF_ERROR(kernels::cuda_status(cudaMallocHost(&memory, sizeof(*let_go)), "held stream"));
  let_go = static_cast<std::uint32_t*>(memory);
  *let_go = 0;
  hold<<<1, 1, 0, stream>>>(let_go);
  return kernels::cuda_status(cudaGetLastError(), "held stream");
}

}  // namespace

HeldStream::HeldStream(CUstream_st* stream) : stream_(stream), status_(start(stream, let_go_)) {}

HeldStream::~HeldStream() {
  if (let_go_ == nullptr) return;
  std::atomic_ref(*let_go_).store(1, std::memory_order_release);
  (void)cudaStreamSynchronize(stream_);
  (void)cudaFreeHost(let_go_);
}

bool HeldStream::holds() const {
  return cudaStreamQuery(stream_) == cudaErrorNotReady;
}

}  // namespace mkernel::test
