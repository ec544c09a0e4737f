#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <mkernel/device.cuh>
#include <string>

#include "kernels/cuda/memory/error.h"
#include "tools/mkbench/gpu_matrix.h"
#include "tools/mkbench/ring_cuda.h"

namespace mkernel::bench {
namespace {

namespace mk = mkernel::device;
using kernels::cuda_status;

constexpr unsigned kBusyThreads = 1024;  // more than half of an SM's: one CTA each
constexpr std::uint64_t kWarmUp = 1000;

/// What the echoing thread leaves behind.
struct EchoRecord {
  std::uint64_t cycles, nanoseconds;  ///< of the whole series, to turn the one into the other
  std::uint32_t done;
  float sink;
};

/// Computes and reads memory until the series is over.
__device__ void keep_busy(EchoRecord& record, const float* memory, std::uint32_t words) {
  float sum = static_cast<float>(threadIdx.x);
  std::uint32_t at = blockIdx.x * blockDim.x + threadIdx.x;
  while (kernels::ptx::ld_relaxed_gpu(&record.done) == 0) {
    for (int i = 0; i < 256; ++i) sum = fmaf(sum, 0.999F, 0.5F);
    at = (at + gridDim.x * blockDim.x) % words;
    sum += memory[at];
  }
  if (sum == -1.0F) record.sink = sum;  // never: the sum is needed
}

/// Up to about a microsecond, another each time. An echo that starts as soon as the last one is back would
/// run in step with the poller, which looks about once in a microsecond, and always meet it at the same
/// point.
__device__ void pause(std::uint64_t& random) {
  random = random * 6364136223846793005ULL + 1442695040888963407ULL;
  const std::uint64_t until = clock64() + (random >> 53);
  while (clock64() < until) {
  }
}

__device__ void echo_series(const mk::Endpoint& endpoint, std::uint64_t count, std::uint32_t* cycles,
                            EchoRecord& record) {
  const std::uint32_t self = endpoint.rank;
  std::uint64_t series_clock = 0, series_time = 0, random = 1;
  for (std::uint64_t i = 0; i < count + kWarmUp; ++i) {
    if (i == kWarmUp) {
      series_clock = clock64();
      series_time = kernels::ptx::globaltimer();
    }
    pause(random);
    const std::uint64_t begin = clock64();
    if (!mk::signal(endpoint, self, 0) || !mk::wait_arrival(mk::Thread{}, endpoint, self, 0, i + 1)) break;
    if (i >= kWarmUp) cycles[i - kWarmUp] = static_cast<std::uint32_t>(clock64() - begin);
  }
  record.cycles = clock64() - series_clock;
  record.nanoseconds = kernels::ptx::globaltimer() - series_time;
  kernels::ptx::st_release_gpu(&record.done, 1U);
}

__global__ __launch_bounds__(kBusyThreads) void echo_kernel(mk::Endpoint endpoint, std::uint64_t count,
                                                            std::uint32_t* cycles, EchoRecord* record,
                                                            const float* memory, std::uint32_t words) {
  if (mk::is_poller()) return mk::poll(endpoint);
  if (blockIdx.x > 1) {
    keep_busy(*record, memory, words);
  } else if (threadIdx.x == 0) {
    echo_series(endpoint, count, cycles, *record);
  }
  mk::leave(endpoint);
}

__global__ void signal_kernel(mk::Endpoint endpoint, std::uint64_t each) {
  if (mk::is_poller()) return mk::poll(endpoint);
  const std::uint32_t lane = (blockIdx.x - 1) % endpoint.lanes;
  bool ok = true;
  for (std::uint64_t i = 0; ok && i < each; ++i) ok = mk::signal(endpoint, endpoint.rank, lane);
  if (__syncthreads_and(ok) && mk::grid_barrier(endpoint))
    mk::wait_completed(mk::Cta{}, endpoint, endpoint.rank, lane, mk::issued(endpoint, endpoint.rank, lane));
  mk::leave(endpoint);
}

Result<int> multiprocessors(int device) {
  int count = 0;
  MK_RETURN_IF_ERROR(cuda_status(cudaSetDevice(device), "GPU"));
  MK_RETURN_IF_ERROR(
      cuda_status(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "number of SMs"));
  return count;
}

}  // namespace

std::string name_of_gpu(int device) {
  cudaDeviceProp properties{};
  return cudaGetDeviceProperties(&properties, device) == cudaSuccess ? properties.name : "unknown";
}

Result<std::vector<double>> echo_from_gpu(Group& group, int device, std::uint64_t count, bool busy) {
  const auto sms = multiprocessors(device);
  MK_RETURN_IF_ERROR(sms.status());
  auto endpoint = group.device_endpoint({.lanes = 1});
  if (!endpoint.ok()) return endpoint.status();
  constexpr std::uint64_t kMemory = 256 << 20;  // more than L2
  auto cycles = GpuBuffer::allocate(count * sizeof(std::uint32_t));
  auto record = GpuBuffer::allocate(sizeof(EchoRecord));
  auto memory = GpuBuffer::allocate(kMemory);
  for (const auto* buffer : {&cycles, &record, &memory}) MK_RETURN_IF_ERROR(buffer->status());
  MK_RETURN_IF_ERROR(cuda_status(cudaMemset(record->get(), 0, sizeof(EchoRecord)), "echo"));
  MK_RETURN_IF_ERROR(cuda_status(cudaMemset(memory->get(), 0, kMemory), "echo"));
  {
    const Activity active = group.keep_active();
    echo_kernel<<<busy ? sms.value() : 2, kBusyThreads>>>(
        endpoint->view(), count, static_cast<std::uint32_t*>(cycles->get()),
        static_cast<EchoRecord*>(record->get()), static_cast<const float*>(memory->get()),
        static_cast<std::uint32_t>(kMemory / sizeof(float)));
    MK_RETURN_IF_ERROR(cuda_status(cudaDeviceSynchronize(), "echo"));
  }
  MK_RETURN_IF_ERROR(endpoint->status());
  EchoRecord series{};
  std::vector<std::uint32_t> raw(count);
  MK_RETURN_IF_ERROR(
      cuda_status(cudaMemcpy(&series, record->get(), sizeof(series), cudaMemcpyDeviceToHost), "echo"));
  MK_RETURN_IF_ERROR(cuda_status(
      cudaMemcpy(raw.data(), cycles->get(), count * sizeof(std::uint32_t), cudaMemcpyDeviceToHost), "echo"));
  const double us_per_cycle =
      static_cast<double>(series.nanoseconds) / static_cast<double>(series.cycles) / 1e3;
  std::vector<double> took;
  for (const std::uint32_t one : raw) took.push_back(one * us_per_cycle);
  std::sort(took.begin(), took.end());
  return took;
}

Result<GpuRingRate> signals_from_gpu(Group& group, int device, std::uint32_t ctas, std::uint32_t threads,
                                     std::uint64_t each) {
  MK_RETURN_IF_ERROR(multiprocessors(device).status());
  auto endpoint = group.device_endpoint({.lanes = std::min(ctas, group.lanes())});
  if (!endpoint.ok()) return endpoint.status();
  const mk::Endpoint& view = endpoint->view();
  GpuRingRate rate{.requests = std::uint64_t{ctas} * threads * each,
                   .rings = std::min(view.ring_share.count(), view.lanes)};
  std::chrono::duration<double> took{};
  {
    const Activity active = group.keep_active();
    const auto begin = std::chrono::steady_clock::now();
    signal_kernel<<<1 + ctas, threads>>>(view, each);
    MK_RETURN_IF_ERROR(cuda_status(cudaDeviceSynchronize(), "signals"));
    took = std::chrono::steady_clock::now() - begin;
  }
  MK_RETURN_IF_ERROR(endpoint->status());
  std::vector<std::uint64_t> seen(view.counts.words());
  MK_RETURN_IF_ERROR(cuda_status(
      cudaMemcpy(seen.data(), view.counts.seen, 8 * seen.size(), cudaMemcpyDeviceToHost), "counts"));
  std::uint64_t completed = 0;
  for (std::uint32_t lane = 0; lane < view.lanes; ++lane)
    completed += seen[view.counts.completed_index(view.rank, lane)];
  if (completed != rate.requests) {
    return Status(StatusCode::kDataLoss, std::to_string(completed) + " of " + std::to_string(rate.requests) +
                                             " signals were completed");
  }
  rate.requests_per_second = static_cast<double>(rate.requests) / took.count();
  return rate;
}

}  // namespace mkernel::bench
