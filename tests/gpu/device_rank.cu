// One rank of the test of device endpoints: a process of its own, against a real daemon.
//
//   device_rank SOCKET GROUP WORLD RANK DEVICE wait DEADLINE_MS   awaits a put of the next rank, which never
//       puts; says "launched" when the kernel runs, then how it ended
//   device_rank SOCKET GROUP WORLD RANK DEVICE signals COUNT      every CTA signals every rank COUNT times
//       and awaits as many; twice, while a thread of this process signals as often on a lane of its own
// Status 0: as expected; 1: not; 3: mkernel refused, its error is on stdout.
#include <cuda_runtime.h>
#include <mkernel/client.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <mkernel/device.cuh>
#include <string>
#include <thread>

#include "tests/gpu/rank.h"

namespace {

namespace mk = mkernel::device;
using mkernel::Group;
using mkernel::Status;

constexpr unsigned kCtas = 9, kThreads = 64;

__global__ void await_one(mk::Endpoint endpoint) {
  if (mk::is_poller()) return mk::poll(endpoint);
  mk::wait_arrival(mk::Cta{}, endpoint, (endpoint.rank + 1) % endpoint.world_size, 0, 1);
  mk::leave(endpoint);
}

/// Every thread of every CTA signals on its CTA's lane; CTA 1 counts what came.
__global__ void signal_all(mk::Endpoint endpoint, std::uint64_t count, unsigned long long* seen) {
  if (mk::is_poller()) return mk::poll(endpoint);
  if (mk::stopped(endpoint)) return mk::leave(endpoint);
  const std::uint32_t lane = (blockIdx.x - 1) % endpoint.lanes;
  bool ok = true;
  for (std::uint32_t target = 0; ok && target < endpoint.world_size; ++target) {
    for (std::uint64_t i = threadIdx.x; ok && i < count; i += blockDim.x)
      ok = mk::signal(endpoint, target, lane);
  }
  const std::uint64_t ctas = (gridDim.x - 1) / endpoint.lanes;  // that share a lane
  const std::uint64_t all = (mk::launches(endpoint) + 1) * count * ctas;
  ok = __syncthreads_and(ok) != 0;
  for (std::uint32_t peer = 0; ok && peer < endpoint.world_size; ++peer) {
    ok = mk::wait_arrival(mk::Cta{}, endpoint, peer, lane, all) && mk::grid_barrier(endpoint) &&
         mk::wait_completed(mk::Cta{}, endpoint, peer, lane, mk::issued(endpoint, peer, lane));
    if (ok && threadIdx.x == 0) atomicAdd(seen, mk::arrived(endpoint, peer, lane));
  }
  mk::leave(endpoint);
}

int fail(const std::string& what) {
  std::cout << what << std::endl;
  return 1;
}

int wait(Group& group, std::chrono::milliseconds deadline) {
  auto endpoint = group.device_endpoint({.lanes = 2, .deadline = deadline});
  if (!endpoint.ok()) return refused(endpoint.status());
  const mkernel::Activity active = group.keep_active();
  await_one<<<kCtas, kThreads>>>(endpoint->view());
  need(cudaGetLastError(), "launch");
  std::cout << "launched" << std::endl;
  need(cudaDeviceSynchronize(), "the kernel must end without an error of CUDA's");
  return refused(endpoint->status());
}

/// One launch; returns the sum of the counts that its CTAs saw.
unsigned long long signal_once(const mk::Endpoint& endpoint, std::uint64_t count) {
  unsigned long long* seen = nullptr;
  unsigned long long sum = 0;
  need(cudaMalloc(&seen, sizeof(sum)), "cudaMalloc");
  need(cudaMemset(seen, 0, sizeof(sum)), "cudaMemset");
  signal_all<<<kCtas, kThreads>>>(endpoint, count, seen);
  need(cudaMemcpy(&sum, seen, sizeof(sum), cudaMemcpyDeviceToHost), "signals");
  need(cudaFree(seen), "cudaFree");
  return sum;
}

/// A thread's part: signals every rank `count` times and awaits as many more than `before`.
Status signal_from_cpu(Group& group, std::uint32_t lane, std::uint64_t before, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    for (std::uint32_t target = 0; target < group.world_size(); ++target) {
      if (const auto put = group.signal(target, lane); !put.ok()) return put.status();
    }
  }
  for (std::uint32_t source = 0; source < group.world_size(); ++source) {
    const Status came = group.wait_arrival(source, lane, before + count, std::chrono::seconds(20));
    if (!came.ok()) return came;
  }
  return {};
}

int signals(Group& group, std::uint64_t count) {
  const auto lane = group.reserve_lanes(1);
  if (!lane.ok()) return refused(lane.status());
  constexpr std::uint32_t kLanes = 4;
  {
    auto endpoint = group.device_endpoint({.lanes = kLanes});
    if (!endpoint.ok()) return refused(endpoint.status());
    const mkernel::Activity active = group.keep_active();
    for (std::uint64_t launch = 1; launch <= 2; ++launch) {
      // No rank is ahead of another: what a launch sees is its own and that of those before.
      if (const Status here = group.barrier(); !here.ok()) return refused(here);
      const std::uint64_t ctas = kCtas - 1;
      const std::uint64_t expected = ctas * group.world_size() * launch * count * (ctas / kLanes);
      Status of_thread;
      std::thread thread(
          [&] { of_thread = signal_from_cpu(group, lane.value(), (launch - 1) * count, count); });
      const std::uint64_t seen = signal_once(endpoint->view(), count);
      thread.join();
      if (!of_thread.ok()) return refused(of_thread);
      if (const Status status = endpoint->status(); !status.ok()) return refused(status);
      if (seen != expected) return fail(std::to_string(seen) + " seen, expected " + std::to_string(expected));
    }
    // Every rank is done with its kernels before any rank lets go.
    if (const Status here = group.barrier(); !here.ok()) return refused(here);
  }
  const Status left = group.barrier();
  return left.ok() ? 0 : refused(left);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 8) return fail("usage: device_rank SOCKET GROUP WORLD RANK DEVICE wait|signals NUMBER");
  const int device = std::atoi(argv[5]);
  auto session = mkernel::Session::connect({.socket = argv[1], .name = "device_rank", .device = device});
  if (!session.ok()) return refused(session.status());
  auto group = session->join({.name = argv[2],
                              .world_size = static_cast<std::uint32_t>(std::atoi(argv[3])),
                              .rank = static_cast<std::uint32_t>(std::atoi(argv[4]))});
  if (!group.ok()) return refused(group.status());
  if (device >= 0) need(cudaSetDevice(device), "cudaSetDevice");
  const std::uint64_t number = std::strtoull(argv[7], nullptr, 10);
  if (argv[6] == std::string("wait")) return wait(*group, std::chrono::milliseconds(number));
  return signals(*group, number);
}
