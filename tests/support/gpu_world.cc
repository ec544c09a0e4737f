#include "tests/support/gpu_world.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "kernels/cuda/memory/error.h"
#include "tests/support/arguments.h"
#include "tests/support/skip.h"

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

/// Once in a process: enabling what is enabled is an error, which compute-sanitizer reports.
Status enable_peers(int device, int count) {
  static std::set<std::pair<int, int>> enabled;
  MK_RETURN_IF_ERROR(cuda_status(cudaSetDevice(device), "device"));
  for (int peer = 0; peer < count; ++peer) {
    if (peer == device || enabled.contains({device, peer})) continue;
    MK_RETURN_IF_ERROR(cuda_status(cudaDeviceEnablePeerAccess(peer, 0), "peer access"));
    enabled.emplace(device, peer);
  }
  return {};
}

}  // namespace

int peer_count() {
  static const int count = [] {
    // Before the first call of CUDA's: with fewer hardware queues the streams of many ranks wait for each
    // other.
    ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
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

int node_ranks() {
  return std::max(2, peer_count());
}

bool peers_or_skip(int wanted) {
  if (peer_count() >= wanted) return true;
  skip("needs " + std::to_string(wanted) +
       " GPUs of compute capability 9.0 that reach each other's memory, found " +
       std::to_string(peer_count()));
  return false;
}

/// Segments in mapped host memory, buffers on the ranks' GPUs, a stream for the copies of each of them. With
/// --host-buffers, data of several nodes lie in mapped host memory as well, and no put needs a call of
/// CUDA's: under compute-sanitizer such a call waits now and then until the launches are over that wait for
/// the put. Words stay on the GPUs, for memcheck takes atomics of the system's scope on host memory for
/// errors.
class GpuWorld::Memory final : public FabricMemory {
 public:
  explicit Memory(const GpuWorld& world) : world_(world) {}
  ~Memory() override {
    for (const auto& [device, stream] : streams_) cudaStreamDestroy(stream);
    for (void* buffer : buffers_) cudaFree(buffer);
    for (void* segment : segments_) cudaFreeHost(segment);
  }

  void* segment(std::uint64_t bytes) override {
    void* memory = nullptr;
    require(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped), "segment");
    segments_.push_back(memory);
    std::memset(memory, 0, bytes);
    return memory;
  }

  std::byte* buffer(std::uint32_t rank, std::uint64_t bytes, Contents contents) override {
    if (on_host_ && contents == Contents::kData) return static_cast<std::byte*>(segment(bytes));
    const int device = world_.device_of(static_cast<int>(rank));
    require(cudaSetDevice(device), "device");
    if (!streams_.contains(device))
      require(cudaStreamCreateWithFlags(&streams_[device], cudaStreamNonBlocking), "stream");
    void* memory = nullptr;
    require(cudaMalloc(&memory, bytes), "symmetric memory");
    buffers_.push_back(memory);
    require(cudaMemset(memory, 0, bytes), "symmetric memory");
    require(cudaDeviceSynchronize(), "symmetric memory");
    return static_cast<std::byte*>(memory);
  }

  Status copy(std::byte* to, const std::byte* from, std::uint64_t bytes) override {
    if (on_host_) {
      std::memcpy(to, from, bytes);
      return {};
    }
    const std::string what = " of a put of " + std::to_string(bytes) + " bytes";
    cudaPointerAttributes source{};
    MK_RETURN_IF_ERROR(world_.calls().run("cudaPointerGetAttributes" + what, [&] {
      return cuda_status(cudaPointerGetAttributes(&source, from), "source of a put");
    }));
    MK_RETURN_IF_ERROR(cuda_status(cudaSetDevice(source.device), "device"));
    cudaStream_t stream = streams_.at(source.device);
    MK_RETURN_IF_ERROR(world_.calls().run("cudaMemcpyAsync" + what, [&] {
      return cuda_status(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "put");
    }));
    return world_.calls().run("cudaStreamSynchronize" + what,
                              [&] { return cuda_status(cudaStreamSynchronize(stream), "put"); });
  }

 private:
  static void require(cudaError_t error, const char* what) {
    const Status status = cuda_status(error, what);
    if (!status.ok()) throw std::runtime_error(status.to_string());
  }

  const GpuWorld& world_;
  const bool on_host_ = world_.options_.nodes > 1 && is_asked_for("--host-buffers");
  std::map<int, cudaStream_t> streams_;  ///< by device
  std::vector<void*> buffers_, segments_;
};

Result<std::unique_ptr<GpuWorld>> GpuWorld::make(int ranks, int nodes) {
  return make({.nodes = static_cast<std::uint32_t>(nodes),
               .ranks_per_node = static_cast<std::uint32_t>(ranks / nodes)});
}

Result<std::unique_ptr<GpuWorld>> GpuWorld::make(const FabricOptions& options) {
  std::unique_ptr<GpuWorld> world(new GpuWorld(options));
  const auto ranks = static_cast<int>(options.nodes * options.ranks_per_node);
  const int devices = std::min(ranks, peer_count());
  for (int device = 0; device < devices; ++device) MK_RETURN_IF_ERROR(enable_peers(device, devices));
  try {
    world->fabric_ = std::make_unique<FakeFabric>(options, std::make_unique<Memory>(*world));
  } catch (const std::runtime_error& error) {
    return Status(StatusCode::kResourceExhausted, error.what());
  }
  for (int rank = 0; rank < ranks; ++rank) {
    MK_RETURN_IF_ERROR(cuda_status(cudaSetDevice(world->device_of(rank)), "device"));
    auto rings = kernels::RingsOnDevice::make(*world->group(rank).session);
    if (!rings.ok()) return rings.status();
    world->rings_.push_back(std::move(*rings));
  }
  return world;
}

GpuWorld::~GpuWorld() = default;

int GpuWorld::device_of(int rank) const {
  return rank % peer_count();
}

std::int32_t GpuWorld::sms() const {
  if (!shares_gpus()) return 0;
  int all = 0;
  if (cudaDeviceGetAttribute(&all, cudaDevAttrMultiProcessorCount, 0) != cudaSuccess) return 0;
  // The wire's copies within one GPU are kernels, which wait for an SM of their own.
  constexpr int kForCopies = 8;
  const int sharing = (size() + peer_count() - 1) / peer_count();
  return (all - kForCopies) / sharing / 2 * 2;
}

Result<std::vector<kernels::SymmetricView>> GpuWorld::symmetric(std::uint64_t bytes, Contents contents) {
  try {
    return fabric_->symmetric(bytes, contents);
  } catch (const std::runtime_error& error) {
    return Status(StatusCode::kResourceExhausted, error.what());
  }
}

void GpuWorld::fail_group(int rank, std::uint32_t code, const std::string& text) {
  abi::GroupSegment& segment = *group(rank).segment;
  text.copy(segment.failure.text, sizeof(segment.failure.text) - 1);
  segment.failure.culprit = -1;
  std::atomic_ref(segment.abort).store(code, std::memory_order_release);
}

Status GpuWorld::each(const std::function<Status(int rank)>& body) const {
  std::vector<Status> results(size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size(); ++rank) {
    threads.emplace_back([&, rank] {
      results[rank] = cuda_status(cudaSetDevice(device_of(rank)), "device");
      if (results[rank].ok()) results[rank] = body(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return first_error(results);
}

Status GpuWorld::first_error(const std::vector<Status>& results) const {
  StatusCode code = StatusCode::kOk;
  std::string text;
  bool gave_up = false;
  for (int rank = 0; rank < size(); ++rank) {
    const Status& result = results[rank];
    if (result.ok()) continue;
    const std::string context = "rank " + std::to_string(rank);
    const bool first = code == StatusCode::kOk;
    text += first ? context + ": " + result.text() : "\n" + context + ": " + result.to_string();
    if (first) code = result.code();
    gave_up |= result.code() == StatusCode::kDeadlineExceeded;
  }
  if (code == StatusCode::kOk) return {};
  if (gave_up) text += "\nputs: " + fabric_->traffic() + "\ncalls: " + calls_.text();
  return {code, text};
}

}  // namespace mkernel::test
