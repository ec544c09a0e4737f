#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstdint>

#include "kernels/cuda/memory/error.h"
#include "kernels/cuda/memory/gpu_clock.cuh"
#include "kernels/cuda/memory/gpu_clock.h"
#include "kernels/cuda/memory/load_kernel.h"
#include "kernels/cuda/memory/own_stream.h"

namespace mkernel::kernels {
namespace {

std::uint64_t monotonic_ns() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::steady_clock::now().time_since_epoch())
                                        .count());
}

/// The round with the shortest way tells best.
Result<std::int64_t> ask(ClockExchange& exchange) {
  std::uint64_t shortest = kClockGiveUpNs;
  std::int64_t offset = 0;
  for (std::uint64_t round = 0; round < kClockRounds; ++round) {
    const std::uint64_t begin = monotonic_ns();
    std::atomic_ref(exchange.asked).store(round + 1, std::memory_order_release);
    std::uint64_t answer = 0, end = begin;
    while (answer == 0) {
      answer = std::atomic_ref(exchange.answer[round]).load(std::memory_order_acquire);
      end = monotonic_ns();
      if (end - begin > kClockGiveUpNs)
        return Status(StatusCode::kDeadlineExceeded, "clock of the GPU: no answer");
    }
    if (end - begin >= shortest) continue;
    shortest = end - begin;
    offset = static_cast<std::int64_t>(begin + shortest / 2 - answer);
  }
  return offset;
}

}  // namespace

Status load_gpu_clock() {
  return load_kernel(reinterpret_cast<const void*>(&answer_with_clock), "clock of the GPU");
}

Result<std::int64_t> gpu_clock_to_monotonic() {
  const auto pinned = pinned_memory(sizeof(ClockExchange), "clock of the GPU");
  if (!pinned.ok()) return pinned.status();
  const auto stream = OwnStream::make("clock of the GPU");
  if (!stream.ok()) return stream.status();
  auto* exchange = static_cast<ClockExchange*>(pinned->get());
  answer_with_clock<<<1, 1, 0, stream->get()>>>(exchange);
  MK_RETURN_IF_ERROR(cuda_status(cudaGetLastError(), "clock of the GPU: launch"));
  auto offset = ask(*exchange);
  MK_RETURN_IF_ERROR(stream->wait("clock of the GPU"));
  return offset;
}

}  // namespace mkernel::kernels
