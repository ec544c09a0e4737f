// Messages of a peer's transport: what is refused, and by what words.
#include "daemon/transport/verbs/message.h"

#include <doctest/doctest.h>

#include <cstring>

namespace mkernel::transport::verbs {
namespace {

Port good_port() {
  Port port{};
  port.mtu = IBV_MTU_4096;
  port.link_layer = IBV_LINK_LAYER_ETHERNET;
  port.number = 1;
  std::strcpy(port.device, "mlx5_0");
  return port;
}

Open good_open() {
  return {{.type = MessageType::kOpen, .slot = 1, .epoch = 2}, 3, 4, good_port(), 17, 18, 0, 0};
}

template <typename T>
std::string refused(const T& message) {
  const Status status = check_message(bytes_of(message));
  CHECK((status.ok() || status.code() == StatusCode::kInvalidArgument));
  return status.text();
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("every field with limits of its own is checked") {
  CHECK(refused(good_open()).empty());
  const auto spoiled = [](auto&& spoil) {
    Open open = good_open();
    spoil(open);
    return refused(open);
  };
  CHECK(contains(spoiled([](Open& open) { open.head.version = 9; }), "version 9"));
  CHECK(contains(spoiled([](Open& open) { open.head.type = MessageType{77}; }), "type 77"));
  CHECK(contains(spoiled([](Open& open) { open.head.type = MessageType::kClose; }), "104 bytes, it has 16"));
  CHECK(contains(spoiled([](Open& open) { open.head.count = 1; }), "1 chunks"));
  CHECK(contains(spoiled([](Open& open) { open.qpn = 1U << 24; }), "QPN 16777216"));
  CHECK(contains(spoiled([](Open& open) { open.psn = 1U << 24; }), "PSN 16777216"));
  CHECK(contains(spoiled([](Open& open) { open.port.mtu = 0; }), "MTU 0"));
  CHECK(contains(spoiled([](Open& open) { open.port.mtu = 6; }), "MTU 6"));
  CHECK(contains(spoiled([](Open& open) { open.port.link_layer = 0; }), "link layer 0"));
  CHECK(contains(spoiled([](Open& open) { open.port.lid = 70000; }), "LID 70000"));
  CHECK(contains(spoiled([](Open& open) { open.port.device[0] = '\033'; }), "not printable"));
  CHECK(contains(spoiled([](Open& open) { std::memset(open.port.device, 'x', kDeviceNameBytes); }),
                 "without end"));
  CHECK(contains(check_message({}).text(), "0 bytes"));
}

TEST_CASE("the chunks of a region cover it, no more and no less") {
  const auto check = [](std::uint64_t bytes, std::uint64_t chunk_bytes, std::uint32_t chunks) {
    const Resolved resolved{{.type = MessageType::kResolved, .count = chunks}, 1, 0, 1, bytes, chunk_bytes};
    std::vector<std::byte> message(sizeof(resolved) + chunks * sizeof(RemoteChunk));
    std::memcpy(message.data(), &resolved, sizeof(resolved));
    return check_message(message).ok();
  };
  CHECK(check(4096, 4096, 1));
  CHECK(check(4097, 4096, 2));
  CHECK(check(100, 4096, 1));
  CHECK_FALSE(check(4097, 4096, 1));
  CHECK_FALSE(check(4096, 4096, 2));
  CHECK_FALSE(check(4096, 0, 1));
  CHECK_FALSE(check(4096, 2000, 3));
  CHECK_FALSE(check(0, 4096, 0));
  CHECK_FALSE(check(~std::uint64_t{0}, 1, 2));
  CHECK_FALSE(check(kMaxChunks + 1, 1, kMaxChunks + 1));
}

TEST_CASE("a refusal keeps its reason, cut where the text ends, and nothing that moves a terminal") {
  const Message head{.type = MessageType::kRefused, .slot = 3, .epoch = 4};
  const Refusal message = refusal(head, {StatusCode::kOutOfRange, "region 200: \033[2Jno"}, 9, true);
  CHECK(refused(message).empty());
  CHECK(message.key == 9);
  CHECK(status_of(message).code() == StatusCode::kOutOfRange);
  CHECK(status_of(message).text() == "region 200:  [2Jno");
  const Refusal long_one = refusal(head, {StatusCode::kInternal, std::string(10000, 'x')});
  CHECK(refused(long_one).empty());
  CHECK(status_of(long_one).text() == std::string(abi::kTextBytes - 1, 'x'));
  Refusal fine = message;
  fine.code = 0;
  CHECK(contains(refused(fine), "code 0"));
  fine.code = 99;
  CHECK(contains(refused(fine), "code 99"));
}

}  // namespace
}  // namespace mkernel::transport::verbs
