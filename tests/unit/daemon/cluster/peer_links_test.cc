// Links over real gRPC on loopback: finding each other, restarts, deaths, and peers that do not keep to the
// protocol.
#include <doctest/doctest.h>

#include <thread>

#include "tests/unit/daemon/cluster/link_nodes.h"

namespace mkernel::cluster {

TEST_CASE("three nodes find each other, also when only one knows the others, and tell their rails") {
  boost::asio::io_context io;
  Node a(io, "a", 1), b(io, "b", 2);
  REQUIRE(a.start().ok());
  REQUIRE(b.start().ok());
  Node c(io, "c", 3, {a.links->address(), b.links->address()});
  REQUIRE(c.start().ok());
  REQUIRE(c.links->set_static_peers({a.links->address(), b.links->address(), c.links->address()})
              .ok());  // itself among them
  REQUIRE(a.links->set_static_peers({b.links->address()}).ok());
  REQUIRE(run_until(io, [&] { return linked({&a, &b, &c}); }));

  const PeerInfo& seen = a.up.at(a.id_of("c"));
  CHECK(seen.boot_id == 3);
  REQUIRE(seen.rails.size() == 2);
  CHECK(seen.rails[1].endpoint == "c:2");
  CHECK(seen.rails[1].identity.node == "c");
  CHECK(seen.rails[1].identity.boot_id == 3);
  CHECK(c.links->peers().size() == 2);
  CHECK(c.links->unreachable().empty());
  CHECK(c.state_of("a") == "alive");

  for (std::uint64_t round = 1; round <= 2000; ++round) c.say("a", round);
  REQUIRE(run_until(io, [&] { return a.rounds["c"].size() == 2000; }));
  CHECK(std::is_sorted(a.rounds["c"].begin(), a.rounds["c"].end()));
  CHECK(run_until(io, [&] { return c.links->peers().front().unacknowledged == 0; }));
}

TEST_CASE("a peer that stops says so, and comes back as a new peer") {
  // Two contexts: while b's control thread stops, a's goes on.
  boost::asio::io_context io, io_b;
  Node a(io, "a", 1);
  REQUIRE(a.start().ok());
  auto b = std::make_unique<Node>(io_b, "b", 2, std::vector{a.links->address()});
  REQUIRE(b->start().ok());
  const auto both_linked = [&] {
    io_b.restart();
    io_b.poll();
    return linked({&a, b.get()});
  };
  REQUIRE(run_until(io, both_linked));
  const std::string address = b->links->address();
  const transport::PeerId first = a.id_of("b");
  std::thread stopping([&] { b->stop(); });
  const bool told = run_until(io, [&] { return a.down.size() == 1; });
  stopping.join();
  REQUIRE(told);
  CHECK(contains(a.down[0], "node b is stopping"));
  CHECK(a.state_of("b") == "dead");

  b = std::make_unique<Node>(io_b, "b", 22, std::vector{a.links->address()}, address);
  REQUIRE(b->start().ok());
  REQUIRE(run_until(io, both_linked));
  CHECK(a.id_of("b") != first);
  CHECK(a.up.at(a.id_of("b")).boot_id == 22);
}

TEST_CASE("an occupied port is refused and names who holds it") {
  boost::asio::io_context io;
  Node a(io, "a", 1);
  REQUIRE(a.start().ok());
  Node b(io, "b", 2, {}, a.links->address());
  const Status refused = b.start();
  CHECK(refused.code() == StatusCode::kAlreadyExists);
  CHECK(contains(refused.text(), a.links->address()));
  CHECK(contains(refused.text(), "pid " + std::to_string(::getpid())));
}

TEST_CASE("a peer that is silent is warned about and dies, though its port is open") {
  boost::asio::io_context io;
  Node a(io, "a", 1, {}, "127.0.0.1:0", 0.02);
  REQUIRE(a.start().ok());
  Script b(io, "b", 2);
  link(io, b, a);
  // Nothing more from b: its keepalives end here.
  CHECK(run_until(io, [&] { return a.state_of("b") == "warn"; }));
  CHECK(run_until(io, [&] { return a.state_of("b") == "error"; }));
  REQUIRE(run_until(io, [&] { return a.down.size() == 1; }));
  CHECK(contains(a.down[0], "node b (boot 0000000000000002) has been silent"));
}

TEST_CASE("a peer whose port nobody holds any more dies early") {
  boost::asio::io_context io;
  Node a(io, "a", 1, {}, "127.0.0.1:0", 1.0);  // dead by silence would take a minute
  REQUIRE(a.start().ok());
  auto b = std::make_unique<Script>(io, "b", 2);
  link(io, *b, a);
  b.reset();
  REQUIRE(run_until(io, [&] { return a.down.size() == 1; }));
  CHECK(contains(a.down[0], "nobody answers at 127.0.0.1:"));
}

TEST_CASE("another boot id at the same address ends the old peer at once") {
  boost::asio::io_context io;
  Node a(io, "a", 1, {}, "127.0.0.1:0", 1.0);
  REQUIRE(a.start().ok());
  Script b(io, "b", 2);
  link(io, b, a);
  b.boot_id = 22;
  link(io, b, a);
  REQUIRE(a.down.size() == 1);
  CHECK(contains(a.down[0], "started anew"));
  CHECK(run_until(io, [&] { return a.id_of("b") != 0 && a.up.at(a.id_of("b")).boot_id == 22; }));
}

TEST_CASE("a broken stream is begun again and nothing is lost or taken twice") {
  boost::asio::io_context io;
  Node a(io, "a", 1, {}, "127.0.0.1:0", 0.2);
  REQUIRE(a.start().ok());
  Script b(io, "b", 2);
  link(io, b, a);
  for (std::uint64_t n = 1; n <= 5; ++n) b.say(n);
  for (std::uint64_t n = 1; n <= 3; ++n) a.say("b", n);
  const auto heard = [&](std::uint64_t sequence) {
    return std::count_if(b.heard.begin(), b.heard.end(),
                         [&](const auto& m) { return m.sequence() == sequence; });
  };
  REQUIRE(run_until(io, [&] { return a.rounds["b"].size() == 5 && heard(3) == 1; }));

  // Both directions break. What b has not acknowledged is said again; what b says again is taken once.
  b.accepted.back()->close({StatusCode::kUnavailable, "cable"});
  b.out->close({});
  b.knock(a.links->address());
  REQUIRE(run_until(io, [&] { return !b.answers.empty(); }));
  CHECK(b.answers.front().hello().epoch() == 1);
  CHECK(b.answers.front().hello().received() == 5);
  b.start();
  for (std::uint64_t n = 4; n <= 7; ++n) b.say(n);
  REQUIRE(run_until(io, [&] { return a.rounds["b"].size() == 7 && heard(3) == 2; }));
  CHECK(a.rounds["b"] == std::vector<std::uint64_t>{1, 2, 3, 4, 5, 6, 7});
  CHECK(a.down.empty());
}

TEST_CASE("a peer that was dropped, or has dropped us, is a new peer with nothing left over from before") {
  boost::asio::io_context io;
  Node a(io, "a", 1);
  REQUIRE(a.start().ok());
  Node b(io, "b", 2, {a.links->address()});
  REQUIRE(b.start().ok());
  REQUIRE(run_until(io, [&] { return linked({&a, &b}); }));
  a.say("b", 1);
  b.say("a", 1);
  REQUIRE(run_until(io, [&] { return a.rounds["b"].size() == 1 && b.rounds["a"].size() == 1; }));
  for (int times = 1; times <= 3; ++times) {
    const transport::PeerId id = a.id_of("b");
    a.links->drop(id, {StatusCode::kUnavailable, "all rails are lost"});
    CHECK(a.id_of("b") == id);  // not from inside the call
    REQUIRE(run_until(io, [&] { return b.down.size() == std::size_t(times) && linked({&a, &b}); }));
    CHECK(a.id_of("b") != id);
    CHECK(contains(a.down.back(), "all rails are lost"));
  }
  a.say("b", 2);
  REQUIRE(run_until(io, [&] { return b.rounds["a"].size() == 2; }));
  CHECK(b.rounds["a"] == std::vector<std::uint64_t>{1, 2});
}

TEST_CASE("hellos that do not fit are refused, both sides named") {
  boost::asio::io_context io;
  Node a(io, "a", 1);
  REQUIRE(a.start().ok());
  const auto refused = [&](const auto& change) { return refusal(io, a, change); };
  const std::string abi = refused([](v1::Hello& hello) { hello.set_abi_version(99); });
  CHECK(contains(abi, "FAILED_PRECONDITION"));
  CHECK(contains(abi, "node b"));
  CHECK(contains(abi, "ABI version 99, node a has " + std::to_string(abi::kVersion)));
  CHECK(contains(refused([](v1::Hello& hello) { hello.mutable_endpoints()->RemoveLast(); }),
                 "1 x tcp, node a has 2 x tcp"));
  CHECK(contains(refused([](v1::Hello& hello) { hello.mutable_endpoints(0)->set_kind("verbs"); }),
                 "2 x verbs"));
  CHECK(contains(refused([](v1::Hello& hello) { hello.set_node("a"); }), "names must differ"));
  CHECK(contains(refused([](v1::Hello& hello) { hello.set_node(""); }), "without a name"));
  CHECK(a.up.empty());
}

TEST_CASE("a peer that is refused is known all the same: who it is and what rails it has") {
  boost::asio::io_context io;
  Node a(io, "a", 1);
  REQUIRE(a.start().ok());
  Node b(io, "b", 2, {a.links->address()});
  b.options.endpoints.pop_back();
  REQUIRE(b.start().ok());
  REQUIRE(a.links->set_static_peers({b.links->address()}).ok());
  const auto sees = [](const Node& node, const std::string& other, const std::string& rails) {
    const auto peers = node.links->peers();
    return peers.size() == 1 && peers[0].node == other && peers[0].transport == rails &&
           peers[0].state == "connecting" && !peers[0].reason.empty();
  };
  CHECK(run_until(io, [&] { return sees(a, "b", "1 x tcp") && sees(b, "a", "2 x tcp"); }));
  CHECK(a.up.empty());
  CHECK(b.up.empty());
}

TEST_CASE("peers tell each other of their ports, and find out what their clocks differ by") {
  constexpr std::int64_t kAhead = 3000000000;
  boost::asio::io_context io;
  Node a(io, "a", 1);
  REQUIRE(a.start().ok());
  Node b(io, "b", 2, {a.links->address()});
  b.options.wall_clock = [] { return wall_time() + kAhead; };
  REQUIRE(b.start().ok());
  v1::NicPort port;
  port.set_name("mlx5_0:1");
  port.set_mtu(4096);
  b.links->set_ports({port});
  const auto seen_by = [](const Node& node) { return node.links->peers().at(0); };
  REQUIRE(run_until(io, [&] {
    return linked({&a, &b}) && seen_by(a).clock && seen_by(b).clock && seen_by(a).ports.size() == 1;
  }));
  CHECK(seen_by(a).ports[0].name() == "mlx5_0:1");
  CHECK(seen_by(a).transport == "2 x tcp");
  CHECK(seen_by(b).ports.empty());
  const auto ahead = *seen_by(a).clock, behind = *seen_by(b).clock;
  CHECK(std::abs(ahead.offset_ns - kAhead) <= ahead.round_trip_ns / 2 + 1);
  CHECK(std::abs(behind.offset_ns + kAhead) <= behind.round_trip_ns / 2 + 1);

  port.set_state("DOWN");
  b.links->set_ports({port});
  CHECK(run_until(io, [&] { return seen_by(a).ports.at(0).state() == "DOWN"; }));
}

TEST_CASE("two living nodes of one name: the second is refused") {
  boost::asio::io_context io;
  Node a(io, "a", 1);
  REQUIRE(a.start().ok());
  Node b(io, "b", 2, {a.links->address()});
  REQUIRE(b.start().ok());
  REQUIRE(run_until(io, [&] { return linked({&a, &b}); }));
  Script twin(io, "b", 3);
  const Status refused = refusal(io, twin, a);
  CHECK(refused.code() == StatusCode::kAlreadyExists);
  CHECK(contains(refused.text(), b.links->address()));
  CHECK(a.down.empty());
}

TEST_CASE("a peer that breaks the protocol goes down with the reason; others stay") {
  boost::asio::io_context io;
  Node a(io, "a", 1, {}, "127.0.0.1:0", 0.2);
  REQUIRE(a.start().ok());
  Node good(io, "good", 7, {a.links->address()}, "127.0.0.1:0", 0.2);
  REQUIRE(good.start().ok());
  REQUIRE(run_until(io, [&] { return linked({&a, &good}); }));
  const auto reason = [&](const std::function<void(Script&)>& misbehave) {
    Script b(io, "b", 2);
    a.down.clear();
    link(io, b, a);
    misbehave(b);
    REQUIRE(run_until(io, [&] { return a.down.size() == 1; }));
    return a.down[0];
  };
  CHECK(contains(reason([](Script& b) { b.say(5); }), "message 5 came after 0"));
  CHECK(contains(reason([](Script& b) {
                   v1::PeerMessage message;
                   message.mutable_keepalive()->set_received(1000);
                   b.out->send(message);
                 }),
                 "acknowledges what was never said"));
  CHECK(a.id_of("good") != 0);
}

TEST_CASE("a stream that does not begin with a hello, or not with a start after it, is closed") {
  boost::asio::io_context io;
  Node a(io, "a", 1);
  REQUIRE(a.start().ok());
  Script b(io, "b", 2);
  b.dial(a.links->address());
  b.say(1);
  REQUIRE(run_until(io, [&] { return b.closed.has_value(); }));
  CHECK(contains(b.closed->text(), "begins with a hello"));
  b.knock(a.links->address());
  b.say(1);
  REQUIRE(run_until(io, [&] { return b.closed.has_value(); }));
  CHECK(contains(b.closed->text(), "comes a start"));
  CHECK(a.up.empty());
}

TEST_CASE("a configured peer that nobody has heard of is named as not reachable") {
  boost::asio::io_context io;
  Node a(io, "a", 1, {"127.0.0.1:1"});
  REQUIRE(a.start().ok());
  REQUIRE(run_until(
      io, [&] { return a.links->unreachable().size() == 1 && contains(a.links->unreachable()[0], "("); }));
  CHECK(contains(a.links->unreachable()[0], "127.0.0.1:1 ("));
  REQUIRE(a.links->peers().size() == 1);
  CHECK(a.links->peers()[0].state == "connecting");
  CHECK_FALSE(a.links->peers()[0].reason.empty());
  REQUIRE(a.links->set_static_peers({}).ok());
  CHECK(run_until(io, [&] { return a.links->peers().empty(); }));
}

TEST_CASE("peers are found by a DNS name") {
  boost::asio::io_context io;
  Node a(io, "a", 1);
  REQUIRE(a.start().ok());
  Node b(io, "b", 2);
  const std::string address = a.links->address();
  b.options.dns = "localhost" + address.substr(address.rfind(':'));
  REQUIRE(b.start().ok());
  CHECK(run_until(io, [&] { return linked({&a, &b}); }));
}

}  // namespace mkernel::cluster
