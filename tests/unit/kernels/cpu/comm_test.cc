// Ring producer, endpoint and topology.
#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cpu/comm/endpoint.h"
#include "kernels/plan/topology.h"
#include "mkernel/device_endpoint.h"
#include "tests/support/fake_fabric.h"

using namespace mkernel;
using namespace mkernel::kernels;

TEST_CASE("slots of many writers are read whole, each once, over many laps") {
  constexpr std::uint32_t kLog2 = 3;
  constexpr std::uint32_t kWriters = 4, kEach = 5000;
  alignas(32) abi::WorkSlot slots[1U << kLog2] = {};
  std::uint64_t tail = 0;
  std::atomic<std::uint64_t> head{0};
  const RingView view{slots, kLog2, &tail, &head};
  RingProducer ring(view);
  WaitScope scope;
  std::vector<std::thread> writers;
  std::atomic<int> failures{0};
  for (std::uint32_t writer = 0; writer < kWriters; ++writer) {
    writers.emplace_back([&, writer] {
      for (std::uint32_t i = 0; i < kEach; ++i) {
        const abi::WorkRequest request{1, writer, i, writer * kEach + i, 1, 2, i, 2 * std::uint64_t{i}};
        if (!ring.push(request, {"test", "", -1, -1}, scope).ok()) ++failures;
      }
    });
  }
  std::vector<std::uint32_t> next(kWriters, 0);
  bool whole = true;
  for (std::uint64_t position = 0; position < kWriters * kEach; ++position) {
    abi::WorkSlot snapshot;
    while (!abi::load_slot(slots[position & 7], abi::lap_bit(position, kLog2), snapshot)) {
      std::this_thread::yield();
    }
    std::atomic_ref<std::uint64_t>(tail).store(position + 1, std::memory_order_release);
    const abi::WorkRequest request = abi::decode(snapshot);
    REQUIRE(request.channel < kWriters);
    const std::uint32_t i = next[request.channel]++;  // one writer's slots keep their order
    whole &= request.peer == i && request.length == request.channel * kEach + i &&
             request.local_offset == i && request.remote_offset == 2 * std::uint64_t{i};
  }
  for (std::thread& writer : writers) writer.join();
  CHECK(whole);
  CHECK(failures == 0);
}

TEST_CASE("a full ring that nobody drains is an error, and leaves no hole") {
  alignas(32) abi::WorkSlot slots[2] = {};
  std::uint64_t tail = 0;
  std::atomic<std::uint64_t> head{0};
  RingProducer ring(RingView{slots, 1, &tail, &head});
  WaitScope scope;
  scope.deadline = std::chrono::milliseconds(20);
  const abi::WorkRequest request{1, 0, 0, 0, 0, 0, 0, 0};
  CHECK(ring.push(request, {"inter_send", "", 4, 2}, scope).ok());
  CHECK(ring.push(request, {"inter_send", "", 4, 2}, scope).ok());
  const Status status = ring.push(request, {"inter_send", "", 4, 2}, scope);
  CHECK(status.code() == StatusCode::kDeadlineExceeded);
  CHECK(status.text().find("inter_send: room in the work ring of rank 4 lane 2") != std::string::npos);
  CHECK(head.load() == 2);
}

TEST_CASE("a put of several slots waits until all of them fit, and is made as a whole or not at all") {
  alignas(32) abi::WorkSlot slots[4] = {};
  std::uint64_t tail = 0;
  std::atomic<std::uint64_t> head{0};
  test::FakeFabric fabric({.nodes = 2, .ranks_per_node = 1, .rings = 1});
  GroupView group = fabric.group(0);
  group.rings = {RingView{slots, 2, &tail, &head}};
  Endpoint endpoint(group, 0, 2);
  WaitScope scope;
  scope.deadline = std::chrono::milliseconds(20);
  REQUIRE(endpoint.signal(1, 0, "put", scope).ok());
  REQUIRE(endpoint.signal(1, 1, "put", scope).ok());
  const std::uint64_t bytes = 2 * std::uint64_t{abi::kMaxPutBytes} + 5;
  const auto put = [&] { return endpoint.put(1, 0, {3, 64}, {7, 128}, bytes, "put", scope); };
  const Status status = put();
  CHECK(status.code() == StatusCode::kDeadlineExceeded);
  CHECK(status.text().find("room in the work ring of rank 1 lane 0: expected 3, seen 2") !=
        std::string::npos);
  CHECK(head.load() == 2);
  CHECK(endpoint.issued(1, 0) == 1);
  CHECK(endpoint.bytes_put() == 0);
  // The proxy takes one slot: now there is room for three.
  std::atomic_ref(tail).store(1, std::memory_order_release);
  CHECK(put().ok());
  CHECK(head.load() == 5);
  CHECK(endpoint.issued(1, 0) == 4);
  CHECK(endpoint.bytes_put() == bytes);
  std::uint64_t at = 0;
  for (std::uint64_t position = 2; position < 5; ++position) {
    abi::WorkSlot snapshot;
    REQUIRE(abi::load_slot(slots[position & 3], abi::lap_bit(position, 2), snapshot));
    const abi::WorkRequest request = abi::decode(snapshot);
    CHECK(request.local_region == 3);
    CHECK(request.remote_region == 7);
    CHECK(request.local_offset == 64 + at);
    CHECK(request.remote_offset == 128 + at);
    at += request.length;
  }
  CHECK(at == bytes);
}

TEST_CASE("what the poller copies: every channel's arrivals and completions, each from its own word") {
  test::FakeFabric fabric({.nodes = 3, .ranks_per_node = 1});
  const GroupView& group = fabric.group(1);
  constexpr std::uint32_t kFirst = 2, kLanes = 3;
  const PolledCounts counts{.arrivals = &group.arrivals(0, kFirst),
                            .completed = &group.completed(0, kFirst),
                            .peers = group.world_size(),
                            .lanes = kLanes,
                            .stride = group.segment->lanes};
  CHECK(counts.words() == 18);
  CHECK(PolledCounts{}.words() == 0);
  for (std::uint32_t peer = 0; peer < 3; ++peer) {
    for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
      CHECK(counts.source(counts.arrivals_index(peer, lane)) == &group.arrivals(peer, kFirst + lane));
      CHECK(counts.source(counts.completed_index(peer, lane)) == &group.completed(peer, kFirst + lane));
    }
  }
}

TEST_CASE("an endpoint counts from where its lanes stand, and its puts arrive in order") {
  test::FakeFabric fabric({.nodes = 2, .ranks_per_node = 1, .rings = 2, .seed = 3});
  const auto buffer = fabric.symmetric(1 << 16);
  WaitScope scope;
  for (int owner = 0; owner < 3; ++owner) {  // one after the other on the same lanes
    Endpoint sender(fabric.group(0), 2, 2), receiver(fabric.group(1), 2, 2);
    for (std::uint32_t i = 0; i < 50; ++i) {
      std::memset(buffer[0].mine + i * 1000, static_cast<int>(i + 1), 1000);
      REQUIRE(sender.put(1, i % 2, {0, i * 1000}, {0, i * 1000}, 1000, "test", scope).ok());
      REQUIRE(sender.signal(1, i % 2, "test", scope).ok());
    }
    CHECK(sender.bytes_put() == 50000);
    CHECK(sender.issued(1, 0) == 50);
    REQUIRE(receiver.wait_arrival(0, 0, 50, "test", scope).ok());
    REQUIRE(receiver.wait_arrival(0, 1, 50, "test", scope).ok());
    CHECK(receiver.arrived(0, 1) == 50);
    for (std::uint32_t i = 0; i < 50; ++i) {
      CHECK(buffer[1].mine[i * 1000 + 999] == static_cast<std::byte>(i + 1));
    }
    REQUIRE(sender.wait_all_completed("test", scope).ok());
    std::memset(buffer[1].mine, 0, 1 << 16);
  }
  CHECK(fabric.error() == "");
}

TEST_CASE("topology: ranks may lie on nodes in any order, equally many on each") {
  test::FakeFabric fabric({.nodes = 2, .ranks_per_node = 2});
  const GroupView& group = fabric.group(0);
  auto* members = group.at<abi::Member>(group.segment->members_offset);
  const std::uint32_t places[4][2] = {{0, 0}, {1, 0}, {1, 1}, {0, 1}};
  for (int rank = 0; rank < 4; ++rank) {
    members[rank].node = places[rank][0];
    members[rank].local_rank = places[rank][1];
    std::snprintf(members[rank].node_name, sizeof members[rank].node_name, "node-%u", places[rank][0]);
  }
  const auto topology = Topology::of(group);
  REQUIRE(topology.ok());
  CHECK(topology.value().rank_at(0, 1) == 3);
  CHECK(topology.value().node_of(2) == 1);
  CHECK(topology.value().rail_peer(3, 1) == 2);

  members[3].node = 1;
  members[3].local_rank = 2;
  std::snprintf(members[3].node_name, sizeof members[3].node_name, "node-1");
  const auto uneven = Topology::of(group);
  CHECK(uneven.status().code() == StatusCode::kInvalidArgument);
  CHECK(
      uneven.status().text() ==
      "group: node node-0 holds 1 rank, node node-1 holds 3 ranks; the operations need equally many ranks on "
      "every node");
}
