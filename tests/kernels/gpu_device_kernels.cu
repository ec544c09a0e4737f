#include <mkernel/device.cuh>

#include "kernels/cuda/memory/error.h"
#include "tests/kernels/gpu_device_kernels.h"

namespace mkernel::test {
namespace {

namespace mk = mkernel::device;

__global__ void puts(mk::Endpoint endpoint, std::uint32_t each, unsigned long long* done) {
  if (mk::is_poller()) return mk::poll(endpoint);
  if (mk::stopped(endpoint)) return mk::leave(endpoint);
  const std::uint32_t writer = (blockIdx.x - 1) * blockDim.x + threadIdx.x;
  unsigned long long mine = 0;
  for (std::uint32_t i = 0; i < each; ++i) {
    const PutFields f = put_fields(writer, i);
    mine += mk::put(endpoint, 1, blockIdx.x % endpoint.lanes, {f.region, f.local_offset},
                    {f.region, f.remote_offset}, f.bytes);
  }
  atomicAdd(done, mine);
  mk::leave(endpoint);
}

__global__ void waits(mk::Endpoint endpoint, std::uint64_t count, std::uint64_t* seen) {
  if (mk::is_poller()) return mk::poll(endpoint);
  const std::uint32_t channel = blockIdx.x - 1;
  const std::uint32_t source = channel / endpoint.lanes, lane = channel % endpoint.lanes;
  const bool came = mk::wait_arrival(mk::Cta{}, endpoint, source, lane, count) &&
                    mk::wait_completed(mk::Warp{}, endpoint, source, lane, count);
  if (came && threadIdx.x == 0) seen[channel] = mk::arrived(endpoint, source, lane);
  mk::leave(endpoint);
}

__global__ void barriers(mk::Endpoint endpoint, std::uint32_t rounds, unsigned long long* words,
                         unsigned long long* wrong) {
  if (mk::is_poller()) return mk::poll(endpoint);
  const std::uint32_t ctas = gridDim.x - 1, mine = blockIdx.x - 1;
  bool ok = true;
  for (std::uint32_t round = 1; ok && round <= rounds; ++round) {
    if (threadIdx.x == blockDim.x - 1) words[mine] = round;  // not the thread that arrives
    ok = mk::grid_barrier(endpoint);
    for (std::uint32_t cta = threadIdx.x; ok && cta < ctas; cta += blockDim.x) {
      if (words[cta] != round) atomicAdd(wrong, 1ULL);
    }
    ok = ok && mk::grid_barrier(endpoint);
  }
  if (!ok) atomicAdd(wrong, 1ULL);
  mk::leave(endpoint);
}

Status launched(const char* what) {
  return kernels::cuda_status(cudaGetLastError(), what);
}

}  // namespace

Status launch_puts(const device::Endpoint& endpoint, int ctas, int threads, std::uint32_t each,
                   unsigned long long* done, CUstream_st* stream) {
  puts<<<1 + ctas, threads, 0, stream>>>(endpoint, each, done);
  return launched("puts");
}

Status launch_waits(const device::Endpoint& endpoint, std::uint64_t count, std::uint64_t* seen) {
  waits<<<1 + endpoint.world_size * endpoint.lanes, 64>>>(endpoint, count, seen);
  return launched("waits");
}

Status launch_barriers(const device::Endpoint& endpoint, int ctas, std::uint32_t rounds,
                       unsigned long long* words, unsigned long long* wrong) {
  barriers<<<1 + ctas, 96>>>(endpoint, rounds, words, wrong);
  return launched("barriers");
}

}  // namespace mkernel::test
