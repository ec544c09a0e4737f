// The device layer on a GPU against a proxy that is a thread of the test: rings, counts, barriers, failures.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cpu/comm/endpoint.h"
#include "kernels/cuda/launch/endpoint.h"
#include "kernels/cuda/memory/error.h"
#include "kernels/cuda/memory/own_stream.h"
#include "proto/abi/work_request.h"
#include "tests/kernels/gpu_device_kernels.h"
#include "tests/support/gpu.h"
#include "tests/support/gpu_held_stream.h"
#include "tests/support/require.h"

using namespace mkernel;
using namespace mkernel::kernels;
using mkernel::test::require_ok;
using namespace std::chrono_literals;

namespace {

/// Host memory that kernels read, zeroed.
struct Pinned {
  explicit Pinned(std::uint64_t bytes) {
    require_ok(cuda_status(cudaHostAlloc(&data, bytes, cudaHostAllocMapped), "pinned memory"));
    std::memset(data, 0, bytes);
  }
  ~Pinned() { cudaFreeHost(data); }
  void* data = nullptr;
};

/// Rank 0 of two ranks on two nodes, as its GPU sees them: one ring of 2^log2_slots, `lanes` lanes of which
/// the endpoint has all but the first.
struct Rig {
  Rig(std::uint32_t log2_slots, std::uint32_t lanes, std::chrono::milliseconds deadline = 20s)
      : session_memory(abi::layout_session(session_layout, 1, log2_slots)),
        group_memory(abi::layout_group(group_layout, 2, 0, lanes, 1)) {
    group.session = static_cast<abi::SessionSegment*>(session_memory.data);
    *group.session = session_layout;
    group.segment = static_cast<abi::GroupSegment*>(group_memory.data);
    *group.segment = group_layout;
    group.at<abi::Member>(group.segment->members_offset)[1].node = 1;
    auto* slots = reinterpret_cast<abi::WorkSlot*>(static_cast<std::byte*>(session_memory.data) +
                                                   group.session->slots_offset);
    group.rings = {{slots, log2_slots, &group.session->head(abi::RingWriter::kThreads, 0).tail, &head}};
    auto made = RingsOnDevice::make(*group.session);
    require_ok(made.status());
    rings = *made;
    for (std::uint64_t* word = count(false, 0, 0); word < count(true, 1, lanes); ++word) *word = kBase;
    auto memory = DeviceBuffer::zeroed(EndpointOnDevice::workspace_bytes(2), "words of the node");
    require_ok(memory.status());
    workspace = std::move(*memory);
    renew(deadline);
  }

  /// A new endpoint on the same lanes and rings.
  void renew(std::chrono::milliseconds deadline) {
    endpoint.reset();
    endpoint = another(deadline);
  }

  /// One more endpoint on the same lanes and rings, with a control block of its own.
  std::unique_ptr<EndpointOnDevice> another(std::chrono::milliseconds deadline) {
    auto* mine = static_cast<std::byte*>(workspace.get());
    auto made = EndpointOnDevice::make(
        group, rings, {.region = 0, .bytes = workspace.bytes(), .node = {mine}, .mine = mine},
        {.first_lane = 1,
         .lanes = group.segment->lanes - 1,
         .deadline_ns = static_cast<std::uint64_t>(std::chrono::nanoseconds(deadline).count())});
    require_ok(made.status());
    return std::move(*made);
  }

  const device::Endpoint& view() const { return endpoint->endpoint(); }
  std::uint64_t* count(bool completed, std::uint32_t peer, std::uint32_t lane) {
    return const_cast<std::uint64_t*>(completed ? &group.completed(peer, lane) : &group.arrivals(peer, lane));
  }
  void raise(std::uint64_t* word, std::uint64_t by) {
    std::atomic_ref<std::uint64_t>(*word).fetch_add(by, std::memory_order_release);
  }

  static constexpr std::uint64_t kBase = 1000;  // what others have put before on these lanes
  abi::SessionSegment session_layout{};
  abi::GroupSegment group_layout{};
  Pinned session_memory, group_memory;
  GroupView group;
  std::atomic<std::uint64_t> head{0};
  DeviceBuffer workspace;
  std::shared_ptr<RingsOnDevice> rings;
  std::unique_ptr<EndpointOnDevice> endpoint;
};

template <typename T>
std::vector<T> host_copy(const DeviceBuffer& buffer, std::size_t count) {
  std::vector<T> copy(count);
  require_ok(buffer.read(copy.data(), count * sizeof(T)));
  return copy;
}

DeviceBuffer zeroed(std::uint64_t bytes) {
  auto buffer = DeviceBuffer::zeroed(bytes, "test");
  require_ok(buffer.status());
  return std::move(*buffer);
}

OwnStream stream() {
  auto made = OwnStream::make("test");
  require_ok(made.status());
  return std::move(*made);
}

/// The first position of the ring that nobody has claimed.
std::uint64_t claims_head(const Rig& rig) {
  std::uint64_t head = 0;
  require_ok(stream().to_host(&head, &rig.rings->rings().claims->head, sizeof(head), "claims"));
  return head;
}

/// Reads `slots` slots from position `begin` and looks at each: whole, of one writer, in that writer's order.
std::string drain(Rig& rig, std::uint64_t begin, std::uint64_t slots, std::uint32_t threads) {
  const DeviceRings& ring = rig.rings->rings();
  const std::uint64_t mask = (std::uint64_t{1} << ring.log2_slots) - 1;
  std::vector<std::uint32_t> next;
  const auto deadline = std::chrono::steady_clock::now() + 20s;
  for (std::uint64_t position = begin; position < begin + slots; ++position) {
    abi::WorkSlot slot;
    while (!abi::load_slot(ring.slots[position & mask], abi::lap_bit(position, ring.log2_slots), slot)) {
      if (std::chrono::steady_clock::now() > deadline)
        return "nothing at position " + std::to_string(position);
    }
    std::atomic_ref(rig.group.session->head(abi::RingWriter::kGpu, 0).tail)
        .store(position + 1, std::memory_order_release);
    const abi::WorkRequest request = abi::decode(slot);
    const std::uint32_t writer = request.local_region;
    if (writer >= next.size()) next.resize(writer + 1);
    const test::PutFields f = test::put_fields(writer, next[writer]++);
    const std::uint32_t lane = 1 + (1 + writer / threads) % rig.view().lanes;
    if (request.opcode != 1 || request.peer != 1 || request.channel != rig.group.channel(1, lane) ||
        request.length != f.bytes || request.remote_region != writer ||
        request.local_offset != f.local_offset || request.remote_offset != f.remote_offset) {
      return "position " + std::to_string(position) + " is not put " + std::to_string(next[writer] - 1) +
             " of writer " + std::to_string(writer);
    }
  }
  return "";
}

TEST_CASE("slots of many CTAs are whole, each once, in each writer's order, over many laps of a small ring") {
  if (!test::hopper_or_skip()) return;
  for (const std::uint32_t log2_slots : {3U, 9U}) {
    Rig rig(log2_slots, 4);
    constexpr int kCtas = 24, kThreads = 64;
    constexpr std::uint32_t kEach = 60;
    constexpr std::uint64_t kAll = std::uint64_t{kCtas} * kThreads * kEach;
    DeviceBuffer done = zeroed(8);
    for (int launch = 0; launch < 2; ++launch) {
      require_ok(test::launch_puts(rig.view(), kCtas, kThreads, kEach,
                                   static_cast<unsigned long long*>(done.get())));
      CHECK(drain(rig, launch * kAll, kAll, kThreads) == "");
      require_ok(cuda_status(cudaDeviceSynchronize(), "puts"));
    }
    require_ok(rig.endpoint->status());
    CHECK(host_copy<std::uint64_t>(done, 1)[0] == 2 * kAll);
    // Threads have a ring of their own.
    RingProducer producer(rig.group.rings[0]);
    const abi::WorkRequest request{1, 0, 1, 0, 0, 0, 0, 0};
    require_ok(producer.push(request, {"put", "", 1, 0}, WaitScope{}));
    CHECK(rig.head.load() == 1);
    CHECK(claims_head(rig) == 2 * kAll);
  }
}

TEST_CASE("a full ring that nobody drains ends the puts by name and leaves no hole") {
  if (!test::hopper_or_skip()) return;
  Rig rig(3, 2, 50ms);
  DeviceBuffer done = zeroed(8);
  require_ok(test::launch_puts(rig.view(), 6, 64, 1, static_cast<unsigned long long*>(done.get())));
  require_ok(cuda_status(cudaDeviceSynchronize(), "puts"));
  CHECK(host_copy<std::uint64_t>(done, 1)[0] == 8);
  const Status status = rig.endpoint->status();
  CHECK(status.code() == StatusCode::kDeadlineExceeded);
  CHECK_MESSAGE(status.text().find("rank 0 kernel: room in the work ring of rank 1 lane 0") == 0,
                status.to_string());
  // There is room again, but a launch behind the failed one does nothing.
  const std::uint64_t claimed = claims_head(rig);
  std::atomic_ref(rig.group.session->head(abi::RingWriter::kGpu, 0).tail).store(8, std::memory_order_release);
  require_ok(test::launch_puts(rig.view(), 6, 64, 1, static_cast<unsigned long long*>(done.get())));
  require_ok(cuda_status(cudaDeviceSynchronize(), "puts"));
  CHECK(host_copy<std::uint64_t>(done, 1)[0] == 8);
  CHECK(claims_head(rig) == claimed);
  CHECK(rig.endpoint->status().text() == status.text());
  // What was claimed was written; a new endpoint goes on behind it.
  rig.renew(20s);
  CHECK(rig.rings->rings().log2_slots == 3);
  abi::WorkSlot slot;
  for (std::uint64_t position = 0; position < 8; ++position)
    CHECK(abi::load_slot(rig.rings->rings().slots[position], abi::lap_bit(position, 3), slot));
  require_ok(test::launch_puts(rig.view(), 2, 32, 3, static_cast<unsigned long long*>(done.get())));
  CHECK(drain(rig, 8, 2 * 32 * 3, 32) == "");
  require_ok(cuda_status(cudaDeviceSynchronize(), "puts"));
  require_ok(rig.endpoint->status());
}

TEST_CASE("a put that gives up behind one that is patient waits as long once more, and closes the ring") {
  if (!test::hopper_or_skip()) return;
  Rig rig(3, 2, 400ms);
  DeviceBuffer done = zeroed(8);
  auto* count = static_cast<unsigned long long*>(done.get());
  std::unique_ptr<EndpointOnDevice> patient = rig.another(5s);
  const OwnStream hasty_stream = stream(), patient_stream = stream();
  const auto begin = std::chrono::steady_clock::now();
  require_ok(test::launch_puts(rig.view(), 1, 32, 1, count, hasty_stream.get()));
  while (claims_head(rig) < 32) REQUIRE(std::chrono::steady_clock::now() - begin < 300ms);
  require_ok(test::launch_puts(patient->endpoint(), 1, 32, 1, count, patient_stream.get()));
  require_ok(hasty_stream.wait("puts"));
  CHECK(std::chrono::steady_clock::now() - begin < 3s);
  CHECK(rig.endpoint->status().code() == StatusCode::kDeadlineExceeded);
  CHECK(claims_head(rig) >= RingClaims::kClosed);
  require_ok(patient_stream.wait("puts"));
  CHECK(patient->status().code() == StatusCode::kDeadlineExceeded);
  CHECK(host_copy<std::uint64_t>(done, 1)[0] == 8);
  // Nobody waits for room that cannot come.
  std::unique_ptr<EndpointOnDevice> next = rig.another(20s);
  const auto then = std::chrono::steady_clock::now();
  require_ok(test::launch_puts(next->endpoint(), 1, 32, 1, count, hasty_stream.get()));
  require_ok(hasty_stream.wait("puts"));
  CHECK(std::chrono::steady_clock::now() - then < 2s);
  const Status closed = next->status();
  CHECK_MESSAGE(closed.text().find("a work ring that is closed") != std::string::npos, closed.to_string());
}

TEST_CASE("device memory is zeroed, read and written while the default stream is busy") {
  if (!test::hopper_or_skip()) return;
  constexpr std::uint64_t kBytes = 1 << 20;
  const std::vector<std::byte> dirt(kBytes, std::byte{0xab}), zeros(kBytes);
  Rig rig(6, 2);
  {
    DeviceBuffer before = zeroed(kBytes);  // leaves dirt where the next one comes to lie
    require_ok(before.write(dirt.data(), kBytes));
  }
  std::vector<DeviceBuffer> kept;  // to give memory back waits for the whole device
  const test::HeldStream held(nullptr);
  require_ok(held.status());
  for (int round = 0; round < 3; ++round) {
    DeviceBuffer& fresh = kept.emplace_back(zeroed(kBytes));
    CHECK(host_copy<std::byte>(fresh, kBytes) == zeros);
    require_ok(fresh.write(dirt.data(), kBytes));
    CHECK(host_copy<std::byte>(fresh, kBytes) == dirt);
  }
  require_ok(rig.endpoint->status());
  CHECK(held.holds());
}

TEST_CASE("counts come through the poller, from where they stood, however many words there are") {
  if (!test::hopper_or_skip()) return;
  for (const std::uint32_t lanes : {2U, 9U, 24U}) {  // 4, 32 and 92 words
    Rig rig(6, lanes);
    const std::uint32_t channels = 2 * rig.view().lanes;
    DeviceBuffer seen = zeroed(8 * channels);
    for (std::uint64_t launch = 1; launch <= 3; ++launch) {
      require_ok(test::launch_waits(rig.view(), 7 * launch, static_cast<std::uint64_t*>(seen.get())));
      rig.raise(rig.count(false, 0, 0), 1000000);  // a lane of somebody else
      for (const bool completed : {false, true}) {
        for (std::uint32_t peer = 0; peer < 2; ++peer) {
          for (std::uint32_t lane = 1; lane < lanes; ++lane) rig.raise(rig.count(completed, peer, lane), 7);
        }
      }
      require_ok(cuda_status(cudaDeviceSynchronize(), "waits"));
      require_ok(rig.endpoint->status());
      CHECK(host_copy<std::uint64_t>(seen, channels) == std::vector<std::uint64_t>(channels, 7 * launch));
    }
  }
}

TEST_CASE("a count that does not come is named: whose, which, and how far it is") {
  if (!test::hopper_or_skip()) return;
  Rig rig(6, 3, 100ms);
  DeviceBuffer seen = zeroed(8 * 4);
  for (const bool completed : {false, true}) {
    for (std::uint32_t peer = 0; peer < 2; ++peer) {
      for (std::uint32_t lane = 1; lane < 3; ++lane)
        rig.raise(rig.count(completed, peer, lane), completed && peer == 1 && lane == 2 ? 4 : 5);
    }
  }
  require_ok(test::launch_waits(rig.view(), 5, static_cast<std::uint64_t*>(seen.get())));
  require_ok(cuda_status(cudaDeviceSynchronize(), "waits"));
  const Status status = rig.endpoint->status();
  CHECK(status.code() == StatusCode::kDeadlineExceeded);
  CHECK(status.text() == "rank 0 kernel: completed puts of rank 1 lane 1: expected 5, seen 4 after 0.1 s");
}

TEST_CASE("an abort of the group reaches every wait, long before its deadline") {
  if (!test::hopper_or_skip()) return;
  Rig rig(6, 3, 50s);
  DeviceBuffer seen = zeroed(8 * 4);
  const auto begin = std::chrono::steady_clock::now();
  require_ok(test::launch_waits(rig.view(), 1, static_cast<std::uint64_t*>(seen.get())));
  std::strcpy(rig.group.segment->failure.text, "node b is gone");
  rig.group.segment->failure.culprit = 1;
  std::atomic_ref(rig.group.segment->abort).store(14, std::memory_order_release);
  require_ok(cuda_status(cudaDeviceSynchronize(), "waits"));
  CHECK(std::chrono::steady_clock::now() - begin < 20s);
  const Status status = rig.endpoint->status();
  CHECK(status.code() == StatusCode::kUnavailable);
  CHECK_MESSAGE(
      status.text().find("node b is gone (culprit: rank 1); while rank 0 kernel: arrivals of rank") !=
          std::string::npos,
      status.to_string());
}

TEST_CASE("grid barriers of launches of different sizes") {
  if (!test::hopper_or_skip()) return;
  Rig rig(6, 2);
  DeviceBuffer words = zeroed(8 * 64), wrong = zeroed(8);
  for (const int ctas : {1, 7, 64, 3, 33}) {
    require_ok(test::launch_barriers(rig.view(), ctas, 40, static_cast<unsigned long long*>(words.get()),
                                     static_cast<unsigned long long*>(wrong.get())));
    require_ok(cuda_status(cudaDeviceSynchronize(), "barriers"));
    require_ok(rig.endpoint->status());
    CHECK(host_copy<std::uint64_t>(wrong, 1)[0] == 0);
  }
}

}  // namespace
