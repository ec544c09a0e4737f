// What the conformance suite cannot ask for: regions that go while puts fly, devices that die, a closed
// security group, and what is registered when.
#include "daemon/transport/efa/message.h"
#include "tests/support/large_registration.h"
#include "tests/unit/daemon/transport/efa/pair.h"

namespace mkernel::test {

std::unique_ptr<Wire> make_wire() {
  return std::make_unique<EfaWire>();
}

namespace {

TEST_CASE("a region that is retired is given up by its sender before it is deregistered, and may come back") {
  TransportPair pair;
  const auto ends = pair.stream(pair.a(), 4000, 16, 4096, always(4096));
  REQUIRE(pair.run_until([&] { return pair.b().arrived(ends.in) > 100; }));
  memory::Region& target = pair.b().region(pair.b().region_of(ends.in));
  CHECK(pair.b().transport().holds(target));
  CHECK(fabric_of(pair).registered(device_of("node-b", 0)) >= target.bytes);
  for (int round = 0; round < 20; ++round) {
    const std::uint64_t asked = pair.b().begun(ends.in);  // place() is called for a region, not for every put
    pair.b().transport().retire(target);
    REQUIRE(pair.run_until([&] { return pair.b().begun(ends.in) > asked; }));
    CHECK(fabric_of(pair).registered(device_of("node-b", 0)) ==
          target.bytes);  // the old registration has gone
  }
  CHECK(pair.run(Threads::kOne) == "");
  CHECK(pair.b().arrived(ends.in) == 4000);
  CHECK(pair.a().channel_status(ends.out).ok());
}

TEST_CASE(
    "a region is held until its sender has answered, and no longer, also when that has closed its channel") {
  for (const bool closes : {false, true}) {
    CAPTURE(closes);
    TransportPair pair;
    const auto ends = pair.stream(pair.a(), 1000000, 16, 4096, always(4096));
    REQUIRE(pair.run_until([&] { return pair.b().arrived(ends.in) > 100; }));
    memory::Region& target = pair.b().region(pair.b().region_of(ends.in));
    if (closes) pair.a().close_channel(ends.out);
    pair.a().stop();
    pair.b().transport().retire(target);
    for (int i = 0; i < 100; ++i) pair.b().transport().poll();  // the sender has not heard of it
    CHECK(pair.b().transport().holds(target));
    CHECK(fabric_of(pair).registered(device_of("node-b", 0)) > 0);
    if (!closes) REQUIRE(pair.run_until([&] { return pair.a().done(); }));
    CHECK(pair.run_until([&] { return !pair.b().transport().holds(target); }, std::chrono::seconds(5)));
    if (closes) CHECK(fabric_of(pair).registered(device_of("node-b", 0)) == 0);
  }
}

TEST_CASE("what a channel registered goes with it") {
  TransportPair pair;
  const auto ends = pair.stream(pair.a(), 10, 4, 4096, always(4096));
  CHECK(pair.run(Threads::kOne) == "");
  CHECK(fabric_of(pair).registered(device_of("node-a", 0)) > 0);
  CHECK(fabric_of(pair).registered(device_of("node-b", 0)) > 0);
  pair.a().close_channel(ends.out);
  pair.b().close_channel(ends.in);
  CHECK(fabric_of(pair).registered(device_of("node-a", 0)) == 0);
  CHECK(fabric_of(pair).registered(device_of("node-b", 0)) == 0);
}

TEST_CASE("small puts go inside their requests: the sender registers nothing for them") {
  TransportPair pair;
  const auto small = pair.stream(pair.a(), 500, 4, 32, random_lengths(32, 5));
  CHECK(pair.run(Threads::kOne) == "");
  CHECK(pair.b().arrived(small.in) == 500);
  CHECK(fabric_of(pair).registered(device_of("node-a", 0)) == 0);
  CHECK(fabric_of(pair).registered(device_of("node-b", 0)) > 0);
  pair.stream(pair.a(), 10, 4, 33, always(33));
  CHECK(pair.run(Threads::kOne) == "");
  CHECK(fabric_of(pair).registered(device_of("node-a", 0)) > 0);
}

TEST_CASE("a peer whose security group is closed: messages pass, no byte does") {
  TransportPair pair({.peer_timeout = std::chrono::milliseconds(300), .connect = false});
  fabric_of(pair).every_path({.down = true});
  pair.connect_a();
  pair.connect_b();
  CHECK(pair.run_until([&] { return !pair.a().peer_status().ok() && !pair.b().peer_status().ok(); },
                       std::chrono::seconds(20)));
  CHECK(!pair.a().connected());
  CHECK(!pair.b().connected());
  CHECK((contains(pair.a().peer_status().text(), "security group") ||
         contains(pair.b().peer_status().text(), "security group")));
  CHECK(contains(pair.a().peer_status().text(), "node-b"));
}

TEST_CASE("a device that dies fails the peers of its node, which say so to each other") {
  TransportPair pair;
  const auto ends = pair.stream(pair.a(), 1000000, 4, 4096, always(4096));
  REQUIRE(pair.run_until([&] { return pair.b().arrived(ends.in) > 3; }));
  fabric_of(pair).fail_device(device_of("node-b", 0));
  CHECK(pair.run_until([&] { return !pair.a().peer_status().ok() && !pair.b().peer_status().ok(); }));
  CHECK(contains(pair.b().peer_status().text(), "efa-node-b-0 reported"));
  CHECK(contains(pair.a().peer_status().text(), "efa-node-b-0 reported"));
  CHECK(pair.violation() == "");
}

TEST_CASE("memory that cannot be registered fails its channel, with the limit that is in the way") {
  TransportPair pair;
  const auto other = pair.stream(pair.a(), 100, 4, 512, always(512));
  REQUIRE(pair.run_until([&] { return pair.b().arrived(other.in) > 3; }));
  bool at_sender = false;
  SUBCASE("at the sender") {
    at_sender = true;
  }
  SUBCASE("at the receiver") {}
  fabric_of(pair).fail_registrations(at_sender ? device_of("node-a", 0) : device_of("node-b", 0), ENOMEM, 1);
  const auto ends = pair.stream(pair.a(), 10, 4, 4096, always(4096));
  CHECK(pair.run_until(
      [&] { return !pair.a().channel_status(ends.out).ok() && pair.a().completed(other.out) == 100; }));
  CHECK(pair.a().channel_status(ends.out).code() == StatusCode::kResourceExhausted);
  CHECK(contains(pair.a().channel_status(ends.out).text(), "registering"));
  CHECK(pair.a().peer_status().ok());
}

TEST_CASE("the version of its messages is what daemons compare when they greet each other") {
  TransportPair pair;
  CHECK(pair.a().transport().message_version() == transport::efa::kMessageVersion);
  CHECK(transport::efa::kMessageVersion > 0);  // 0 would say that there are no messages
}

TEST_CASE("hostile messages cost the peer its connection and nobody a crash") {
  TransportPair pair;
  pair.stream(pair.a(), 1000000, 4, 4096, always(4096));
  REQUIRE(pair.run_until([&] { return pair.a().connected() && pair.b().connected(); }));
  const std::vector<std::byte> nonsense(17, std::byte{0x5a});
  pair.b().transport().receive_from_peer(pair.b().peer(), nonsense);
  CHECK(pair.run_until([&] { return !pair.a().peer_status().ok() && !pair.b().peer_status().ok(); }));
  CHECK(contains(pair.b().peer_status().text(), "message of an RDMA transport"));
}

// Pinning a region's pages takes some tenths of a second for a gigabyte, and was once the proxy thread's
// work.
TEST_CASE("others go on while a large region is registered, at the sender and at the receiver") {
  for (const char* const host : {"node-a", "node-b"}) {
    CAPTURE(host);
    TransportPair pair;
    LargeRegistration registration(pair, fabric_of(pair), device_of(host, 0));
    const memory::Region& target = registration.check_that_nobody_waits();
    CHECK(fabric_of(pair).registered(device_of("node-b", 0)) < target.bytes);
  }
}

TEST_CASE("a connection that is lost while a large region is registered comes back and registers it again") {
  for (const char* const host : {"node-a", "node-b"}) {
    CAPTURE(host);
    TransportPair pair;
    LargeRegistration registration(pair, fabric_of(pair), device_of(host, 0));
    for (int round = 0; round < 5; ++round) {
      registration.others_go_on(100);
      const std::size_t told = pair.a().paths().size();
      fabric_of(pair).set_port(device_of(host, 0), 1, IBV_PORT_DOWN);
      REQUIRE(pair.run_until([&] { return pair.a().paths().size() > told; }));
      fabric_of(pair).set_port(device_of(host, 0), 1, IBV_PORT_ACTIVE);
    }
    registration.finish();
    // What the lost connections had asked for has gone: at each end there is one registration of each region.
    const std::uint64_t both = pair.a().source_of(registration.other().out).bytes +
                               pair.a().source_of(registration.large().out).bytes;
    for (const char* const end : {"node-a", "node-b"}) {
      CHECK(pair.run_until([&] { return fabric_of(pair).registered(device_of(end, 0)) == both; }));
    }
  }
}

}  // namespace
}  // namespace mkernel::test
