// A real session server over a real Unix socket: what clients may say, and what it costs them to say it
// wrong.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include <fstream>

#include "tests/unit/daemon/session/harness.h"

namespace mkernel::session::testing {
namespace {

using abi::MessageType;

ipc::UniqueFd memory(std::uint64_t bytes) {
  return std::move(ipc::create_shared_memory("region", bytes)).value();
}

TEST_CASE("hello is answered with the session, its segment and its doorbells") {
  Harness harness;
  REQUIRE_MESSAGE(harness.started().ok(), harness.started().text());
  RawClient client(harness.socket());
  const auto reply = client.hello();
  REQUIRE(reply.status.code == 0);
  CHECK(reply.session_id == 1);
  CHECK(reply.boot_id == 42);
  CHECK(reply.ring_count == 1);
  CHECK(ipc::text_of(reply.node_name) == "here");
  CHECK(client.last_fds().size() == 2);
  CHECK(client.session_segment().magic == abi::kMagic);
  CHECK(client.session_segment().log2_slots == 6);
  CHECK(client.session_segment().bytes == reply.segment_bytes);
  CHECK(client.session_segment().abort == 0);

  const auto seen = harness.control([](SessionServer& server) { return server.sessions(); });
  REQUIRE(seen.size() == 1);
  CHECK(seen[0].client_name == "test");
  CHECK(seen[0].pid == ::getpid());
  CHECK(seen[0].uid == ::getuid());
}

TEST_CASE("a hello that asks for too much is refused by value and limit, and may be said again") {
  Harness harness;
  RawClient client(harness.socket());
  auto hello = RawClient::message<abi::Hello>(MessageType::kHello);
  CHECK(contains(ipc::from_reply(client.request<abi::HelloReply>(hello).status).text(),
                 "client name is empty"));
  ipc::copy_text(hello.client_name, "a\nb");
  CHECK(contains(ipc::from_reply(client.request<abi::HelloReply>(hello).status).text(),
                 "byte 10 at position 1"));
  ipc::copy_text(hello.client_name, "ab");
  hello.weight = 65;
  CHECK(contains(ipc::from_reply(client.request<abi::HelloReply>(hello).status).text(), "weight = 65"));
  hello.weight = 1;
  hello.device = -2;
  CHECK(contains(ipc::from_reply(client.request<abi::HelloReply>(hello).status).text(), "device = -2"));
  CHECK(client.hello().status.code == 0);
}

TEST_CASE("a packet that is no message ends the session with the reason") {
  Harness harness;
  RawClient client(harness.socket());
  auto hello = RawClient::message<abi::Hello>(MessageType::kHello);
  std::vector<std::byte> bytes(2000);
  std::vector<int> fds;
  StatusCode code = StatusCode::kInvalidArgument;
  std::string expected;

  SUBCASE("another version") {
    hello.header.version = 77;
    expected = "client speaks ABI version 77, this daemon speaks " + std::to_string(abi::kVersion);
    code = StatusCode::kFailedPrecondition;
  }
  SUBCASE("unknown type") {
    hello.header.type = 60;
    expected = "unknown type 60";
  }
  SUBCASE("truncated") {
    bytes.resize(50);
    expected = "message says 96 bytes, the packet has 50";
  }
  SUBCASE("longer than any message") {
    expected = "packet longer than the largest message of 1024 bytes";
  }
  SUBCASE("fds where none belong") {
    fds.assign(abi::kMaxFds, client.fd());
    bytes.resize(sizeof(hello));
    expected = "hello with " + std::to_string(abi::kMaxFds) + " fds, expected 0";
  }
  SUBCASE("something else than hello first") {
    hello.header.type = static_cast<std::uint16_t>(MessageType::kLeaveGroup);
    hello.header.bytes = sizeof(abi::LeaveGroup);
    bytes.resize(sizeof(abi::LeaveGroup));
    expected = "its first message is not hello";
    code = StatusCode::kFailedPrecondition;
  }
  if (bytes.size() == 2000 && !contains(expected, "longer")) bytes.resize(sizeof(hello));
  std::memcpy(bytes.data(), &hello, std::min(bytes.size(), sizeof(hello)));
  REQUIRE(client.send(bytes, fds).ok());
  const Status end = client.wait_for_end();
  CHECK(end.code() == code);
  CHECK_MESSAGE(contains(end.text(), expected), end.text());
  CHECK(eventually([&] { return harness.session_count() == 0; }));
}

TEST_CASE("more fds than one packet may carry end the session, and none of them stays open") {
  Harness harness;
  RawClient client(harness.socket());
  REQUIRE(client.hello().status.code == 0);
  // Past ipc::send_packet, which would not send them.
  auto ask = RawClient::message<abi::RegisterRegion>(MessageType::kRegisterRegion);
  const ipc::UniqueFd event = std::move(ipc::create_event()).value();
  const std::vector<int> fds(abi::kMaxFds + 20, event.get());
  std::vector<char> control(CMSG_SPACE(fds.size() * sizeof(int)));
  iovec piece{&ask, sizeof(ask)};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
  std::memcpy(CMSG_DATA(head), fds.data(), fds.size() * sizeof(int));
  REQUIRE(::sendmsg(client.fd(), &message, 0) == sizeof(ask));
  const Status end = client.wait_for_end();
  CHECK_MESSAGE(contains(end.text(), "more than " + std::to_string(abi::kMaxFds) + " fds"), end.text());
}

TEST_CASE("a second hello ends the session, and the reason is in its segment") {
  Harness harness;
  RawClient client(harness.socket());
  REQUIRE(client.hello().status.code == 0);
  auto hello = RawClient::message<abi::Hello>(MessageType::kHello);
  REQUIRE(ipc::send_message(client.fd(), hello).ok());
  CHECK(contains(client.wait_for_end().text(), "a second hello"));
  CHECK(client.session_segment().abort == static_cast<std::uint32_t>(StatusCode::kFailedPrecondition));
  CHECK(contains(client.session_segment().failure.text, "a second hello"));
  CHECK(ipc::text_of(client.session_segment().failure.node) == "here");
}

TEST_CASE("a connection that never says hello is closed") {
  Harness harness(
      [](ServerOptions& options) { options.limits.hello_timeout = std::chrono::milliseconds(100); });
  RawClient client(harness.socket());
  CHECK(contains(client.wait_for_end().text(), "limits.hello_timeout_ms = 100"));
}

TEST_CASE("a hello above the limit of sessions is refused, and granted when one has gone") {
  Harness harness([](ServerOptions& options) { options.limits.max_sessions = 1; });
  RawClient first(harness.socket()), second(harness.socket());
  REQUIRE(first.hello("first").status.code == 0);
  const Status refused = ipc::from_reply(second.hello("second").status);
  CHECK(refused.code() == StatusCode::kResourceExhausted);
  CHECK(contains(refused.text(), "has 1 sessions of 1 (by limits.max_sessions = 1)"));
  first.close();
  CHECK(eventually([&] { return harness.session_count() == 1; }));
  CHECK(second.hello("second").status.code == 0);
}

TEST_CASE("connections without a hello are bounded, and the one too many is told why") {
  Harness harness([](ServerOptions& options) {
    options.limits.max_sessions = 1;
    options.users.standard.max_connections = 8 * 65;  // this user may have the last quarter, too
  });
  std::vector<std::unique_ptr<RawClient>> silent;
  for (int i = 0; i < 65; ++i) silent.push_back(std::make_unique<RawClient>(harness.socket()));
  REQUIRE(eventually([&] { return harness.session_count() == 65; }));
  RawClient one_more(harness.socket());
  CHECK(contains(one_more.wait_for_end().text(), "has 65 connections"));
}

TEST_CASE("a group request above a limit is refused by name, value and limit") {
  Harness harness([](ServerOptions& options) {
    options.limits.max_lanes = 4;
    options.limits.max_groups = 1;
  });
  RawClient client(harness.socket());
  REQUIRE(client.hello().status.code == 0);
  const auto refused = [&](const std::function<void(abi::JoinGroup&)>& spoil) {
    auto join = RawClient::join_message("g", 1, 0);
    spoil(join);
    const auto reply = client.request<abi::JoinGroupReply>(join);
    CHECK(client.last_fds().empty());
    return ipc::from_reply(reply.status).text();
  };
  CHECK(contains(refused([](auto& join) { join.world_size = 0; }), "world size = 0"));
  CHECK(contains(refused([](auto& join) { join.world_size = 1025; }), "world size = 1025 is above"));
  CHECK(contains(refused([](auto& join) { join.rank = 1; }), "rank = 1 of a world of 1"));
  CHECK(contains(refused([](auto& join) { join.lanes = 0; }), "lanes = 0"));
  CHECK(contains(refused([](auto& join) { join.lanes = 5; }), "lanes = 5 is above limits.max_lanes = 4"));
  CHECK(contains(refused([](auto& join) { join.region_capacity = 257; }), "region capacity = 257"));
  CHECK(contains(refused([](auto& join) { join.name[0] = 0; }), "group name is empty"));
  REQUIRE(client.join("g", 1, 0).status.code == 0);
  CHECK(contains(refused([](auto& join) { join.name[0] = 'h'; }), "limits.max_groups = 1"));
}

TEST_CASE("a formed group's segment names its members, a rank that is held is refused") {
  Harness harness;
  RawClient a(harness.socket()), b(harness.socket()), c(harness.socket());
  REQUIRE(a.hello("a").status.code == 0);
  REQUIRE(b.hello("b").status.code == 0);
  REQUIRE(c.hello("c").status.code == 0);
  a.start_join("g", 2, 1);
  REQUIRE(
      eventually([&] { return harness.control([](auto& server) { return server.groups(); }).size() == 1; }));
  CHECK(contains(ipc::from_reply(c.join("g", 2, 1).status).text(), "rank 1 is held"));
  REQUIRE(b.join("g", 2, 0).status.code == 0);
  REQUIRE(a.finish_join().status.code == 0);
  const abi::GroupSegment& segment = a.group_segment();
  CHECK(segment.magic == abi::kMagic);
  CHECK(segment.rank == 1);
  CHECK(segment.world_size == 2);
  CHECK(segment.node_count == 1);
  CHECK(segment.instance == b.group_segment().instance);
  const auto* members = a.group_mapping().at<abi::Member>(segment.members_offset);
  CHECK(members[1].local_rank == 1);
  CHECK(ipc::text_of(members[0].node_name) == "here");
  const auto groups = harness.control([](SessionServer& server) { return server.groups(); });
  REQUIRE(
      eventually([&] { return harness.control([](auto& server) { return server.groups(); }).size() == 2; }));
  CHECK(groups[0].name == "g");
  CHECK(groups[0].state == "ready");
}

TEST_CASE("an fd of the wrong kind, or a region outside its fd, is refused and the session goes on") {
  Harness harness([](ServerOptions& options) {
    options.limits.max_region_bytes = 1 << 20;
    options.limits.max_pinned_bytes = (1 << 20) + 8192;
  });
  RawClient client(harness.socket());
  REQUIRE(client.hello().status.code == 0);
  REQUIRE(client.join("g", 1, 0).status.code == 0);
  const ipc::UniqueFd good = memory(8192);
  const auto refusal = [&](int fd, std::uint32_t index, std::uint64_t offset, std::uint64_t bytes,
                           abi::RegionKind kind = abi::RegionKind::kHostMemory) {
    return client.register_region(fd, index, offset, bytes, false, kind).to_string();
  };

  TemporaryFolder folder;
  const ipc::UniqueFd file(::open(folder.file("file").c_str(), O_RDWR | O_CREAT, 0600));
  const ipc::UniqueFd event = std::move(ipc::create_event()).value();
  const ipc::UniqueFd loose(::memfd_create("loose", MFD_ALLOW_SEALING));
  REQUIRE(::ftruncate(loose.get(), 4096) == 0);
  CHECK(contains(refusal(file.get(), 0, 0, 4096), "INVALID_ARGUMENT: register_region: "));
  CHECK(contains(refusal(event.get(), 0, 0, 4096), "fd is not a memfd"));
  CHECK(contains(refusal(loose.get(), 0, 0, 4096), "not sealed against shrinking"));
  REQUIRE(::fcntl(loose.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_WRITE) == 0);
  CHECK(contains(refusal(loose.get(), 0, 0, 4096), "sealed against writing"));
  const ipc::UniqueFd read_only(::open(("/proc/self/fd/" + std::to_string(good.get())).c_str(), O_RDONLY));
  CHECK(contains(refusal(read_only.get(), 0, 0, 4096), "not open for reading and writing"));

  CHECK(contains(refusal(good.get(), 0, 0, 8193),
                 "OUT_OF_RANGE: register_region: region [0, +8193) lies outside"));
  CHECK(contains(refusal(good.get(), 0, 8192, 1), "lies outside its fd of 8192 bytes"));
  CHECK(contains(refusal(good.get(), 0, ~std::uint64_t{4095}, 8192), "lies outside"));
  CHECK(contains(refusal(good.get(), 0, 100, 10), "offset 100 is not a multiple of the page size"));
  CHECK(contains(refusal(good.get(), 0, 0, 0), "region of 0 bytes"));
  CHECK(contains(refusal(good.get(), 8, 0, 4096),
                 "region index 8 of group \"g\" (rank 0), whose region capacity is 8"));
  CHECK(contains(refusal(good.get(), 0, 0, (1 << 20) + 1), "above limits.max_region_bytes = 1048576"));
  CHECK(contains(refusal(good.get(), 0, 0, 1 << 21), "above limits.max_pinned_bytes"));
  CHECK(
      contains(refusal(good.get(), 0, 0, 4096, static_cast<abi::RegionKind>(9)), "region kind 9 is unknown"));

  CHECK(client.register_region(good.get(), 3, 4096, 4096).ok());
  CHECK(contains(refusal(good.get(), 3, 0, 4096), "ALREADY_EXISTS: register_region: region index 3"));
  const ipc::UniqueFd big = memory(1 << 20);
  CHECK(client.register_region(big.get(), 4, 0, 1 << 20).ok());
  CHECK(contains(refusal(good.get(), 5, 0, 8192),
                 "8192 bytes of host memory on top of 1052672 of this session are above "
                 "limits.max_pinned_bytes"));

  const auto regions = harness.control([](SessionServer& server) { return server.regions(); });
  REQUIRE(regions.size() == 2);
  CHECK(regions[0].index == 3);
  CHECK(regions[0].bytes == 4096);
  CHECK(regions[0].kind == "host");
  CHECK(eventually([&] {
    const auto* map = client.group_mapping().at<abi::RegionEntry>(client.group_segment().regions_offset);
    return std::atomic_ref<std::uint64_t>(const_cast<std::uint64_t&>(map[3].bytes)).load() == 4096;
  }));
}

TEST_CASE("an unregistered index is free again and empty in the map") {
  Harness harness;
  RawClient client(harness.socket());
  REQUIRE(client.hello().status.code == 0);
  REQUIRE(client.join("g", 1, 0).status.code == 0);
  const ipc::UniqueFd fd = memory(4096);
  REQUIRE(client.register_region(fd.get(), 2, 0, 4096, false, abi::RegionKind::kHostMemory, true).ok());
  auto unregister = RawClient::message<abi::UnregisterRegion>(MessageType::kUnregisterRegion);
  unregister.group = client.handle();
  unregister.index = 2;
  CHECK(client.request<abi::PlainReply>(unregister).status.code == 0);
  CHECK(harness.control([](SessionServer& server) { return server.regions(); }).empty());
  CHECK(contains(ipc::from_reply(client.request<abi::PlainReply>(unregister).status).text(),
                 "no region at index 2"));
  // The session keeps the right to map the memfd, which is sealed by now: the message said so.
  CHECK(client.register_region(fd.get(), 2, 0, 4096).ok());
}

TEST_CASE("a shared region of the same node can be mapped, any other cannot") {
  Harness harness;
  RawClient a(harness.socket()), b(harness.socket());
  join_both(a, b);
  const ipc::UniqueFd fd = memory(8192);
  REQUIRE(a.register_region(fd.get(), 0, 4096, 4096, true).ok());
  const ipc::UniqueFd own = memory(4096);
  REQUIRE(a.register_region(own.get(), 1, 0, 4096, false).ok());

  const auto reply = b.map_region(0, 0);
  REQUIRE(reply.status.code == 0);
  CHECK(reply.offset == 4096);
  CHECK(reply.bytes == 4096);
  const auto theirs = ipc::Mapping::map(b.last_fds().at(0).get(), reply.offset, reply.bytes);
  const auto mine = ipc::Mapping::map(fd.get(), 4096, 4096);
  REQUIRE(theirs.ok());
  REQUIRE(mine.ok());
  // Its owner seals it once: from then on nobody maps it for writing, and the mappings that are there go on.
  CHECK(a.seal_region(0).ok());
  CHECK(a.seal_region(0).code() == StatusCode::kAlreadyExists);
  CHECK(contains(a.seal_region(1).text(), "is not shared host memory"));
  CHECK(a.seal_region(5).code() == StatusCode::kNotFound);
  CHECK_FALSE(ipc::Mapping::map(b.last_fds().at(0).get(), reply.offset, reply.bytes).ok());
  theirs.value().data()[17] = std::byte{99};
  CHECK(mine.value().data()[17] == std::byte{99});

  const Status not_shared = ipc::from_reply(b.map_region(0, 1).status);
  CHECK(not_shared.code() == StatusCode::kPermissionDenied);
  CHECK(contains(not_shared.text(), "did not register it as shared"));
  CHECK(ipc::from_reply(b.map_region(0, 5).status).code() == StatusCode::kNotFound);
  CHECK(ipc::from_reply(b.map_region(2, 0).status).code() == StatusCode::kOutOfRange);

  RawClient c(harness.socket());
  REQUIRE(c.hello("c").status.code == 0);
  REQUIRE(c.join("remote", 2, 0).status.code == 0);
  const Status other_node = ipc::from_reply(c.map_region(1, 0).status);
  CHECK(other_node.code() == StatusCode::kPermissionDenied);
  CHECK(contains(other_node.text(), "that rank is on node elsewhere"));
}

TEST_CASE("an exchange puts every rank's contribution on every board, round by round") {
  Harness harness;
  RawClient a(harness.socket()), b(harness.socket());
  join_both(a, b);
  auto exchange = RawClient::message<abi::Exchange>(MessageType::kExchange);
  exchange.round = 2;
  exchange.group = a.handle();
  CHECK(contains(ipc::from_reply(a.request<abi::PlainReply>(exchange).status).text(),
                 "exchange round 2, the next one is 1"));
  for (std::uint64_t round = 1; round <= 3; ++round) {
    exchange.round = round;
    std::memset(exchange.payload, static_cast<int>(10 * round), sizeof(exchange.payload));
    exchange.group = a.handle();
    exchange.header.sequence = 1000;
    REQUIRE(ipc::send_message(a.fd(), exchange).ok());
    std::memset(exchange.payload, static_cast<int>(10 * round + 1), sizeof(exchange.payload));
    exchange.group = b.handle();
    CHECK(b.request<abi::PlainReply>(exchange).status.code == 0);
    ipc::Packet packet;
    REQUIRE(a.receive(packet).ok());
    for (RawClient* client : {&a, &b}) {
      const auto* board = client->group_mapping().at<std::uint8_t>(client->group_segment().board_offset);
      CHECK(board[0] == 10 * round);
      CHECK(board[abi::kExchangeBytes - 1] == 10 * round);
      CHECK(board[abi::kExchangeBytes] == 10 * round + 1);
      CHECK(board[2 * abi::kExchangeBytes - 1] == 10 * round + 1);
    }
  }
}

TEST_CASE("a failure that one rank reports reaches the others' segments with its culprit") {
  Harness harness;
  RawClient a(harness.socket()), b(harness.socket());
  join_both(a, b);
  auto fail = RawClient::message<abi::FailGroup>(MessageType::kFailGroup);
  fail.group = b.handle();
  CHECK(contains(ipc::from_reply(b.request<abi::PlainReply>(fail).status).text(), "code = 0"));
  fail.code = static_cast<std::uint32_t>(StatusCode::kDataLoss);
  ipc::copy_text(fail.text, "checksum of\ntile 5 differs");
  CHECK(b.request<abi::PlainReply>(fail).status.code == 0);
  for (RawClient* client : {&a, &b}) {
    abi::GroupSegment& segment = client->group_segment();
    REQUIRE(eventually([&] { return std::atomic_ref<std::uint32_t>(segment.abort).load() != 0; }));
    CHECK(segment.abort == static_cast<std::uint32_t>(StatusCode::kDataLoss));
    CHECK(segment.failure.culprit == 1);
    CHECK(contains(segment.failure.text, "rank 1 (\"b\", pid "));
    CHECK(contains(segment.failure.text, "checksum of tile 5 differs"));
  }
  auto exchange = RawClient::message<abi::Exchange>(MessageType::kExchange);
  exchange.group = a.handle(), exchange.round = 1;
  CHECK(contains(ipc::from_reply(a.request<abi::PlainReply>(exchange).status).text(), "has failed: rank 1"));
  CHECK(a.leave().ok());
}

}  // namespace
}  // namespace mkernel::session::testing
