// One rank of the test of symmetric GPU memory: a process of its own, against a real daemon.
//
//   symmetric_rank devices          how many GPUs there are; status 77 and the reason when there is none
//   symmetric_rank free DEVICE      for every line that it reads, how many bytes of its memory are free
//   symmetric_rank run SOCKET GROUP WORLD RANK DEVICE BYTES [check|hold|put]
//
// run makes a symmetric buffer on the GPU and
//   check  writes random words into a part of every rank's buffer of this node with a kernel, and verifies
//          what the others wrote: in its own buffer, and in theirs as seen from here
//   hold   says "ready", waits for a line, then makes a collective call, tells how it ended, lets go and says
//          "gone"
//   put    asks the daemon to move the buffer, which it must refuse
// Status 0: as expected; 1: wrong data or usage; 3: mkernel refused, its error is on stdout.
#include <cuda_runtime.h>
#include <mkernel/client.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "tests/gpu/rank.h"

namespace {

using mkernel::Group;
using mkernel::Status;
using mkernel::SymmetricBuffer;
using Word = unsigned long long;

constexpr int kThreads = 256;
constexpr int kBlocks = 32;

/// The word that `writer` puts at `index` of the buffer of `owner`: no two are related.
__host__ __device__ Word word(Word seed, Word writer, Word owner, Word index) {
  Word x = seed + 0x9e3779b97f4a7c15ULL * (index + 1) + (writer << 40) + (owner << 52);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

__global__ void write_part(Word* buffer, Word begin, Word end, Word seed, Word writer, Word owner) {
  const Word stride = Word{gridDim.x} * blockDim.x;
  for (Word i = begin + blockIdx.x * Word{blockDim.x} + threadIdx.x; i < end; i += stride) {
    buffer[i] = word(seed, writer, owner, i);
  }
}

__global__ void count_wrong(const Word* buffer, Word begin, Word end, Word seed, Word writer, Word owner,
                            bool zero, Word* wrong) {
  const Word stride = Word{gridDim.x} * blockDim.x;
  Word mine = 0;
  for (Word i = begin + blockIdx.x * Word{blockDim.x} + threadIdx.x; i < end; i += stride) {
    mine += buffer[i] != (zero ? 0 : word(seed, writer, owner, i)) ? 1 : 0;
  }
  if (mine != 0) atomicAdd(wrong, mine);
}

/// Mismatches in [begin, end), counted by a kernel of this GPU.
Word wrong_in(const std::byte* buffer, Word begin, Word end, Word seed, Word writer, Word owner,
              bool zero = false) {
  Word* wrong = nullptr;
  need(cudaMalloc(&wrong, sizeof(Word)), "cudaMalloc");
  need(cudaMemset(wrong, 0, sizeof(Word)), "cudaMemset");
  count_wrong<<<kBlocks, kThreads>>>(reinterpret_cast<const Word*>(buffer), begin, end, seed, writer, owner,
                                     zero, wrong);
  Word count = 0;
  need(cudaMemcpy(&count, wrong, sizeof(Word), cudaMemcpyDeviceToHost), "counting wrong words");
  need(cudaFree(wrong), "cudaFree");
  return count;
}

int usage() {
  std::cerr
      << "usage: symmetric_rank devices | free DEVICE | run SOCKET GROUP WORLD RANK DEVICE BYTES [MODE]\n";
  return 1;
}

int devices() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) {
    std::cout << count << std::endl;
    return 0;
  }
  std::cout << "SKIPPED: no GPU: " << cudaGetErrorString(error) << std::endl;
  return 77;
}

int free_bytes(int device) {
  std::size_t free = 0, total = 0;
  std::string line;
  need(cudaSetDevice(device), "cudaSetDevice");
  while (std::getline(std::cin, line)) {
    need(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    std::cout << free << std::endl;
  }
  return 0;
}

/// Words of every rank's part: the buffer's whole words, cut evenly, the rest to the last rank.
struct Parts {
  Word words, world;
  Word begin(Word rank) const { return words / world * rank; }
  Word end(Word rank) const { return rank + 1 == world ? words : begin(rank + 1); }
};

int check(Group& group, SymmetricBuffer& buffer) {
  const Word me = group.rank(), world = group.world_size(), seed = 20261121;
  const Parts parts{buffer.bytes() / sizeof(Word), world};
  if (const Word dirty = wrong_in(buffer.data(), 0, parts.words, 0, 0, 0, true); dirty != 0) {
    std::cout << dirty << " words are not zero at the start" << std::endl;
    return 1;
  }
  // Two rounds with different words: the second cannot pass on what the first left.
  for (Word round = 0; round < 2; ++round) {
    if (const Status here = group.barrier(); !here.ok()) return refused(here);
    for (Word owner = 0; owner < world; ++owner) {
      std::byte* peer = buffer.peer(static_cast<std::uint32_t>(owner));
      if (peer == nullptr) continue;
      write_part<<<kBlocks, kThreads>>>(reinterpret_cast<Word*>(peer), parts.begin(me), parts.end(me),
                                        seed + round, me, owner);
    }
    need(cudaDeviceSynchronize(), "writing into the buffers");
    if (const Status here = group.barrier(); !here.ok()) return refused(here);
    Word wrong = 0, peers = 0;
    for (Word owner = 0; owner < world; ++owner) {
      const std::byte* peer = buffer.peer(static_cast<std::uint32_t>(owner));
      if (peer == nullptr) continue;
      ++peers;
      for (Word writer = 0; writer < world; ++writer) {
        wrong += wrong_in(peer, parts.begin(writer), parts.end(writer), seed + round, writer, owner);
      }
    }
    // And by another road: a copy to the host, compared with what the host computes.
    std::vector<Word> host(parts.words);
    need(cudaMemcpy(host.data(), buffer.data(), parts.words * sizeof(Word), cudaMemcpyDeviceToHost),
         "copy to host");
    for (Word writer = 0; writer < world; ++writer) {
      for (Word i = parts.begin(writer); i < parts.end(writer); ++i) {
        wrong += host[i] != word(seed + round, writer, me, i) ? 1 : 0;
      }
    }
    std::cout << "rank " << me << " round " << round << ": " << wrong << " of " << parts.words * (peers + 1)
              << " words wrong, " << peers << " buffers" << std::endl;
    if (wrong != 0) return 1;
  }
  const Status left = group.barrier();  // nobody unmaps what another still reads
  return left.ok() ? 0 : refused(left);
}

int put(Group& group, const SymmetricBuffer& buffer) {
  const auto lane = group.reserve_lanes(1);
  if (!lane.ok()) return refused(lane.status());
  const std::uint32_t peer = (group.rank() + 1) % group.world_size();
  const auto number = group.put(peer, lane.value(), buffer, 0, buffer.region(), 0, 4096);
  if (!number.ok()) return refused(number.status());
  const Status moved = group.wait_completed(peer, lane.value(), number.value(), std::chrono::seconds(20));
  return moved.ok() ? 0 : refused(moved);
}

/// The group ends with this call, the session does not.
int hold(Group group, std::uint64_t bytes) {
  auto buffer = group.symmetric_gpu(bytes);
  if (!buffer.ok()) return refused(buffer.status());
  std::cout << "ready" << std::endl;
  std::string line;
  std::getline(std::cin, line);
  std::cout << group.barrier().to_string() << std::endl;
  return 0;
}

int use(Group& group, std::uint64_t bytes, int device, const std::string& mode) {
  auto buffer = group.symmetric_gpu(bytes);
  if (!buffer.ok()) return refused(buffer.status());
  need(cudaSetDevice(device), "cudaSetDevice");
  return mode == "put" ? put(group, *buffer) : check(group, *buffer);
}

int run(const std::string& socket, const std::string& name, std::uint32_t world, std::uint32_t rank,
        int device, std::uint64_t bytes, const std::string& mode) {
  auto session = mkernel::Session::connect({.socket = socket, .name = "symmetric_rank", .device = device});
  if (!session.ok()) return refused(session.status());
  auto group = session->join({.name = name, .world_size = world, .rank = rank});
  if (!group.ok()) return refused(group.status());
  if (mode != "hold") return use(*group, bytes, device, mode);
  const int held = hold(std::move(*group), bytes);
  if (held != 0) return held;
  // Buffer and group are gone, session and process are not: the memory must be free all the same.
  std::cout << "gone" << std::endl;
  std::string line;
  std::getline(std::cin, line);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "devices" && argc == 2) return devices();
  if (what == "free" && argc == 3) return free_bytes(std::atoi(argv[2]));
  if (what != "run" || argc < 8 || argc > 9) return usage();
  return run(argv[2], argv[3], static_cast<std::uint32_t>(std::strtoul(argv[4], nullptr, 10)),
             static_cast<std::uint32_t>(std::strtoul(argv[5], nullptr, 10)), std::atoi(argv[6]),
             std::strtoull(argv[7], nullptr, 10), argc == 9 ? argv[8] : "check");
}
