#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>

#include "kernels/memory/cuda_error.h"
#include "kernels/memory/gpu_clock.h"
#include "kernels/ptx/address.cuh"
#include "kernels/ptx/global.cuh"

namespace mkernel::kernels {
namespace {

constexpr std::uint64_t kRounds = 32;
constexpr std::uint64_t kGiveUpNs = 1'000'000'000;

/// In pinned host memory.
struct Exchange {
  std::uint64_t asked;  ///< rounds that the host has begun
  std::uint64_t answer[kRounds];
};

__global__ void answer_with_clock(Exchange* exchange) {
  const std::uint64_t begin = ptx::globaltimer();
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    while (ptx::ld_acquire_sys(&exchange->asked) <= round) {
      if (ptx::globaltimer() - begin > kGiveUpNs) return;
    }
    ptx::st_release_sys(&exchange->answer[round], ptx::globaltimer());
  }
}

std::uint64_t monotonic_ns() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::steady_clock::now().time_since_epoch())
                                        .count());
}

/// The round with the shortest way tells best.
Result<std::int64_t> ask(Exchange& exchange) {
  std::uint64_t shortest = kGiveUpNs;
  std::int64_t offset = 0;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    const std::uint64_t begin = monotonic_ns();
    std::atomic_ref(exchange.asked).store(round + 1, std::memory_order_release);
    std::uint64_t answer = 0, end = begin;
    while (answer == 0) {
      answer = std::atomic_ref(exchange.answer[round]).load(std::memory_order_acquire);
      end = monotonic_ns();
      if (end - begin > kGiveUpNs)
        return Status(StatusCode::kDeadlineExceeded, "clock of the GPU: no answer");
    }
    if (end - begin >= shortest) continue;
    shortest = end - begin;
    offset = static_cast<std::int64_t>(begin + shortest / 2 - answer);
  }
  return offset;
}

struct FreePinned {
  void operator()(void* memory) const { cudaFreeHost(memory); }
};
struct DestroyStream {
  void operator()(CUstream_st* stream) const { cudaStreamDestroy(stream); }
};

}  // namespace

Result<std::int64_t> gpu_clock_to_monotonic() {
  void* memory = nullptr;
  MK_RETURN_IF_ERROR(cuda_status(cudaMallocHost(&memory, sizeof(Exchange)), "clock of the GPU: memory"));
  const std::unique_ptr<void, FreePinned> pinned(memory);
  std::memset(memory, 0, sizeof(Exchange));
  cudaStream_t created = nullptr;
  MK_RETURN_IF_ERROR(
      cuda_status(cudaStreamCreateWithFlags(&created, cudaStreamNonBlocking), "clock of the GPU: stream"));
  const std::unique_ptr<CUstream_st, DestroyStream> stream(created);
  auto* exchange = static_cast<Exchange*>(memory);
  answer_with_clock<<<1, 1, 0, created>>>(exchange);
  MK_RETURN_IF_ERROR(cuda_status(cudaGetLastError(), "clock of the GPU: launch"));
  auto offset = ask(*exchange);
  MK_RETURN_IF_ERROR(cuda_status(cudaStreamSynchronize(created), "clock of the GPU"));
  return offset;
}

}  // namespace mkernel::kernels
