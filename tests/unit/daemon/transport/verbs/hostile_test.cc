// A peer's transport that says what it should not: the peer is lost by name, or what it said changes nothing.
#include <cstring>
#include <random>

#include "daemon/transport/verbs/message.h"
#include "tests/unit/daemon/transport/verbs/pair.h"

namespace mkernel::test {
namespace {

using namespace transport::verbs;

constexpr std::uint16_t kTypes[] = {1, 16, 17, 18, 19, 20, 32, 33, 34, 35, 36, 48, 49, 64, 65, 66, 67};

TEST_CASE("the version of its messages is what daemons compare when they greet each other") {
  TransportPair pair;
  CHECK(pair.a().transport().message_version() == kMessageVersion);
  CHECK(kMessageVersion > 0);  // 0 would say that there are no messages
}

TEST_CASE("bytes that are no message lose the peer, with what is wrong with them") {
  TransportPair pair;
  const std::vector<std::byte> junk(100, std::byte{0x5a});
  pair.a().transport().receive_from_peer(pair.a().peer(), junk);
  REQUIRE(pair.run_until([&] { return !pair.a().peer_status().ok() && !pair.b().peer_status().ok(); }));
  CHECK(contains(pair.a().peer_status().text(), "node node-b: message of an RDMA transport: version 23130"));
}

TEST_CASE("whatever well-formed messages come, the transport stands, and leaks nothing") {
  std::mt19937_64 random(3);
  for (int round = 0; round < 150; ++round) {
    TransportPair pair;
    const auto ends = pair.stream(pair.a(), 1000000, 8, 4096, always(4096));
    pair.stream(pair.b(), 1000000, 8, 4096, always(4096));
    pair.run_until([&] { return pair.b().arrived(ends.in) > 3; });
    for (int i = 0; i < 20 && pair.a().peer_status().ok(); ++i) {
      std::vector<std::byte> bytes(sizeof(Refusal) + 64);
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
      Message head{.type = MessageType{kTypes[random() % std::size(kTypes)]}};
      head.slot = static_cast<std::uint32_t>(random() % 4);
      head.epoch = static_cast<std::uint32_t>(random() % 3);
      head.count = head.type == MessageType::kResolved ? 1 : 0;
      // Small values in most places: those are looked at.
      for (std::size_t at = sizeof(head); at + 4 <= bytes.size(); at += 4) {
        const auto small = static_cast<std::uint32_t>(random() % 4);
        if (random() % 4 != 0) std::memcpy(&bytes[at], &small, sizeof(small));
      }
      std::memcpy(bytes.data(), &head, sizeof(head));
      for (std::size_t size = sizeof(head); size <= bytes.size(); size += 8) {
        const auto message = std::span(bytes).first(size);
        if (check_message(message).ok()) pair.a().transport().receive_from_peer(pair.a().peer(), message);
      }
      pair.pump(3);
    }
  }
}

}  // namespace
}  // namespace mkernel::test
