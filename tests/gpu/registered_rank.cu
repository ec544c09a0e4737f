// One rank of the test of GPU memory that is registered by pointer: a process of its own, against the daemon
// of its node.
//
//   registered_rank SOCKET GROUP WORLD RANK DEVICE BYTES share|put|endless|hold|errors
//   registered_rank SOCKET GROUP WORLD 0 GPUS BYTES threads
//
// The rank allocates with cudaMalloc and registers BYTES from an odd address within on.
//   share    kernels write random bytes into every buffer of this node through peer(), two rounds; every
//   owner
//            verifies its own, and what lies around it
//   put      puts of many sizes at odd offsets to rank + WORLD / 2 and back: from and into registered memory,
//            and between it and memory of symmetric_gpu(); verified byte for byte
//   endless  "ready" after the first puts, then puts until the group fails; says why
//   hold     "ready", waits for a line, makes a collective call, tells how it ended, lets go of everything,
//            says "gone", waits for a line
//   errors   registers what cannot be, and tells what was said
//   threads  share, with all ranks as threads of this process, on the GPUs in turn
// Status 0: as expected; 1: wrong data or usage; 3: mkernel refused, its error is on stdout.
#include <cuda_runtime.h>
#include <mkernel/client.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/gpu/rank.h"

namespace {

using mkernel::Group;
using mkernel::Result;
using mkernel::Status;
using mkernel::SymmetricBuffer;

constexpr std::uint64_t kMargin = 1237;  ///< odd, and no page's begin
constexpr std::byte kPoison{0xa5};
constexpr std::chrono::seconds kPatience{60};

/// What a user has: an allocation, and a tensor somewhere in it.
class Plain {
 public:
  explicit Plain(std::uint64_t bytes) : bytes_(bytes) {
    need(cudaMalloc(&base_, bytes + 2 * kMargin), "cudaMalloc");
    need(cudaMemset(base_, static_cast<int>(kPoison), bytes + 2 * kMargin), "cudaMemset");
    need(cudaDeviceSynchronize(), "poisoning");
  }
  ~Plain() { need(cudaFree(base_), "cudaFree"); }
  Plain(const Plain&) = delete;
  Plain& operator=(const Plain&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(base_) + kMargin; }
  std::uint64_t bytes() const { return bytes_; }
  /// Bytes around the tensor that somebody wrote.
  std::uint64_t spoiled() const {
    std::vector<std::byte> all(bytes_ + 2 * kMargin);
    need(cudaMemcpy(all.data(), base_, all.size(), cudaMemcpyDeviceToHost), "reading the margins");
    const auto count = [&](std::uint64_t begin) {
      return std::count_if(&all[begin], &all[begin] + kMargin, [](std::byte b) { return b != kPoison; });
    };
    return static_cast<std::uint64_t>(count(0) + count(kMargin + bytes_));
  }

 private:
  void* base_ = nullptr;
  const std::uint64_t bytes_;
};

// ---- through peer()

__host__ __device__ unsigned char byte_of(std::uint64_t seed, std::uint64_t owner, std::uint64_t index) {
  std::uint64_t x = seed + 0x9e3779b97f4a7c15ULL * (index + 1) + (owner << 40);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  return static_cast<unsigned char>(x >> 56);
}

__global__ void write_bytes(unsigned char* buffer, std::uint64_t begin, std::uint64_t end, std::uint64_t seed,
                            std::uint64_t owner) {
  const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t i = begin + blockIdx.x * blockDim.x + threadIdx.x; i < end; i += stride) {
    buffer[i] = byte_of(seed, owner, i);
  }
}

std::uint64_t wrong_bytes(const Plain& plain, std::uint64_t seed, std::uint64_t owner) {
  std::vector<unsigned char> mine(plain.bytes());
  need(cudaMemcpy(mine.data(), plain.data(), mine.size(), cudaMemcpyDeviceToHost), "reading the buffer");
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < mine.size(); ++i) wrong += mine[i] != byte_of(seed, owner, i) ? 1 : 0;
  return wrong;
}

int share(Group& group, const Plain& plain, const SymmetricBuffer& buffer) {
  const std::uint64_t world = group.world_size(), me = group.rank(), bytes = buffer.bytes();
  for (std::uint64_t round = 1; round <= 2; ++round) {
    if (const Status here = group.barrier(); !here.ok()) return refused(here);
    for (std::uint32_t owner = 0; owner < world; ++owner) {
      auto* peer = reinterpret_cast<unsigned char*>(buffer.peer(owner));
      write_bytes<<<32, 256>>>(peer, bytes * me / world, bytes * (me + 1) / world, round, owner);
    }
    need(cudaDeviceSynchronize(), "writing into the buffers");
    if (const Status here = group.barrier(); !here.ok()) return refused(here);
    const std::uint64_t wrong = wrong_bytes(plain, round, me), spoiled = plain.spoiled();
    // In one piece: ranks may be threads of one process.
    std::cout << "rank " + std::to_string(me) + ": " + std::to_string(wrong) + " of " +
                     std::to_string(bytes) + " bytes wrong, " + std::to_string(spoiled) + " around them\n"
              << std::flush;
    if (wrong + spoiled != 0) return 1;
  }
  return 0;
}

// ---- puts

std::vector<std::byte> random_bytes(std::uint64_t bytes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> all(bytes);
  for (std::byte& byte : all) byte = static_cast<std::byte>(random() >> 56);
  return all;
}

struct Piece {
  std::uint64_t from = 0, to = 0, bytes = 0;
};

/// Puts from the first half of a buffer into the second, of sizes that grow, apart from each other there.
std::vector<Piece> pieces_of(std::uint64_t bytes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Piece> pieces;
  const std::uint64_t half = bytes / 2;
  std::uint64_t to = half + 1;
  for (std::uint64_t size = 1; to + size <= bytes; size = size + size / 3 + 1) {
    pieces.push_back({random() % (half - size + 1), to, size});
    to += size + 1 + random() % 37;
  }
  return pieces;
}

/// One round both ways between the halves of `source` here and of `target` there; the number of wrong bytes.
Result<std::uint64_t> run_round(Group& group, std::uint32_t lane, const SymmetricBuffer& source,
                                const SymmetricBuffer& target, std::uint64_t round) {
  const std::uint64_t bytes = std::min(source.bytes(), target.bytes()), half = bytes / 2;
  const std::uint32_t peer = (group.rank() + group.world_size() / 2) % group.world_size();
  need(cudaMemset(target.data(), static_cast<int>(kPoison), bytes), "poisoning the target");
  const auto mine = random_bytes(half, 100 * round + group.rank());
  need(cudaMemcpy(source.data(), mine.data(), half, cudaMemcpyHostToDevice), "filling the source");
  need(cudaDeviceSynchronize(), "preparing a round");
  MK_RETURN_IF_ERROR(group.barrier());
  const auto pieces = pieces_of(bytes, round);
  std::uint64_t last = 0;
  for (const Piece& piece : pieces) {
    const auto number = group.put(peer, lane, source, piece.from, target.region(), piece.to, piece.bytes);
    if (!number.ok()) return number.status();
    last = number.value();
  }
  MK_RETURN_IF_ERROR(group.wait_completed(peer, lane, last, kPatience));
  MK_RETURN_IF_ERROR(group.wait_arrival(peer, lane, last, kPatience));
  std::vector<std::byte> got(half), wanted(half, kPoison);
  need(cudaMemcpy(got.data(), target.data() + half, half, cudaMemcpyDeviceToHost), "reading the target");
  MK_RETURN_IF_ERROR(group.barrier());
  const auto theirs = random_bytes(half, 100 * round + peer);
  for (const Piece& piece : pieces) std::copy_n(&theirs[piece.from], piece.bytes, &wanted[piece.to - half]);
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < half; ++i) wrong += got[i] != wanted[i] ? 1 : 0;
  return wrong;
}

int put(Group& group, const Plain& plain, const SymmetricBuffer& buffer) {
  const auto lane = group.reserve_lanes(1);
  if (!lane.ok()) return refused(lane.status());
  const auto other = group.symmetric_gpu(buffer.bytes());
  if (!other.ok()) return refused(other.status());
  std::uint64_t round = 0;
  for (const auto& [source, target] : {std::pair(&buffer, &buffer), std::pair(&buffer, &other.value()),
                                       std::pair(&other.value(), &buffer)}) {
    const auto wrong = run_round(group, lane.value(), *source, *target, ++round);
    if (!wrong.ok()) return refused(wrong.status());
    const std::uint64_t spoiled = plain.spoiled();
    std::cout << "rank " << group.rank() << " round " << round << ": " << wrong.value() << " bytes wrong of "
              << pieces_of(buffer.bytes(), round).size() << " puts, " << spoiled << " around them"
              << std::endl;
    if (wrong.value() + spoiled != 0) return 1;
  }
  return 0;
}

/// On many lanes, so that a transport which spreads channels over connections uses them all.
int endless(Group& group, const SymmetricBuffer& buffer) {
  constexpr std::uint32_t kLanes = 8, kPuts = 4;  // of each lane in a round
  const auto first = group.reserve_lanes(kLanes);
  if (!first.ok()) return refused(first.status());
  const std::uint32_t peer = (group.rank() + group.world_size() / 2) % group.world_size();
  const std::uint64_t piece = buffer.bytes() / (2 * kLanes * kPuts), half = piece * kLanes * kPuts;
  for (std::uint64_t round = 1;; ++round) {
    for (std::uint64_t i = 0; i < kLanes * kPuts; ++i) {
      const auto lane = first.value() + static_cast<std::uint32_t>(i % kLanes);
      const auto put = group.put(peer, lane, buffer, i * piece, buffer.region(), half + i * piece, piece);
      if (!put.ok()) return refused(put.status());
    }
    for (std::uint32_t lane = first.value(); lane < first.value() + kLanes; ++lane) {
      const Status sent = group.wait_completed(peer, lane, round * kPuts, kPatience);
      if (!sent.ok()) return refused(sent);
      const Status came = group.wait_arrival(peer, lane, round * kPuts, kPatience);
      if (!came.ok()) return refused(came);
    }
    if (round == 1) std::cout << "ready" << std::endl;
  }
}

// ---- the rest

int hold(Group& group) {
  std::cout << "ready" << std::endl;
  std::string line;
  std::getline(std::cin, line);
  std::cout << group.barrier().to_string() << std::endl;
  return 0;
}

void tell(const char* what, const Result<SymmetricBuffer>& result) {
  std::cout << what << ": " << result.status().to_string() << std::endl;
}

int errors(Group& group, const Plain& plain) {
  int here = 0;
  tell("host", group.register_gpu(&here, 4));
  tell("null", group.register_gpu(nullptr, 4));
  tell("beyond", group.register_gpu(plain.data(), plain.bytes() + kMargin + 1));
  tell("sizes", group.register_gpu(plain.data(), 100 + group.rank()));
  void *pinned = nullptr, *pooled = nullptr;
  need(cudaMallocAsync(&pooled, 4096, nullptr), "cudaMallocAsync");
  need(cudaMallocHost(&pinned, 4096), "cudaMallocHost");
  tell("pooled", group.register_gpu(pooled, 4096));
  tell("pinned host", group.register_gpu(pinned, 4096));
  const auto vmm = group.symmetric_gpu(4096);
  if (!vmm.ok()) return refused(vmm.status());
  tell("vmm", group.register_gpu(vmm->data(), 4096));
  // After all these refusals the group works.
  const auto good = group.register_gpu(plain.data(), plain.bytes());
  tell("good", good);
  // Twice is as good: another region over the same bytes.
  tell("again", group.register_gpu(plain.data() + 1, plain.bytes() - 1));
  const Status left = group.barrier();
  return left.ok() ? 0 : refused(left);
}

int use(Group& group, const Plain& plain, const std::string& mode) {
  if (mode == "errors") return errors(group, plain);
  const auto buffer = group.register_gpu(plain.data(), plain.bytes());
  if (!buffer.ok()) return refused(buffer.status());
  if (mode == "share") return share(group, plain, buffer.value());
  if (mode == "put") return put(group, plain, buffer.value());
  return mode == "endless" ? endless(group, buffer.value()) : hold(group);
}

int run(const std::string& socket, const std::string& name, std::uint32_t world, std::uint32_t rank,
        int device, std::uint64_t bytes, const std::string& mode) {
  need(cudaSetDevice(device), "cudaSetDevice");
  auto session = mkernel::Session::connect({.socket = socket, .name = "registered_rank", .device = device});
  if (!session.ok()) return refused(session.status());
  int outcome = 0;
  {
    const Plain plain(bytes);
    auto group = session->join({.name = name, .world_size = world, .rank = rank});
    if (!group.ok()) return refused(group.status());
    outcome = use(*group, plain, mode);
    // The buffer is gone; once everybody says so the memory may go too. Where the group has failed nobody can
    // say so, and it goes all the same.
    (void)group->barrier();
  }
  if (mode != "hold" || outcome != 0) return outcome;
  // Memory and group are gone, session and process are not.
  std::cout << "gone" << std::endl;
  std::string line;
  std::getline(std::cin, line);
  return 0;
}

int run_threads(const std::string& socket, const std::string& name, std::uint32_t world, int gpus,
                std::uint64_t bytes) {
  std::vector<int> outcomes(world, 1);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      outcomes[rank] = run(socket, name, world, rank, static_cast<int>(rank) % gpus, bytes, "share");
    });
  }
  for (std::thread& thread : threads) thread.join();
  return *std::max_element(outcomes.begin(), outcomes.end());
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc == 8 ? argv[7] : "";
  const std::vector<std::string> modes{"share", "put", "endless", "hold", "errors", "threads"};
  if (std::find(modes.begin(), modes.end(), mode) == modes.end()) {
    std::cerr << "usage: registered_rank SOCKET GROUP WORLD RANK DEVICE BYTES "
                 "share|put|endless|hold|errors|threads\n";
    return 1;
  }
  const auto world = static_cast<std::uint32_t>(std::strtoul(argv[3], nullptr, 10));
  const auto rank = static_cast<std::uint32_t>(std::strtoul(argv[4], nullptr, 10));
  const std::uint64_t bytes = std::strtoull(argv[6], nullptr, 10);
  if (mode == "threads") return run_threads(argv[1], argv[2], world, std::atoi(argv[5]), bytes);
  return run(argv[1], argv[2], world, rank, std::atoi(argv[5]), bytes, mode);
}
