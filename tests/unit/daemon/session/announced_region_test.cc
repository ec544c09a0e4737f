// Regions that other ranks announce: when a client may write to them.
#include <poll.h>

#include <atomic>
#include <cstdint>

#include "tests/unit/daemon/session/harness.h"

namespace mkernel::session::testing {
namespace {

void announce(Harness& harness, std::uint32_t index, std::uint64_t bytes) {
  harness.control([&](SessionServer&) {
    harness.coordinator().announce_elsewhere("remote", 1, index, {bytes, 0, 0});
    return 0;
  });
}

/// What the map of the group says of a region of rank 1.
std::uint64_t bytes_in_map(RawClient& client, std::uint32_t index) {
  const abi::GroupSegment& segment = client.group_segment();
  auto* map = client.group_mapping().at<abi::RegionEntry>(segment.regions_offset);
  return std::atomic_ref(map[segment.region_capacity + index].bytes).load(std::memory_order_acquire);
}

bool says_something(const RawClient& client, int milliseconds) {
  pollfd readable{client.fd(), POLLIN, 0};
  return ::poll(&readable, 1, milliseconds) > 0;
}

// A rank put into a region right after the exchange that followed its announcement, and lost its session:
// "the rank registered nothing at that index". Its proxy had been told of the region, but had not come to the
// command yet: the processor had been taken away from it between the commands of a round and the rings.
TEST_CASE("a client hears of a region, by the map or by an exchange, when its proxies know it") {
  Harness harness;
  RawClient client(harness.socket());
  REQUIRE(client.hello().status.code == 0);
  REQUIRE(client.join("remote", 2, 0).status.code == 0);

  harness.gate().close();
  announce(harness, 0, 4096);  // brings the proxy to the gate
  REQUIRE(eventually([&] { return harness.gate().holds(); }));
  announce(harness, 1, 8192);
  auto exchange = RawClient::message<abi::Exchange>(abi::MessageType::kExchange);
  exchange.group = client.handle();
  exchange.round = 1;
  REQUIRE(ipc::send_message(client.fd(), exchange).ok());
  CHECK_FALSE(says_something(client, 100));
  CHECK(bytes_in_map(client, 1) == 0);

  harness.gate().open();
  ipc::Packet packet;
  REQUIRE(client.receive(packet).ok());
  CHECK(packet.bytes == sizeof(abi::PlainReply));
  CHECK(bytes_in_map(client, 0) == 4096);
  CHECK(bytes_in_map(client, 1) == 8192);

  announce(harness, 1, 0);
  CHECK(eventually([&] { return bytes_in_map(client, 1) == 0; }));
  CHECK(client.leave().ok());
}

}  // namespace
}  // namespace mkernel::session::testing
