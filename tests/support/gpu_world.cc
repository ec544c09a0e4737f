#include "tests/support/gpu_world.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstring>
#include <iostream>
#include <thread>
#include <utility>

#include "kernels/memory/cuda_error.h"

namespace mkernel::test {
namespace {

using kernels::cuda_status;

bool is_hopper(int device) {
  int major = 0, minor = 0;
  return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess &&
         major == 9 && minor == 0;
}

bool reaches(int from, int to) {
  int can = 0;
  return cudaDeviceCanAccessPeer(&can, from, to) == cudaSuccess && can != 0;
}

Status enable_peers(int device, int count) {
  MK_RETURN_IF_ERROR(cuda_status(cudaSetDevice(device), "device"));
  for (int peer = 0; peer < count; ++peer) {
    if (peer == device) continue;
    const cudaError_t enabled = cudaDeviceEnablePeerAccess(peer, 0);
    if (enabled == cudaErrorPeerAccessAlreadyEnabled) {
      (void)cudaGetLastError();
      continue;
    }
    MK_RETURN_IF_ERROR(cuda_status(enabled, "peer access"));
  }
  return {};
}

}  // namespace

int peer_count() {
  static const int count = [] {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess) return 0;
    for (int device = 0; device < devices; ++device) {
      if (!is_hopper(device)) return device;
      for (int other = 0; other < device; ++other) {
        if (!reaches(device, other) || !reaches(other, device)) return device;
      }
    }
    return devices;
  }();
  return count;
}

bool peers_or_skip(int wanted) {
  if (peer_count() >= wanted) return true;
  std::cout << "SKIPPED: needs " << wanted
            << " GPUs of compute capability 9.0 that reach each other's memory, found " << peer_count()
            << "\n";
  return false;
}

Result<std::unique_ptr<GpuWorld>> GpuWorld::make(int ranks) {
  std::unique_ptr<GpuWorld> world(new GpuWorld);
  for (int rank = 0; rank < ranks; ++rank) {
    MK_RETURN_IF_ERROR(enable_peers(rank, ranks));
    abi::GroupSegment layout{};
    const std::uint64_t bytes = abi::layout_group(layout, ranks, rank, 1, 1);
    void* memory = nullptr;
    MK_RETURN_IF_ERROR(
        cuda_status(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped), "segment"));
    std::memset(memory, 0, bytes);
    kernels::GroupView& group = world->groups_.emplace_back();
    group.segment = static_cast<abi::GroupSegment*>(memory);
    *group.segment = layout;
  }
  return world;
}

GpuWorld::~GpuWorld() {
  for (const auto& [device, memory] : device_memory_) {
    if (cudaSetDevice(device) == cudaSuccess) cudaFree(memory);
  }
  for (const kernels::GroupView& group : groups_) cudaFreeHost(group.segment);
}

Result<std::vector<kernels::SymmetricView>> GpuWorld::symmetric(std::uint64_t bytes) {
  std::vector<std::byte*> node;
  for (int rank = 0; rank < size(); ++rank) {
    void* memory = nullptr;
    MK_RETURN_IF_ERROR(cuda_status(cudaSetDevice(rank), "device"));
    MK_RETURN_IF_ERROR(cuda_status(cudaMalloc(&memory, bytes), "symmetric memory"));
    device_memory_.emplace_back(rank, memory);
    MK_RETURN_IF_ERROR(cuda_status(cudaMemset(memory, 0, bytes), "symmetric memory"));
    MK_RETURN_IF_ERROR(cuda_status(cudaDeviceSynchronize(), "symmetric memory"));
    node.push_back(static_cast<std::byte*>(memory));
  }
  std::vector<kernels::SymmetricView> views;
  for (int rank = 0; rank < size(); ++rank) views.push_back({0, bytes, node, node[rank]});
  return views;
}

void GpuWorld::fail_group(int rank, std::uint32_t code, const std::string& text) {
  abi::GroupSegment& segment = *groups_[rank].segment;
  text.copy(segment.failure.text, sizeof(segment.failure.text) - 1);
  segment.failure.culprit = -1;
  std::atomic_ref(segment.abort).store(code, std::memory_order_release);
}

Status GpuWorld::each(const std::function<Status(int rank)>& body) const {
  std::vector<Status> results(size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size(); ++rank) {
    threads.emplace_back([&, rank] {
      results[rank] = cuda_status(cudaSetDevice(rank), "device");
      if (results[rank].ok()) results[rank] = body(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int rank = 0; rank < size(); ++rank) {
    if (!results[rank].ok()) return results[rank].with_context("rank " + std::to_string(rank));
  }
  return {};
}

}  // namespace mkernel::test
