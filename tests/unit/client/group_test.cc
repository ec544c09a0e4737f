#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "tests/unit/client/ranks.h"

namespace mkernel::test {
namespace {

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

TEST_CASE("a group knows where its ranks live and is left when its handles are gone") {
  FakeDaemon daemon({.nodes = {"a", "a", "b", "b"}});
  with_groups(daemon, 4, [&](Group& group) {
    CHECK(group.world_size() == 4);
    CHECK(group.node_count() == 2);
    CHECK(group.name() == "test");
    CHECK(group.rank_info(3).node == 1);
    CHECK(group.rank_info(3).local_rank == 1);
    CHECK(group.rank_info(2).node_name == "b");
    check_ok(group.barrier());
  });
  CHECK(eventually([&] { return daemon.look().members == 0 && daemon.look().sessions == 0; }));
}

TEST_CASE("a daemon that names rings that there are not is not believed") {
  FakeDaemon daemon({.rails = 0b100, .rings = 2});
  auto session = Session::connect({.socket = daemon.socket(), .timeout = kLong});
  REQUIRE(session.ok());
  check_status(session->join(group_options(1, 0)).status(), StatusCode::kInternal,
               "rings that the session does not have");
}

TEST_CASE("a group outlives the session handle it came from") {
  FakeDaemon daemon;
  auto group = [&] {
    auto session = Session::connect({.socket = daemon.socket(), .timeout = kLong});
    REQUIRE(session.ok());
    return session->join(group_options(1, 0));
  }();
  REQUIRE_MESSAGE(group.ok(), group.status().to_string());
  check_ok(group->barrier());
}

TEST_CASE("group options out of range are refused by name, value and limit") {
  FakeDaemon daemon;
  auto session = Session::connect({.socket = daemon.socket(), .timeout = kLong});
  REQUIRE(session.ok());
  const auto refused = [&](auto change, const std::string& part) {
    GroupOptions options = group_options(2, 0);
    change(options);
    check_status(session->join(options).status(), StatusCode::kInvalidArgument, part);
  };
  refused([](GroupOptions& o) { o.name = ""; }, "group name ''");
  refused([](GroupOptions& o) { o.name = std::string(64, 'g'); }, "1 to 63");
  // The name itself is not shown: a terminal would take it for a command.
  refused([](GroupOptions& o) { o.name = "tp\x1b[2J"; },
          "group name holds byte 27 at position 2, allowed is printable ASCII");
  refused([](GroupOptions& o) { o.world_size = 0; }, "world_size = 0 is not 1..1024");
  refused([](GroupOptions& o) { o.rank = 2; }, "rank = 2 is not 0..1");
  refused([](GroupOptions& o) { o.lanes = 65; }, "lanes = 65 is not 1..64");
  refused([](GroupOptions& o) { o.region_capacity = 257; }, "region_capacity = 257 is not 1..256");
  refused([](GroupOptions& o) { o.timeout = 0ms; }, "timeout");
}

TEST_CASE("what the daemon says about a join reaches the caller") {
  FakeDaemon daemon;
  auto session = Session::connect({.socket = daemon.socket(), .timeout = kLong});
  REQUIRE(session.ok());
  auto first = session->join(group_options(1, 0));
  REQUIRE(first.ok());
  check_status(session->join(group_options(1, 0)).status(), StatusCode::kAlreadyExists, "rank 0 is taken");
}

TEST_CASE("exchange hands every contribution to every rank, round after round") {
  FakeDaemon daemon;
  with_groups(daemon, 3, [](Group& group) {
    for (int round = 0; round < 20; ++round) {
      const auto said = [&](std::uint32_t rank) {
        return bytes_of(
            std::string(rank * 100 + static_cast<unsigned>(round), static_cast<char>('a' + rank)));
      };
      const auto all = group.exchange(said(group.rank()));
      CHECK_MESSAGE(all.ok(), all.status().to_string());
      if (!all.ok()) return;
      for (std::uint32_t rank = 0; rank < 3; ++rank) CHECK(all.value()[rank] == said(rank));
    }
    check_status(group.exchange(std::vector<std::byte>(kMaxExchangeBytes + 1)).status(),
                 StatusCode::kInvalidArgument, "448");
  });
}

TEST_CASE("ranks that make different collective calls are told so, and can go on") {
  FakeDaemon daemon;
  with_groups(daemon, 2, [](Group& group) {
    const Status mixed = group.rank() == 0 ? group.barrier() : group.symmetric(64).status();
    check_status(mixed, StatusCode::kInvalidArgument, "rank 0 on node node0 made barrier");
    check_status(mixed, StatusCode::kInvalidArgument,
                 "rank 1 on node node0 made 'symmetric buffer of 64 bytes'");
    check_ok(group.barrier());
  });
}

TEST_CASE("a collective call that a rank never makes ends in a deadline and fails the group") {
  FakeDaemon daemon;
  daemon.ignore(abi::MessageType::kExchange);
  auto session = Session::connect({.socket = daemon.socket(), .timeout = kShort});
  REQUIRE(session.ok());
  GroupOptions options = group_options(1, 0);
  options.timeout = kShort;
  auto group = session->join(options);
  REQUIRE(group.ok());
  check_status(group->barrier(), StatusCode::kDeadlineExceeded, "collective call 1");
  check_status(group->status(), StatusCode::kDeadlineExceeded, "rank 0");
}

TEST_CASE("symmetric buffers have one region number, are zeroed and shared inside a node") {
  FakeDaemon daemon({.nodes = {"a", "a", "b"}});
  with_groups(daemon, 3, [](Group& group) {
    auto own = group.allocate(4096);  // on one rank more than on others: must not move the symmetric numbers
    auto extra =
        group.rank() == 1 ? group.allocate(64) : Result<HostBuffer>(Status(StatusCode::kCancelled, ""));
    auto first = group.symmetric(10000);
    auto second = group.symmetric(64);
    CHECK_MESSAGE((first.ok() && second.ok()), first.status().to_string());
    if (!first.ok() || !second.ok()) return;
    CHECK(first->region() == 0);
    CHECK(second->region() == 1);
    CHECK(first->bytes() == 10000);
    CHECK(std::all_of(first->data(), first->data() + 10000, [](std::byte b) { return b == std::byte{0}; }));
    check_ok(group.barrier());  // before anybody writes
    CHECK(first->peer(group.rank()) == first->data());
    const std::uint32_t neighbour = group.rank() ^ 1U;
    if (group.rank() < 2) {
      CHECK(first->peer(2) == nullptr);
      CHECK(first->peer(neighbour) != first->data());
      std::memset(first->peer(neighbour), static_cast<int>(group.rank() + 1), 10000);
    } else {
      CHECK(first->peer(0) == nullptr);
    }
    check_ok(group.barrier());
    const std::byte wanted{static_cast<unsigned char>(group.rank() < 2 ? neighbour + 1 : 0)};
    CHECK(std::all_of(first->data(), first->data() + 10000, [&](std::byte b) { return b == wanted; }));
    check_ok(group.barrier());
  });
}

TEST_CASE("symmetric sizes that differ name both ranks and both sizes, and leave nothing behind") {
  FakeDaemon daemon;
  with_groups(daemon, 3, [&](Group& group) {
    const auto buffer = group.symmetric(group.rank() == 2 ? 128 : 64);
    check_status(buffer.status(), StatusCode::kInvalidArgument,
                 "rank 0 on node node0 made 'symmetric buffer of 64");
    check_status(buffer.status(), StatusCode::kInvalidArgument,
                 "rank 2 on node node0 made 'symmetric buffer of 128");
    check_status(group.symmetric(group.rank() == 1 ? 0 : 64).status(), StatusCode::kInvalidArgument,
                 "rank 1");
    check_ok(group.barrier());
    CHECK(daemon.look().regions == 0);
    check_ok(group.barrier());
  });
}

TEST_CASE("regions come back: symmetric ones at the next collective call, own ones at once") {
  FakeDaemon daemon;
  with_groups(daemon, 2, [&](Group& group) {
    for (int i = 0; i < 30; ++i) {  // many times the capacity of 8
      auto buffer = group.symmetric(64);
      CHECK_MESSAGE(buffer.ok(), buffer.status().to_string());
      auto own = group.allocate(64);
      CHECK_MESSAGE(own.ok(), own.status().to_string());
    }
    check_ok(group.barrier());
    std::vector<SymmetricBuffer> all;
    for (int i = 0; i < 8; ++i) {
      auto buffer = group.symmetric(64);
      CHECK_MESSAGE(buffer.ok(), buffer.status().to_string());
      if (buffer.ok()) all.push_back(std::move(*buffer));
    }
    check_status(group.symmetric(64).status(), StatusCode::kResourceExhausted, "region_capacity");
    check_status(group.allocate(64).status(), StatusCode::kResourceExhausted, "all 8 regions");
    check_ok(group.barrier());
  });
}

TEST_CASE("the user's own memfd can be registered, a plain file or an unsealed memfd cannot") {
  FakeDaemon daemon;
  with_groups(daemon, 1, [](Group& group) {
    auto memory = ipc::create_shared_memory("test", 8192);
    CHECK(memory.ok());
    auto buffer = group.register_memory(memory->get(), 4096, 4096);
    CHECK_MESSAGE(buffer.ok(), buffer.status().to_string());
    memory->reset();  // the fd may go at once
    if (buffer.ok()) std::memset(buffer->data(), 1, 4096);
    check_status(group.register_memory(0, 0, 64).status(), StatusCode::kInvalidArgument, "memfd");
    auto again = ipc::create_shared_memory("test", 4096);
    check_status(group.register_memory(again->get(), 4096, 1).status(), StatusCode::kOutOfRange, "4096");
  });
}

TEST_CASE("a memfd that is sealed by its registration can be registered again while the session lives") {
  FakeDaemon daemon;
  auto memory = ipc::create_shared_memory("again", 4 * 4096);
  REQUIRE(memory.ok());
  const auto early = ipc::Mapping::map(memory->get(), 0, 4 * 4096);
  REQUIRE(early.ok());
  with_groups(daemon, 1, [&](Group& group) {
    for (int round = 0; round < 2; ++round) {
      const auto part = group.register_memory(memory->get(), 4096, 4096);
      CHECK_MESSAGE(part.ok(), part.status().to_string());
      const auto whole = group.register_memory(memory->get(), 0, 4 * 4096);
      CHECK_MESSAGE(whole.ok(), whole.status().to_string());
      if (!part.ok() || !whole.ok()) return;
      part->data()[round] = std::byte{7};
      CHECK(whole->data()[4096 + round] == std::byte{7});
      CHECK(early->data()[4096 + round] == std::byte{7});
    }
    CHECK_FALSE(ipc::Mapping::map(memory->get(), 0, 4096).ok());
  });
  // The session is over, and with it what it kept.
  with_groups(daemon, 1, [&](Group& group) {
    check_status(group.register_memory(memory->get(), 0, 4096).status(), StatusCode::kFailedPrecondition,
                 "F_SEAL_FUTURE_WRITE");
  });
}

TEST_CASE("memory is there before it is registered, and what stood in it stays") {
  // The daemon's stores would make the pages otherwise, and it would be charged for them.
  FakeDaemon daemon;
  with_groups(daemon, 1, [](Group& group) {
    auto memory = ipc::create_shared_memory("sparse", 64 * 4096);
    const auto mapping = ipc::Mapping::map(memory->get(), 0, 64 * 4096);
    mapping.value().data()[5 * 4096 + 7] = std::byte{42};
    CHECK(::lseek(memory->get(), 0, SEEK_HOLE) == 0);
    const auto buffer = group.register_memory(memory->get(), 4096, 63 * 4096);
    CHECK_MESSAGE(buffer.ok(), buffer.status().to_string());
    CHECK(::lseek(memory->get(), 4096, SEEK_HOLE) == 64 * 4096);
    CHECK(mapping.value().data()[5 * 4096 + 7] == std::byte{42});
    CHECK(group.allocate(1 << 20).ok());
    CHECK(group.symmetric(1 << 20).ok());
  });
}

TEST_CASE("a group's secret goes to the daemon as it is") {
  FakeDaemon daemon;
  auto options = group_options(2, 0);
  options.secret[0] = std::byte{7};
  options.secret[31] = std::byte{9};
  std::thread first([&] {
    auto session = Session::connect({.socket = daemon.socket(), .name = "first", .timeout = kLong});
    CHECK(session->join(options).ok());
  });
  while (daemon.look().members == 0) std::this_thread::yield();
  auto session = Session::connect({.socket = daemon.socket(), .name = "second", .timeout = kLong});
  REQUIRE(session.ok());
  check_status(session->join(group_options(2, 1)).status(), StatusCode::kDeadlineExceeded, "another owner");
  options.rank = 1;
  check_ok(session->join(options).status());
  first.join();
}

}  // namespace
}  // namespace mkernel::test
