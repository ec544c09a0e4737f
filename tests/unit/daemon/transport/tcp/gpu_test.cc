// Puts from and into GPU memory: what must hold while copies are in flight. The engines are played, and so is
// the GPU memory.
#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/support/fake_engines.h"
#include "tests/support/tcp_relay.h"
#include "tests/unit/daemon/transport/tcp/harness.h"

namespace mkernel::transport::tcp {
namespace {

using test::FakeEngines;

constexpr abi::RegionKind kGpu = abi::RegionKind::kVmm;
constexpr std::uint32_t kKiB = 1 << 10;
constexpr std::uint64_t kRegionBytes = 8 * kMiB;  ///< several times what one connection stages

TcpOptions with(std::shared_ptr<FakeEngines> engines) {
  TcpOptions options;
  options.connections_per_peer = 1;
  options.socket_buffer_bytes = 64 * kKiB;  // what waits does so in the transport, where it can be seen
  options.engines = std::move(engines);
  return options;
}

/// Sender and receiver with engines; channel 1 leads from a to b. A relay between them can cut, and holds as
/// much as it is given.
struct GpuRig {
  explicit GpuRig(abi::RegionKind source = kGpu, abi::RegionKind target = kGpu, bool relayed = true)
      : a(1, with(reading), kRegionBytes, source), b(2, with(writing), kRegionBytes, target) {
    fill_random(a.region(), 7);
    for (memory::Region* region : {&a.region(), &b.region()}) {
      if (region->kind == abi::RegionKind::kIpc) region->cuda_ipc = FakeEngines::name(region->fd.get());
    }
    std::string endpoint = b.transport().local_endpoint();
    if (relayed) {
      relay = std::make_unique<test::TcpRelay>(
          static_cast<std::uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1))));
      endpoint = relay->endpoint();
    }
    a.meet(b, {b.identity(), endpoint});  // the end that dials
    b.meet(a);
    open(1);
  }

  void open(ChannelId id) {
    REQUIRE(b.transport().open_inbound(id, kPeer, 10 + id).ok());
    REQUIRE(a.transport().open_outbound(id, kPeer, 10 + id).ok());
  }
  void submit(ChannelId id, std::uint64_t sequence, std::uint64_t offset, std::uint32_t length) {
    const Put put = a.put(id, sequence, offset, length);
    REQUIRE(a.transport().submit({&put, 1}) == 1);
  }
  bool until(const std::function<bool()>& condition) { return run({&a, &b}, condition); }
  void pump(int times) {
    run({&a, &b}, [&] { return times-- == 0; });
  }
  bool same(std::uint64_t offset, std::uint64_t length) {
    return std::memcmp(a.region().host(offset), b.region().host(offset), length) == 0;
  }
  void reconnect() {
    const auto lost = [&] {
      return b.tcp().statistics().connections_lost + a.tcp().statistics().connections_lost;
    };
    relay->cut();
    REQUIRE(until([&] { return lost() >= 2; }));
    relay->heal();
  }

  std::shared_ptr<FakeEngines> reading = std::make_shared<FakeEngines>(1, 8);
  std::shared_ptr<FakeEngines> writing = std::make_shared<FakeEngines>(2, 8);
  End a, b;
  std::unique_ptr<test::TcpRelay> relay;
};

TEST_CASE("with engines a transport says that it moves GPU memory, without them that it does not") {
  CHECK(GpuRig().a.transport().capabilities().gpu_memory);
  CHECK(!End(1).transport().capabilities().gpu_memory);
}

TEST_CASE("puts of every length, between GPUs and between GPU and host, and signals among them") {
  constexpr auto kHost = abi::RegionKind::kHostMemory, kPlain = abi::RegionKind::kIpc;
  for (const auto& [source, target] : {std::pair(kGpu, kGpu), std::pair(kGpu, kHost), std::pair(kHost, kGpu),
                                       std::pair(kPlain, kPlain), std::pair(kPlain, kGpu)}) {
    GpuRig rig(source, target);
    std::uint64_t offset = 0, sequence = 0;
    for (const std::uint32_t length : {1U, 0U, 7U, 4 * kKiB, 300 * kKiB + 3, 0U, 5 * kMiB + 1, 17U}) {
      rig.submit(1, ++sequence, offset, length);
      offset += length;
    }
    for (; sequence < 900; ++sequence, offset += 11) rig.submit(1, sequence + 1, offset, 11);
    REQUIRE(rig.until([&] { return rig.a.completions[1] == 900; }));
    CHECK(rig.same(0, offset));
    CHECK(rig.b.region().host(0)[offset] == std::byte{0xa5});
    CHECK(rig.a.tcp().statistics().connections_lost == 0);
  }
}

TEST_CASE("puts from and into GPU memory share the engines and the connection frame by frame") {
  GpuRig rig;
  rig.open(2);
  rig.submit(1, 1, 0, 6 * kMiB);
  REQUIRE(rig.until([&] { return rig.same(0, 64 * kKiB); }));
  rig.submit(2, 1, 7 * kMiB, 5000);
  REQUIRE(rig.until([&] { return rig.b.arrivals[2] == 1; }));
  CHECK(rig.b.arrivals[1] == 0);
  REQUIRE(rig.until([&] { return rig.a.completions[1] == 1; }));
  CHECK(rig.same(0, 6 * kMiB));
  CHECK(rig.same(7 * kMiB, 5000));
}

TEST_CASE("a count waits for the copy, and the signal behind it waits too") {
  GpuRig rig;
  rig.writing->hold();
  rig.submit(1, 1, 0, 100);
  rig.submit(1, 2, 0, 0);
  REQUIRE(rig.until([&] { return rig.writing->in_flight() == 1; }));
  rig.pump(200);
  CHECK(rig.b.arrivals[1] == 0);
  CHECK(rig.a.completions[1] == 0);
  CHECK(rig.b.transport().holds(rig.b.region()));
  rig.writing->release();
  REQUIRE(rig.until([&] { return rig.a.completions[1] == 2; }));
  CHECK(rig.b.arrivals[1] == 2);
  CHECK(rig.same(0, 100));
  CHECK(!rig.b.transport().holds(rig.b.region()));
}

TEST_CASE("what a channel submits behind a put that is still being loaded stays behind it") {
  GpuRig rig;
  rig.open(2);
  rig.reading->hold();
  rig.submit(1, 1, 0, 100);
  rig.submit(1, 2, 0, 0);
  rig.submit(2, 1, 0, 0);
  REQUIRE(rig.until([&] { return rig.b.arrivals[2] == 1; }));  // another channel does not wait
  CHECK(rig.b.arrivals[1] == 0);
  rig.reading->release();
  REQUIRE(rig.until([&] { return rig.b.arrivals[1] == 2; }));
  CHECK(rig.same(0, 100));
}

TEST_CASE("a receiver whose engines stand still stages a bounded amount, and goes on afterwards") {
  GpuRig rig(kGpu, kGpu, false);
  rig.writing->hold();
  rig.submit(1, 1, 0, 6 * kMiB);
  REQUIRE(rig.until([&] { return rig.writing->in_flight() == kStagingBytes / kStagingPiece; }));
  rig.pump(500);
  CHECK(rig.writing->in_flight() == kStagingBytes / kStagingPiece);
  CHECK(rig.reading->started() < 6 * kMiB / kStagingPiece);  // the sender is held up as well
  rig.writing->release();
  REQUIRE(rig.until([&] { return rig.a.completions[1] == 1; }));
  CHECK(rig.same(0, 6 * kMiB));
}

TEST_CASE("closing the receiving end waits for its copies: nothing lands afterwards") {
  GpuRig rig;
  rig.writing->hold(300);
  for (std::uint64_t n = 1; n <= 5; ++n) rig.submit(1, n, n * kMiB, kKiB);
  REQUIRE(rig.until([&] { return rig.writing->in_flight() == 5; }));
  rig.b.transport().close_channel(1);
  CHECK(rig.writing->in_flight() == 0);
  std::memset(rig.b.region().host(0), 0x44, kRegionBytes);
  rig.pump(400);
  const std::byte* at = rig.b.region().host(0);
  CHECK(std::all_of(at, at + kRegionBytes, [](std::byte b) { return b == std::byte{0x44}; }));
  CHECK(!rig.b.transport().holds(rig.b.region()));
  CHECK(rig.b.arrivals[1] == 0);
}

TEST_CASE("closing the sending end waits for its copies; in the middle of a put, too, and the others go on") {
  for (const std::uint32_t length : {kKiB, 6 * kMiB}) {
    CAPTURE(length);
    GpuRig rig(kGpu, kGpu, false);
    rig.open(2);
    rig.submit(1, 1, 0, length);
    REQUIRE(rig.until([&] { return rig.reading->started() > 0; }));
    if (length > kStagingBytes) {
      rig.writing->hold();  // the receiver stops reading: the put is half sent
      rig.pump(300);
    }
    rig.submit(2, 1, 7 * kMiB, 5000);
    rig.a.transport().close_channel(1);
    CHECK(rig.reading->in_flight() == 0);
    rig.writing->release();
    REQUIRE(rig.until([&] { return rig.a.completions[2] == 1; }));
    CHECK(rig.same(7 * kMiB, 5000));
    CHECK(!rig.a.transport().holds(rig.a.region()));
    CHECK(rig.a.tcp().statistics().connections_lost == 0);
    CHECK(!rig.b.transport().holds(rig.b.region()));
  }
}

TEST_CASE("a connection lost with copies in flight: not a word until they have landed, then all that came") {
  GpuRig rig;
  rig.submit(1, 1, 0, kKiB);
  REQUIRE(rig.until([&] { return rig.a.completions[1] == 1; }));
  rig.writing->hold();
  rig.submit(1, 2, kMiB, kKiB);
  rig.submit(1, 3, 2 * kMiB, kKiB);
  REQUIRE(rig.until([&] { return rig.writing->in_flight() == 2; }));
  rig.reconnect();
  rig.pump(300);
  // A replay could end before the old copy, which would then land over whatever came next.
  CHECK(rig.writing->started() == 3);
  CHECK(rig.a.completions[1] == 1);
  CHECK(rig.b.transport().holds(rig.b.region()));
  rig.writing->release();
  REQUIRE(rig.until([&] { return rig.a.completions[1] == 3; }));
  CHECK(rig.b.arrivals[1] == 3);
  CHECK(rig.writing->started() == 3);  // received whole: nothing was sent again
  CHECK(rig.same(kMiB, kKiB));
}

TEST_CASE("a connection lost in the middle of a put, the same: what had come of it counts for nothing") {
  GpuRig rig;
  rig.writing->hold();
  rig.submit(1, 1, 0, 6 * kMiB);
  const std::size_t staged = kStagingBytes / kStagingPiece;
  REQUIRE(rig.until([&] { return rig.writing->in_flight() == staged; }));
  rig.reconnect();
  rig.pump(300);
  CHECK(rig.writing->started() == staged);
  CHECK(rig.b.arrivals[1] == 0);
  rig.writing->release();
  REQUIRE(rig.until([&] { return rig.a.completions[1] == 1; }));
  CHECK(rig.writing->started() >= staged + 6 * kMiB / kStagingPiece);
  CHECK(rig.same(0, 6 * kMiB));
}

TEST_CASE("engines that fail at the receiver fail the channel by name, and no other") {
  GpuRig rig;
  rig.open(2);
  rig.writing->hold();
  rig.submit(1, 1, 0, 100);
  REQUIRE(rig.until([&] { return rig.writing->in_flight() == 1; }));
  rig.writing->fail({StatusCode::kInternal, "the GPU has fallen off the bus"});
  REQUIRE(rig.until([&] { return rig.a.channel_failures.contains(1); }));
  CHECK(contains(rig.a.channel_failures.at(1).text(), "fallen off the bus"));
  CHECK(contains(rig.a.channel_failures.at(1).text(), "node-2"));
  rig.submit(2, 1, 0, 0);
  REQUIRE(rig.until([&] { return rig.a.completions[2] == 1; }));
  CHECK(rig.b.arrivals[1] == 0);
}

TEST_CASE("engines that fail at the sender fail what they were to load, and nothing else") {
  GpuRig rig;
  rig.open(2);
  rig.reading->hold();
  rig.submit(1, 1, 0, 100);
  REQUIRE(rig.until([&] { return rig.reading->in_flight() == 1; }));
  rig.reading->fail({StatusCode::kInternal, "the GPU has fallen off the bus"});
  REQUIRE(rig.until([&] { return rig.a.channel_failures.contains(1); }));
  CHECK(contains(rig.a.channel_failures.at(1).text(), "fallen off the bus"));
  rig.submit(2, 1, 0, 0);
  REQUIRE(rig.until([&] { return rig.a.completions[2] == 1; }));
  CHECK(rig.b.arrivals[1] == 0);
}

TEST_CASE("a transport without engines refuses GPU memory by name") {
  End a(1), b(2, {}, kMiB, kGpu);
  connect(a, b);
  REQUIRE(b.transport().open_inbound(1, kPeer, 11).ok());
  REQUIRE(a.transport().open_outbound(1, kPeer, 11).ok());
  const Put put = a.put(1, 1, 0, 100);
  REQUIRE(a.transport().submit({&put, 1}) == 1);
  REQUIRE(run({&a, &b}, [&] { return a.channel_failures.contains(1); }));
  CHECK(a.channel_failures.at(1).code() == StatusCode::kUnimplemented);
  CHECK(contains(a.channel_failures.at(1).text(), "transport.gpu_memory"));
}

TEST_CASE("a put that is given up before any of it was sent keeps no mapping of its source") {
  GpuRig rig(kGpu, kGpu, false);
  rig.reading->hold(300);
  rig.submit(1, 1, 0, 6 * kMiB);
  REQUIRE(rig.until([&] { return rig.reading->in_flight() == kStagingBytes / kStagingPiece; }));
  rig.a.transport().close_channel(1);
  rig.a.transport().forget(rig.a.region());
  rig.pump(10);
  CHECK(rig.a.tcp().statistics().connections_lost == 0);
  CHECK(rig.reading->mapped() == 0);
}

TEST_CASE("mappings live as long as the regions: forget() gives back both ends") {
  GpuRig rig;
  rig.submit(1, 1, 0, 100);
  REQUIRE(rig.until([&] { return rig.a.completions[1] == 1; }));
  CHECK(rig.reading->mapped() == 1);
  CHECK(rig.writing->mapped() == 1);
  rig.a.transport().forget(rig.a.region());
  rig.b.transport().forget(rig.b.region());
  CHECK(rig.reading->mapped() == 0);
  CHECK(rig.writing->mapped() == 0);
}

}  // namespace
}  // namespace mkernel::transport::tcp
