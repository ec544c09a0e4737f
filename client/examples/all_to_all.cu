// An all-to-all in one kernel: block d of every rank's `send` becomes block `rank` of rank d's `recv`. Ranks
// of this node get theirs by stores over NVLink, ranks of other nodes by puts. The launch is captured in a
// CUDA graph and replayed; every replay has new data and every word is verified.
//
//   nvcc -std=c++20 -arch=sm_90 all_to_all.cu -I PREFIX/include -L PREFIX/lib -lmkernel
//   all_to_all SOCKET GROUP WORLD RANK DEVICE BLOCK_BYTES ROUNDS      one process per rank
#include <mkernel/client.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <mkernel/device.cuh>
#include <string>

namespace {

namespace mk = mkernel::device;
using mkernel::Status;

constexpr std::uint32_t kData = 0, kReady = 1, kLanes = 2;
constexpr unsigned kThreads = 256;

struct AllToAll {
  mk::Endpoint endpoint;
  mk::Peers recv;         ///< by local rank: [source][block_bytes]
  const std::byte* send;  ///< [target][block_bytes]
  std::uint32_t send_region, recv_region;
  std::uint64_t block_bytes;  ///< a multiple of 16
};

/// One thread per rank of another node: waits until its recv is free, then puts.
__device__ bool put_blocks(const AllToAll& a, std::uint64_t launch) {
  const mk::Endpoint& e = a.endpoint;
  bool ok = true;
  mk::release(mk::Thread{});  // what the kernels before this one wrote to send
  for (std::uint32_t target = threadIdx.x; ok && target < e.world_size; target += blockDim.x) {
    if (mk::local_rank(e, target) >= 0) continue;
    ok = mk::wait_arrival(mk::Thread{}, e, target, kReady, launch + 1) &&
         mk::put(e, target, kData, {a.send_region, target * a.block_bytes},
                 {a.recv_region, e.rank * a.block_bytes}, a.block_bytes);
  }
  return ok;
}

/// One thread per rank of another node: its block is here, and ours has left send.
__device__ bool await_blocks(const AllToAll& a, std::uint64_t launch) {
  const mk::Endpoint& e = a.endpoint;
  bool ok = true;
  for (std::uint32_t peer = threadIdx.x; ok && peer < e.world_size; peer += blockDim.x) {
    if (mk::local_rank(e, peer) >= 0) continue;
    ok = mk::wait_arrival(mk::Thread{}, e, peer, kData, launch + 1) &&
         mk::wait_completed(mk::Thread{}, e, peer, kData, mk::issued(e, peer, kData));
  }
  return ok;
}

/// All blocks but the poller together: what the ranks of this node get.
__device__ void store_blocks(const AllToAll& a) {
  const mk::Endpoint& e = a.endpoint;
  const std::uint64_t first = (blockIdx.x - 1) * std::uint64_t{blockDim.x} + threadIdx.x;
  const std::uint64_t stride = (gridDim.x - 1) * std::uint64_t{blockDim.x};
  for (std::uint32_t i = 0; i < e.world_size; ++i) {
    const std::uint32_t target = (e.rank + i) % e.world_size;  // nobody is written by all at once
    const std::int32_t local = mk::local_rank(e, target);
    if (local < 0) continue;
    const auto* from = reinterpret_cast<const uint4*>(a.send + target * a.block_bytes);
    auto* to = reinterpret_cast<uint4*>(mk::peer(a.recv, local) + e.rank * a.block_bytes);
    for (std::uint64_t word = first; word < a.block_bytes / sizeof(uint4); word += stride)
      to[word] = from[word];
  }
}

__global__ void all_to_all(AllToAll a) {
  if (mk::is_poller()) return mk::poll(a.endpoint);
  if (mk::stopped(a.endpoint)) return mk::leave(a.endpoint);  // a launch before this one failed
  const mk::Endpoint& e = a.endpoint;
  const std::uint64_t launch = mk::launches(e);
  const bool talks = blockIdx.x == 1;  // with other nodes
  // What was in recv has been read: the kernels before this one are over. Tell everybody.
  for (std::uint32_t peer = threadIdx.x; talks && peer < e.world_size; peer += blockDim.x) {
    if (mk::local_rank(e, peer) < 0) mk::signal(e, peer, kReady);
  }
  bool ok = mk::node_barrier(e);
  if (ok && talks) ok = put_blocks(a, launch);
  if (ok) store_blocks(a);
  if (ok && talks) ok = await_blocks(a, launch);
  if (__syncthreads_and(ok)) mk::node_barrier(e);
  mk::leave(e);
}

// ---- what follows makes data, verifies it, and runs the kernel

using Word = unsigned long long;

/// What `source` gives `target` at `index` in round `round`: no two are related.
__host__ __device__ Word word_of(Word round, Word source, Word target, Word index) {
  Word x =
      round * 0xd1342543de82ef95ULL + 0x9e3779b97f4a7c15ULL * (index + 1) + (source << 40) + (target << 52);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

__global__ void fill(Word* send, Word words, Word world, Word rank, const Word* round) {
  for (Word i = blockIdx.x * Word{blockDim.x} + threadIdx.x; i < words * world;
       i += Word{gridDim.x} * blockDim.x)
    send[i] = word_of(*round, rank, i / words, i % words);
}

/// Counts wrong words, and poisons what it has read.
__global__ void check(Word* recv, Word words, Word world, Word rank, const Word* round, Word* wrong) {
  for (Word i = blockIdx.x * Word{blockDim.x} + threadIdx.x; i < words * world;
       i += Word{gridDim.x} * blockDim.x) {
    if (recv[i] != word_of(*round, i / words, rank, i % words)) atomicAdd(wrong, 1ULL);
    recv[i] = ~0ULL;
  }
}

__global__ void next_round(Word* round) {
  ++*round;
}

Status cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  return {mkernel::StatusCode::kInternal, std::string(what) + ": " + cudaGetErrorString(error)};
}

/// One round after the other, all in one graph.
Status replay(int rounds, cudaStream_t stream, const std::function<void()>& queue_round) {
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  MK_RETURN_IF_ERROR(cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture"));
  queue_round();
  MK_RETURN_IF_ERROR(cuda(cudaStreamEndCapture(stream, &graph), "capture"));
  MK_RETURN_IF_ERROR(cuda(cudaGraphInstantiate(&executable, graph, 0), "graph"));
  for (int i = 0; i < rounds; ++i) MK_RETURN_IF_ERROR(cuda(cudaGraphLaunch(executable, stream), "replay"));
  return cuda(cudaStreamSynchronize(stream), "replays");
}

Status run(mkernel::Group& group, int device, std::uint64_t block_bytes, int rounds) {
  const Word world = group.world_size(), rank = group.rank(), words = block_bytes / sizeof(Word);
  auto send = group.symmetric_gpu(world * block_bytes);
  MK_RETURN_IF_ERROR(send.status());
  auto recv = group.symmetric_gpu(world * block_bytes);
  MK_RETURN_IF_ERROR(recv.status());
  auto endpoint = group.device_endpoint({.lanes = kLanes});
  MK_RETURN_IF_ERROR(endpoint.status());
  const auto peers = endpoint->peers(*recv);
  MK_RETURN_IF_ERROR(peers.status());

  MK_RETURN_IF_ERROR(cuda(cudaSetDevice(device), "GPU"));
  int sms = 0;
  MK_RETURN_IF_ERROR(cuda(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device), "SMs"));
  Word* state = nullptr;  // round, wrong words
  MK_RETURN_IF_ERROR(cuda(cudaMalloc(&state, 2 * sizeof(Word)), "memory"));
  MK_RETURN_IF_ERROR(cuda(cudaMemset(state, 0, 2 * sizeof(Word)), "memory"));
  cudaStream_t stream;
  MK_RETURN_IF_ERROR(cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream"));
  auto* from = reinterpret_cast<Word*>(send->data());
  auto* to = reinterpret_cast<Word*>(recv->data());
  const AllToAll exchange{endpoint->view(), peers.value(),  send->data(),
                          send->region(),   recv->region(), block_bytes};
  {
    const mkernel::Activity active = group.keep_active();  // the daemon polls: kernels cannot wake it
    MK_RETURN_IF_ERROR(replay(rounds, stream, [&] {
      fill<<<sms, kThreads, 0, stream>>>(from, words, world, rank, state);
      all_to_all<<<sms, kThreads, 0, stream>>>(exchange);
      check<<<sms, kThreads, 0, stream>>>(to, words, world, rank, state, state + 1);
      next_round<<<1, 1, 0, stream>>>(state);
    }));
  }
  MK_RETURN_IF_ERROR(endpoint->status());
  Word result[2] = {};
  MK_RETURN_IF_ERROR(cuda(cudaMemcpy(result, state, sizeof(result), cudaMemcpyDeviceToHost), "result"));
  std::printf("rank %llu: %llu rounds, %llu of %llu words wrong, %u nodes\n", rank, result[0], result[1],
              words * world * result[0], group.node_count());
  MK_RETURN_IF_ERROR(group.barrier());  // nobody unmaps what another still uses
  if (result[1] == 0 && result[0] == static_cast<Word>(rounds)) return {};
  return {mkernel::StatusCode::kDataLoss, "not what was sent"};
}

/// argv as in the first lines of this file.
Status join_and_run(char** argv) {
  const int device = std::atoi(argv[5]);
  const std::uint64_t block_bytes = std::strtoull(argv[6], nullptr, 10) / 16 * 16;
  auto session = mkernel::Session::connect({.socket = argv[1], .name = "all_to_all", .device = device});
  MK_RETURN_IF_ERROR(session.status());
  auto group = session->join({.name = argv[2],
                              .world_size = static_cast<std::uint32_t>(std::atoi(argv[3])),
                              .rank = static_cast<std::uint32_t>(std::atoi(argv[4]))});
  MK_RETURN_IF_ERROR(group.status());
  return run(*group, device, block_bytes, std::atoi(argv[7]));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 8) {
    std::fprintf(stderr, "usage: all_to_all SOCKET GROUP WORLD RANK DEVICE BLOCK_BYTES ROUNDS\n");
    return 2;
  }
  const Status status = join_and_run(argv);
  if (!status.ok()) std::printf("%s\n", status.to_string().c_str());
  return status.ok() ? 0 : 1;
}
