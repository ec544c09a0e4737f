// A peer that speaks the link's language wrongly, or lies: the test holds the other end of the socket.
#include <doctest/doctest.h>
#include <poll.h>

#include <cstring>
#include <limits>
#include <vector>

#include "tests/support/emulated_victim.h"

namespace mkernel::transport::emulated {
namespace {

/// The test is the transport's peer.
struct Rig : Victim<> {
  void greet() {
    send_right_hello();
    REQUIRE(pump([&] { return sink.connected; }));
    REQUIRE(next(PacketType::kHello).ok());
  }

  template <typename Condition>
  bool pump(Condition condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (std::chrono::steady_clock::now() < end) {
      transport->poll();
      if (condition()) return true;
      pollfd wanted{transport->event_fd(), POLLIN, 0};
      ::poll(&wanted, 1, 5);
    }
    return false;
  }

  /// The next packet of a type from the transport; others are skipped.
  Result<ipc::Packet*> next(PacketType type) {
    Status got;
    const bool found = pump([&] {
      got = ipc::receive_packet(socket.get(), packet);
      return got.code() == StatusCode::kUnavailable || (got.ok() && type_of(packet) == type);
    });
    if (!found) return Status{StatusCode::kDeadlineExceeded, "no such packet"};
    if (!got.ok()) return got;
    return &packet;
  }

  template <typename T>
  void send(const T& body, std::size_t bytes = sizeof(T), std::vector<int> fds = {}) {
    REQUIRE(ipc::send_packet(socket.get(), std::as_bytes(std::span(&body, 1)).first(bytes), fds).ok());
  }

  void announce(int fd, std::uint64_t bytes = kRegionBytes, std::uint64_t offset = 0,
                abi::RegionKind kind = abi::RegionKind::kHostMemory) {
    const AnnouncePacket packet_of_one{.head = {PacketType::kAnnounce, 0, 0},
                                       .region = 1,
                                       .offset = offset,
                                       .bytes = bytes,
                                       .kind = static_cast<std::uint32_t>(kind)};
    send(packet_of_one, sizeof(packet_of_one), fd < 0 ? std::vector<int>{} : std::vector<int>{fd});
  }

  void put(PutEntry entry) {
    PutsPacket packet_of_one{.head = {PacketType::kPuts, 1, 0}, .fence = 0};
    packet_of_one.puts[0] = entry;
    send(packet_of_one, offsetof(PutsPacket, puts) + sizeof(PutEntry));
  }

  static PutEntry good() {
    return {.channel = kInKey,
            .source_region = 1,
            .source_offset = 0,
            .target_offset = 0,
            .length = 16,
            .sequence = 1};
  }

  ipc::Packet packet;
};

TEST_CASE("a well-behaved stranger gets through: the rig itself works") {
  Rig rig;
  rig.greet();
  REQUIRE(rig.next(PacketType::kHeld).ok());
  rig.announce(rig.source.fd.get());
  rig.put(Rig::good());
  REQUIRE(rig.next(PacketType::kAcks).ok());
  CHECK(rig.sink.arrivals == 1);
}

TEST_CASE("a first packet that is no hello is answered with a refusal") {
  Rig rig;
  rig.send(WithdrawPacket{{PacketType::kWithdraw, 0, 0}, 1});
  REQUIRE(rig.next(PacketType::kRefuse).ok());
  CHECK(read_refusal(rig.packet).final);
  CHECK(read_refusal(rig.packet).why.text().find("hello") != std::string::npos);
  CHECK(rig.sink.peer.ok());
}

TEST_CASE("another version, boot id or an unknown node is refused by name") {
  Rig rig;
  SUBCASE("version") {
    HelloPacket hello{.head = {PacketType::kHello, 0, 0}, .magic = kWireMagic, .version = kWireVersion + 1};
    rig.send(hello, sizeof(hello), {rig.fence.get()});
    REQUIRE(rig.next(PacketType::kRefuse).ok());
    CHECK(read_refusal(rig.packet).why.text().find("version " + std::to_string(kWireVersion + 1)) !=
          std::string::npos);
    CHECK(read_refusal(rig.packet).final);
  }
  SUBCASE("earlier life of the node that is called") {
    auto earlier = rig.self;
    earlier.boot_id += 1000;
    REQUIRE(send_hello(rig.socket.get(), rig.peer, earlier, rig.fence.get()).ok());
    REQUIRE(rig.next(PacketType::kRefuse).ok());
    CHECK(read_refusal(rig.packet).why.text().find(describe(earlier)) != std::string::npos);
    CHECK(read_refusal(rig.packet).final);
  }
  SUBCASE("another life of the caller: it may be announced any moment") {
    REQUIRE(send_hello(rig.socket.get(), {"aggressor", 8}, rig.self, rig.fence.get()).ok());
    REQUIRE(rig.next(PacketType::kRefuse).ok());
    CHECK(read_refusal(rig.packet).why.text().find("aggressor (boot 7)") != std::string::npos);
    CHECK(!read_refusal(rig.packet).final);
  }
  SUBCASE("a monotonic clock that is not this host's") {
    HelloPacket hello{.head = {PacketType::kHello, 0, 0}, .magic = kWireMagic, .version = kWireVersion};
    SUBCASE("in the past") {
      hello.clock = std::numeric_limits<std::int64_t>::min();
    }
    SUBCASE("in the future") {
      hello.clock = to_ticks(Clock::now() + std::chrono::hours(1));
    }
    rig.send(hello, sizeof(hello), {rig.fence.get()});
    REQUIRE(rig.next(PacketType::kRefuse).ok());
    CHECK(read_refusal(rig.packet).why.text().find("time namespace") != std::string::npos);
    CHECK(read_refusal(rig.packet).final);
  }
  SUBCASE("a wire that there is not") {
    REQUIRE(send_hello(rig.socket.get(), rig.peer, rig.self, rig.fence.get(), 1U << 31).ok());
    REQUIRE(rig.next(PacketType::kRefuse).ok());
    CHECK(read_refusal(rig.packet).why.text().find("wire 2147483648 of 1") != std::string::npos);
    CHECK(read_refusal(rig.packet).final);
  }
  SUBCASE("unknown node") {
    REQUIRE(send_hello(rig.socket.get(), {"stranger", 8}, rig.self, rig.fence.get()).ok());
    REQUIRE(rig.next(PacketType::kRefuse).ok());
    CHECK(!read_refusal(rig.packet).final);
  }
  CHECK(!rig.sink.connected);
  CHECK(rig.sink.peer.ok());
}

TEST_CASE("a fence page that could make the transport fault is refused") {
  Rig rig;
  const auto tiny = ipc::create_shared_memory("tiny", 16).value();
  REQUIRE(send_hello(rig.socket.get(), rig.peer, rig.self, tiny.get()).ok());
  REQUIRE(rig.next(PacketType::kRefuse).ok());
  CHECK(!rig.sink.connected);
}

TEST_CASE("a put that must not be done fails its channel, not the link") {
  Rig rig;
  rig.greet();
  rig.announce(rig.source.fd.get());
  PutEntry put = Rig::good();
  StatusCode expected = StatusCode::kOutOfRange;
  SUBCASE("beyond the source") {
    put.source_offset = kRegionBytes - 8;
  }
  SUBCASE("source offset that overflows") {
    put.source_offset = ~std::uint64_t{0} - 4;
  }
  SUBCASE("beyond the target") {
    put.target_offset = kRegionBytes - 8;
  }
  SUBCASE("a length beyond everything") {
    put.length = ~0U;
  }
  SUBCASE("beyond the window") {
    put.sequence = kWindow + 1;
  }
  SUBCASE("GPU memory, which this end cannot reach") {
    rig.announce(rig.source.fd.get(), kRegionBytes, 0, abi::RegionKind::kVmm);
    expected = StatusCode::kFailedPrecondition;
  }
  SUBCASE("plain GPU memory, likewise") {
    rig.announce(-1, kRegionBytes, 1234, abi::RegionKind::kIpc);
    expected = StatusCode::kFailedPrecondition;
  }
  SUBCASE("a source that was never announced") {
    put.source_region = 2;
    expected = StatusCode::kNotFound;
  }
  rig.put(put);
  REQUIRE(rig.next(PacketType::kNack).ok());
  NackPacket nack{};
  std::memcpy(&nack, rig.packet.data, sizeof(nack));
  CHECK(nack.channel == kInKey);
  CHECK(static_cast<StatusCode>(nack.code) == expected);
  CHECK(std::string(nack.text).find(rig.self.node) != std::string::npos);
  CHECK(rig.sink.arrivals == 0);
  CHECK(rig.sink.peer.ok());
}

TEST_CASE("a put from a withdrawn region, or of a channel nobody opened, moves nothing") {
  Rig rig;
  rig.greet();
  rig.announce(rig.source.fd.get());
  PutEntry put = Rig::good();
  put.channel = 12345;
  rig.put(put);
  rig.send(WithdrawPacket{{PacketType::kWithdraw, 0, 0}, 1});
  rig.put(Rig::good());
  REQUIRE(rig.next(PacketType::kNack).ok());
  CHECK(rig.sink.arrivals == 0);
}

TEST_CASE("a packet that breaks the protocol ends the link, and says why") {
  Rig rig;
  rig.greet();
  std::string expected = "malformed";
  SUBCASE("unknown type") {
    rig.send(Head{static_cast<PacketType>(77), 0, 0});
  }
  SUBCASE("a byte") {
    rig.send(std::byte{1});
  }
  SUBCASE("a second hello") {
    REQUIRE(send_hello(rig.socket.get(), rig.peer, rig.self, rig.fence.get()).ok());
  }
  SUBCASE("more puts promised than sent") {
    rig.send(PutsPacket{.head = {PacketType::kPuts, 20, 0}}, offsetof(PutsPacket, puts) + sizeof(PutEntry));
  }
  SUBCASE("more puts than fit a packet") {
    rig.send(PutsPacket{.head = {PacketType::kPuts, 60000, 0}}, sizeof(PutsPacket));
  }
  SUBCASE("fds that do not belong") {
    rig.send(WithdrawPacket{{PacketType::kWithdraw, 0, 0}, 1}, sizeof(WithdrawPacket), {rig.fence.get()});
  }
  SUBCASE("an announcement without fd") {
    rig.send(
        AnnouncePacket{.head = {PacketType::kAnnounce, 0, 0}, .region = 1, .bytes = kRegionBytes, .kind = 1});
  }
  SUBCASE("too long") {
    rig.send(std::array<std::byte, abi::kMaxMessageBytes + 8>{});
  }
  SUBCASE("a region outside its fd") {
    rig.announce(rig.source.fd.get(), 2 * kRegionBytes);
    expected = "lies outside its fd";
  }
  SUBCASE("a region of no kind that exists") {
    rig.announce(rig.source.fd.get(), kRegionBytes, 0, static_cast<abi::RegionKind>(9));
    expected = "kind 9 is unknown";
  }
  SUBCASE("a region that is no memfd") {
    rig.announce(rig.transport->event_fd());
    expected = "not a memfd";
  }
  SUBCASE("acknowledged what was never sent") {
    CountsPacket acks{.head = {PacketType::kAcks, 1, 0}};
    acks.counts[0] = {kOutKey, 3};
    rig.send(acks, offsetof(CountsPacket, counts) + sizeof(CountEntry));
    expected = "acknowledges 3 puts";
  }
  REQUIRE(rig.pump([&] { return !rig.sink.peer.ok(); }));
  CHECK(rig.sink.peer.text().find(expected) != std::string::npos);
  CHECK(rig.sink.peer.text().find("aggressor") != std::string::npos);
}

TEST_CASE("a peer that claims to hold more than it was given loses the channel") {
  Rig rig;
  rig.greet();
  CountsPacket held{.head = {PacketType::kHeld, 1, 0}};
  held.counts[0] = {kOutKey, 10};
  rig.send(held, offsetof(CountsPacket, counts) + sizeof(CountEntry));
  REQUIRE(rig.pump([&] { return !rig.sink.channel.ok(); }));
  CHECK(rig.sink.channel.code() == StatusCode::kDataLoss);
  CHECK(rig.sink.completions == 0);
  CHECK(rig.sink.peer.ok());
}

}  // namespace
}  // namespace mkernel::transport::emulated
