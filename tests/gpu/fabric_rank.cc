// One rank of the test of GPU memory over the emulated fabric: a process of its own, against the daemon of
// its node.
//
//   fabric_rank SOCKET GROUP WORLD RANK DEVICE BYTES MODE
//
// Every rank has a node of its own, and pairs up: rank with rank + WORLD / 2. Each pair puts both ways, from
// buffers of BYTES to buffers of BYTES:
//   check    many sizes, odd offsets, many channels, between GPUs and with the host; verified byte for byte
//   flood    check, then more puts back to back than a ring has slots, on one channel
//   large    of check's sizes those of several MiB, between GPUs
//   endless  "ready" after the first round, then rounds until the group fails; says why
//   bench    tells latency and bandwidth by size
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
#include <vector>

#include "tests/gpu/rank.h"

namespace {

using mkernel::Group;
using mkernel::Result;
using mkernel::Status;
using mkernel::SymmetricBuffer;
using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kLanes = 8;
constexpr std::chrono::seconds kPatience{60};
constexpr std::byte kPoison{0xa5};
constexpr std::uint64_t kMiB = 1 << 20;
/// Back to back from each rank: more than a ring has slots.
constexpr std::uint64_t kFloodPuts = 5000;

/// A put of a round, the same at both ends.
struct Piece {
  std::uint32_t lane = 0;
  std::uint64_t from = 0, to = 0, bytes = 0;
};

/// One rank's side of its pair: what it has put and what it has been given, per lane.
class Side {
 public:
  Side(Group& group, std::uint32_t first_lane)
      : group_(group),
        first_lane_(first_lane),
        peer_((group.rank() + group.world_size() / 2) % group.world_size()),
        put_(kLanes),
        got_(kLanes) {}

  std::uint32_t peer() const { return peer_; }
  std::uint32_t rank() const { return group_.rank(); }

  Status put(const SymmetricBuffer& source, const SymmetricBuffer& target, const Piece& piece) {
    const auto number = group_.put(peer_, first_lane_ + piece.lane, source, piece.from, target.region(),
                                   piece.to, piece.bytes);
    if (!number.ok()) return number.status();
    put_[piece.lane] = number.value();
    return {};
  }
  void expect(std::uint32_t lane, std::uint64_t puts = 1) { got_[lane] += puts; }
  Status wait_arrivals() {
    for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
      MK_RETURN_IF_ERROR(group_.wait_arrival(peer_, first_lane_ + lane, got_[lane], kPatience));
    }
    return {};
  }
  Status wait_completed() {
    for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
      MK_RETURN_IF_ERROR(group_.wait_completed(peer_, first_lane_ + lane, put_[lane], kPatience));
    }
    return {};
  }
  /// Waits for lane 0 alone, without ever sleeping: for latencies.
  Status spin_for_arrival() {
    while (group_.arrivals(peer_, first_lane_) < got_[0]) MK_RETURN_IF_ERROR(group_.status());
    return {};
  }

 private:
  Group& group_;
  const std::uint32_t first_lane_;
  const std::uint32_t peer_;
  std::vector<std::uint64_t> put_, got_;
};

void poison(const SymmetricBuffer& buffer, bool on_gpu) {
  if (on_gpu) {
    need(cudaMemset(buffer.data(), static_cast<int>(kPoison), buffer.bytes()), "poisoning the target");
  } else {
    std::memset(buffer.data(), static_cast<int>(kPoison), buffer.bytes());
  }
}

/// Buffers of one round: where puts read and where they land, each in host memory or on the GPU.
struct Buffers {
  const SymmetricBuffer& source;
  const SymmetricBuffer& target;
  bool target_on_gpu = true;
};

std::vector<std::byte> random_bytes(std::uint64_t bytes, std::uint64_t round, std::uint32_t rank) {
  std::mt19937_64 random(round * 1000 + rank + 1);
  std::vector<std::byte> all(bytes);
  for (std::uint64_t at = 0; at + 8 <= bytes; at += 8) {
    const std::uint64_t word = random();
    std::memcpy(all.data() + at, &word, 8);
  }
  return all;
}

/// Puts of `size` bytes at odd offsets, apart from each other in the target; as many as fit, at most 200.
std::vector<Piece> pieces_of(std::uint64_t size, std::uint64_t round, std::uint64_t bytes) {
  std::mt19937_64 random(round * 77 + size);
  std::vector<Piece> pieces;
  std::uint64_t to = random() % 16;
  while (pieces.size() < 200 && to + size <= bytes) {
    const std::uint64_t from = random() % (bytes - size + 1);
    pieces.push_back({static_cast<std::uint32_t>(random() % kLanes), from, to, size});
    to += size + 1 + random() % 37;
  }
  return pieces;
}

/// Wrong bytes of the target: every piece must be the peer's, and what lies between them as it was.
std::uint64_t wrong_bytes(const std::vector<std::byte>& target, const std::vector<std::byte>& theirs,
                          const std::vector<Piece>& pieces) {
  std::vector<std::byte> wanted(target.size(), kPoison);
  for (const Piece& piece : pieces) std::copy_n(&theirs[piece.from], piece.bytes, &wanted[piece.to]);
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < target.size(); ++i) wrong += target[i] != wanted[i] ? 1 : 0;
  return wrong;
}

/// One round both ways; the number of wrong bytes.
Result<std::uint64_t> run_round(Group& group, Side& side, const Buffers& buffers, std::uint64_t size,
                                std::uint64_t round) {
  const std::uint64_t bytes = std::min(buffers.source.bytes(), buffers.target.bytes());
  const auto mine = random_bytes(bytes, round, side.rank());
  need(cudaMemcpy(buffers.source.data(), mine.data(), bytes, cudaMemcpyDefault), "filling the source");
  poison(buffers.target, buffers.target_on_gpu);
  need(cudaDeviceSynchronize(), "preparing a round");
  MK_RETURN_IF_ERROR(group.barrier());
  const auto pieces = pieces_of(size, round, bytes);
  for (const Piece& piece : pieces) {
    side.expect(piece.lane);
    MK_RETURN_IF_ERROR(side.put(buffers.source, buffers.target, piece));
  }
  MK_RETURN_IF_ERROR(side.wait_arrivals());
  std::vector<std::byte> target(buffers.target.bytes());
  need(cudaMemcpy(target.data(), buffers.target.data(), target.size(), cudaMemcpyDefault),
       "reading the target");
  MK_RETURN_IF_ERROR(side.wait_completed());
  MK_RETURN_IF_ERROR(group.barrier());
  return wrong_bytes(target, random_bytes(bytes, round, side.peer()), pieces);
}

/// Rounds with puts of many sizes, from `smallest` bytes on up to half of a buffer; those with the host too
/// unless `host` is null.
int check(Group& group, Side& side, const SymmetricBuffer (&gpu)[2], const SymmetricBuffer* host,
          std::uint64_t smallest) {
  const std::uint64_t bytes = gpu[0].bytes();
  std::uint64_t round = 0, puts = 0;
  const auto verify = [&](const char* what, const Buffers& buffers, std::uint64_t size) {
    const auto wrong = run_round(group, side, buffers, size, ++round);
    if (!wrong.ok()) return refused(wrong.status());
    puts += pieces_of(size, round, std::min(buffers.source.bytes(), buffers.target.bytes())).size();
    if (wrong.value() == 0) return 0;
    std::cout << "rank " << side.rank() << ", " << what << ", puts of " << size << " bytes: " << wrong.value()
              << " bytes wrong" << std::endl;
    return 1;
  };
  for (std::uint64_t size = 1; size <= bytes / 2; size = size * 4 + size % 3) {
    if (size < smallest) continue;
    if (const int bad = verify("GPU to GPU", {gpu[0], gpu[1]}, size); bad != 0) return bad;
  }
  if (const int bad = verify("GPU to GPU", {gpu[0], gpu[1]}, bytes / 2); bad != 0) return bad;
  for (const std::uint64_t size : {std::uint64_t{1}, std::uint64_t{4097}, 2 * kMiB}) {
    if (host == nullptr) break;
    if (const int bad = verify("host to GPU", {host[0], gpu[1]}, size); bad != 0) return bad;
    if (const int bad = verify("GPU to host", {gpu[0], host[1], false}, size); bad != 0) return bad;
    if (const int bad = verify("host to host", {host[0], host[1], false}, size); bad != 0) return bad;
  }
  std::cout << "rank " << side.rank() << ": " << puts << " puts of " << round << " rounds verified"
            << std::endl;
  return 0;
}

int endless(Group& group, Side& side, const Buffers& buffers) {
  for (std::uint64_t round = 0;; ++round) {
    for (std::uint32_t i = 0; i < 64; ++i) {
      side.expect(i % kLanes);
      const std::uint64_t at = kMiB * i % (buffers.source.bytes() - kMiB);
      const Status put = side.put(buffers.source, buffers.target, {i % kLanes, at, at, kMiB});
      if (!put.ok()) return refused(put);
    }
    Status over = side.wait_arrivals();
    if (over.ok()) over = side.wait_completed();
    if (!over.ok()) return refused(over);
    if (round == 0) std::cout << "ready" << std::endl;
  }
}

double microseconds(Clock::duration took) {
  return std::chrono::duration<double, std::micro>(took).count();
}

/// Half a round trip of one put each way: median and 99th percentile in microseconds.
Result<std::pair<double, double>> latency(Group& group, Side& side, const Buffers& buffers,
                                          std::uint64_t size) {
  std::vector<double> trips(std::clamp<std::uint64_t>((std::uint64_t{256} << 20) / size, 20, 1000));
  const bool first = side.rank() < side.peer();
  MK_RETURN_IF_ERROR(group.barrier());
  for (double& trip : trips) {
    const auto begin = Clock::now();
    side.expect(0);
    if (first) MK_RETURN_IF_ERROR(side.put(buffers.source, buffers.target, {0, 0, 0, size}));
    MK_RETURN_IF_ERROR(side.spin_for_arrival());
    if (!first) MK_RETURN_IF_ERROR(side.put(buffers.source, buffers.target, {0, 0, 0, size}));
    trip = microseconds(Clock::now() - begin) / 2;
  }
  std::sort(trips.begin(), trips.end());
  return std::pair(trips[trips.size() / 2], trips[trips.size() * 99 / 100]);
}

/// GB/s of so many puts back to back from the lower rank (or from both), on one lane.
Result<double> bandwidth(Group& group, Side& side, const Buffers& buffers, std::uint64_t size,
                         std::uint64_t puts, bool both) {
  const std::uint64_t slots = buffers.source.bytes() / size;
  const bool sends = both || side.rank() < side.peer();
  MK_RETURN_IF_ERROR(group.barrier());
  const auto begin = Clock::now();
  for (std::uint64_t i = 0; sends && i < puts; ++i) {
    const std::uint64_t at = i % slots * size;
    MK_RETURN_IF_ERROR(side.put(buffers.source, buffers.target, {0, at, at, size}));
  }
  if (both || !sends) side.expect(0, puts);
  MK_RETURN_IF_ERROR(side.wait_completed());
  MK_RETURN_IF_ERROR(side.wait_arrivals());
  const double took = microseconds(Clock::now() - begin);
  MK_RETURN_IF_ERROR(group.barrier());
  return static_cast<double>(puts * size) / took / 1000;
}

int bench(Group& group, Side& side, const Buffers& buffers) {
  const auto active = group.keep_active();
  const bool speaks = side.rank() == 0;
  for (std::uint64_t size = 8; size <= buffers.source.bytes(); size *= size < 4096 ? 512 : 4) {
    const auto trip = latency(group, side, buffers, size);
    if (!trip.ok()) return refused(trip.status());
    const std::uint64_t puts = std::clamp<std::uint64_t>((std::uint64_t{1} << 30) / size, 16, 20000);
    const auto one = bandwidth(group, side, buffers, size, puts, false);
    if (!one.ok()) return refused(one.status());
    const auto both = bandwidth(group, side, buffers, size, puts, true);
    if (!both.ok()) return refused(both.status());
    if (!speaks) continue;
    std::printf(
        "%10llu bytes  latency p50 %7.1f us  p99 %7.1f us  one way %6.1f GB/s  each of two ways %6.1f GB/s\n",
        static_cast<unsigned long long>(size), trip->first, trip->second, one.value(), both.value());
  }
  return 0;
}

int run(const std::string& socket, const std::string& name, std::uint32_t world, std::uint32_t rank,
        int device, std::uint64_t bytes, const std::string& mode) {
  auto session = mkernel::Session::connect({.socket = socket, .name = "fabric_rank", .device = device});
  if (!session.ok()) return refused(session.status());
  auto group = session->join({.name = name, .world_size = world, .rank = rank});
  if (!group.ok()) return refused(group.status());
  auto source = group->symmetric_gpu(bytes), target = group->symmetric_gpu(bytes);
  auto host_source = group->symmetric(4 * kMiB), host_target = group->symmetric(4 * kMiB);
  for (const auto* buffer : {&source, &target, &host_source, &host_target}) {
    if (!buffer->ok()) return refused(buffer->status());
  }
  const auto lane = group->reserve_lanes(kLanes);
  if (!lane.ok()) return refused(lane.status());
  need(cudaSetDevice(device), "cudaSetDevice");
  Side side(*group, lane.value());
  if (mode == "endless") return endless(*group, side, {*source, *target});
  if (mode == "bench") return bench(*group, side, {*source, *target});
  const SymmetricBuffer gpu[2] = {std::move(*source), std::move(*target)};
  const SymmetricBuffer host[2] = {std::move(*host_source), std::move(*host_target)};
  if (mode == "large") return check(*group, side, gpu, nullptr, 4 * kMiB);
  if (const int bad = check(*group, side, gpu, host, 1); bad != 0 || mode == "check") return bad;
  const auto flooded = bandwidth(*group, side, {gpu[0], gpu[1]}, 4096, kFloodPuts, true);
  return flooded.ok() ? 0 : refused(flooded.status());
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc == 8 ? argv[7] : "";
  const auto modes = {"check", "flood", "large", "endless", "bench"};
  if (std::find(modes.begin(), modes.end(), mode) == modes.end()) {
    std::cerr << "usage: fabric_rank SOCKET GROUP WORLD RANK DEVICE BYTES check|flood|large|endless|bench\n";
    return 1;
  }
  return run(argv[1], argv[2], static_cast<std::uint32_t>(std::strtoul(argv[3], nullptr, 10)),
             static_cast<std::uint32_t>(std::strtoul(argv[4], nullptr, 10)), std::atoi(argv[5]),
             std::strtoull(argv[6], nullptr, 10), mode);
}
