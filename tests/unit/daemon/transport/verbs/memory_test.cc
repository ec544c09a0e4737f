// What is registered, for how long, and what is said when it cannot be.
#include "daemon/transport/verbs/message.h"
#include "tests/unit/daemon/transport/verbs/pair.h"

namespace mkernel::test {
namespace {

/// One of two nodes with a region of the test's choice, registered in small pieces.
struct Direct final : transport::TransportSink {
  static constexpr std::uint64_t kPiece = 4096;
  Direct(nic::Fabric& fabric, const std::string& node, std::uint64_t boot_id) : self{node, boot_id} {
    fabric.add_device(node, {.name = "nic-" + node});
    transport::VerbsOptions options;
    options.base.identity = self;
    options.verbs = fabric.verbs(node);
    options.ports = {roce_port("nic-" + node, options.verbs)};
    options.chunk_bytes = kPiece;
    transport = transport::make_verbs(options).value();
    transport->attach(*this);
  }
  void connect(Direct& to) {
    other = &to;
    REQUIRE(transport->connect(1, {to.self, to.transport->local_endpoint()}).ok());
  }
  void pump() {
    for (const auto& message : std::exchange(inbox, {})) transport->receive_from_peer(1, message);
    transport->poll();
  }
  Status place(transport::ChannelId, std::uint16_t, std::uint64_t offset, std::uint32_t,
               transport::Target& target) override {
    target = {region.get(), offset};
    return {};
  }
  void arrived(transport::ChannelId, std::uint64_t) override {}
  void completed(transport::ChannelId, std::uint64_t count) override { done = count; }
  void channel_failed(transport::ChannelId, const Status& why) override { failure = why; }
  void peer_connected(transport::PeerId) override {}
  void peer_failed(transport::PeerId, const Status& why) override { failure = why; }
  Status arrival_word(transport::ChannelId, transport::ArrivalWord& place) override {
    place = {&word, std::as_writable_bytes(std::span(&word, 1))};
    return {};
  }
  void send_to_peer(transport::PeerId, std::span<const std::byte> message) override {
    largest = std::max(largest, message.size());
    other->inbox.emplace_back(message.begin(), message.end());
  }

  const transport::Identity self;
  std::shared_ptr<memory::Region> region;
  std::uint64_t word = 0, done = 0;
  std::size_t largest = 0;  ///< of its messages
  Status failure;
  std::vector<std::vector<std::byte>> inbox;
  Direct* other = nullptr;
  std::unique_ptr<transport::Transport> transport;
};

std::uint64_t registered(TransportPair& pair, const std::string& host) {
  return fabric_of(pair).registered(device_of(host, 0)) + fabric_of(pair).registered(device_of(host, 1));
}

TEST_CASE("a region that is unregistered is held until the sender can no longer write to it") {
  TransportPair pair;
  const auto ends = pair.stream(pair.a(), 100, 4, 4096, always(4096));
  REQUIRE(pair.run(Threads::kOne) == "");
  memory::Region& region = pair.b().region(pair.b().region_of(ends.in));
  CHECK(pair.b().transport().holds(region));
  const std::uint64_t before = registered(pair, "node-b");
  pair.b().transport().retire(region);
  pair.b().transport().poll();
  CHECK(pair.b().transport().holds(region));  // the sender has not heard of it
  CHECK(pair.run_until([&] { return !pair.b().transport().holds(region); }));
  CHECK(registered(pair, "node-b") == before - region.bytes);
}

// The sender once said nothing about a channel that it had closed: the region was held until the receiving
// rank left its group, and whoever waited for it to be unregistered waited for ever.
TEST_CASE("a region is not held for a sender that has closed its channel") {
  for (const bool closed_first : {true, false}) {
    CAPTURE(closed_first);
    TransportPair pair;
    const auto ends = pair.stream(pair.a(), 1000000, 4, 4096, always(4096));
    REQUIRE(pair.run_until([&] { return pair.b().arrived(ends.in) > 20; }));
    memory::Region& region = pair.b().region(pair.b().region_of(ends.in));
    REQUIRE(pair.b().transport().holds(region));
    if (closed_first) {
      pair.a().close_channel(ends.out);
      pair.pump(10);
      CHECK_FALSE(pair.b().transport().holds(region));
    }
    pair.b().transport().retire(region);
    if (!closed_first) pair.a().close_channel(ends.out);  // before it has heard of it
    CHECK(pair.run_until([&] { return !pair.b().transport().holds(region); }, std::chrono::seconds(5)));
    CHECK(registered(pair, "node-b") == 0);
  }
}

TEST_CASE("puts that are on their way when a region is taken back arrive before it goes") {
  TransportPair pair;
  fabric_of(pair).every_path({.latency = std::chrono::milliseconds(5)});
  const auto ends = pair.stream(pair.a(), 1000000, 8, 4096, always(4096));
  REQUIRE(pair.run_until([&] { return pair.b().arrived(ends.in) > 20; }));
  memory::Region& region = pair.b().region(pair.b().region_of(ends.in));
  pair.b().transport().retire(region);
  pair.a().stop();
  // What was not sent yet asks again where the region is; Node grants it.
  CHECK(pair.run(Threads::kOne) == "");
}

TEST_CASE("closed channels leave nothing registered that peers can write to") {
  TransportPair pair;
  const auto one = pair.stream(pair.a(), 100, 4, 4096, always(4096));
  const auto two = pair.stream(pair.a(), 100, 4, 4096, always(4096));
  REQUIRE(pair.run(Threads::kOne) == "");
  pair.b().close_channel(one.in);
  CHECK(registered(pair, "node-b") > 0);
  pair.b().close_channel(two.in);
  CHECK(registered(pair, "node-b") == 0);
  pair.a().close_channel(one.out);
  pair.a().close_channel(two.out);
  pair.a().transport().forget(pair.a().source_of(one.out));
  pair.a().transport().forget(pair.a().source_of(two.out));
  CHECK(registered(pair, "node-a") == 0);
}

TEST_CASE("memory that cannot be registered fails its channel, with the device and what to do") {
  for (const bool at_sender : {true, false}) {
    TransportPair pair;
    const auto healthy = pair.stream(pair.a(), 10, 4, 4096, always(4096));
    REQUIRE(pair.run(Threads::kOne) == "");
    const auto ends = pair.stream(pair.a(), 10, 4, 4096, always(4096));
    pair.pump();
    const std::string device = device_of(at_sender ? "node-a" : "node-b", 0);
    fabric_of(pair).fail_registrations(device, ENOMEM, 1);
    REQUIRE(pair.run_until([&] { return !pair.a().channel_status(ends.out).ok(); }));
    const Status why = pair.a().channel_status(ends.out);
    CHECK(why.code() == StatusCode::kResourceExhausted);
    CHECK_MESSAGE(contains(why.text(), device + ": registering"), why.text());
    CHECK(pair.a().channel_status(healthy.out).ok());
    CHECK(pair.violation() == "");
  }
}

// The answer about where a region lies once outgrew what the link between the daemons takes, and broke that
// link.
TEST_CASE("a region in more pieces than an answer has room for is refused by name; the largest one passes") {
  using transport::verbs::kMaxChunks;
  for (const bool fits : {true, false}) {
    CAPTURE(fits);
    nic::Fabric fabric;
    Direct a(fabric, "node-a", 1), b(fabric, "node-b", 2);
    b.region = make_region(kMaxChunks * Direct::kPiece + (fits ? 0 : 1), abi::RegionKind::kHostMemory);
    a.region = make_region(Direct::kPiece, abi::RegionKind::kHostMemory);
    a.connect(b);
    b.connect(a);
    REQUIRE(a.transport->open_outbound(0, 1, 7).ok());
    REQUIRE(b.transport->open_inbound(0, 1, 7).ok());
    const transport::Put put{.channel = 0, .sequence = 1, .source = a.region.get(), .length = 64};
    REQUIRE(a.transport->submit(std::span(&put, 1)) == 1);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (a.failure.ok() && a.done == 0) {
      REQUIRE(std::chrono::steady_clock::now() < end);
      a.pump();
      b.pump();
    }
    CHECK(b.largest <= transport::kMaxMessageBytes);
    CHECK(b.largest > (fits ? transport::kMaxMessageBytes - 1024 : 0));
    CHECK(a.failure.ok() == fits);
    if (fits) continue;
    CHECK(a.failure.code() == StatusCode::kOutOfRange);
    CHECK_MESSAGE(contains(a.failure.text(), "is larger than the 15564800 that a peer may write to"),
                  a.failure.text());
  }
}

TEST_CASE("puts across the pieces that a region is registered in") {
  TransportPair pair;  // pieces of 1 MiB
  const auto ends = pair.stream(pair.a(), 40, 3, 3U << 20, random_lengths(3U << 20, 5));
  CHECK(pair.run(Threads::kOne) == "");
  CHECK(pair.b().arrived(ends.in) == 40);
}

}  // namespace
}  // namespace mkernel::test
