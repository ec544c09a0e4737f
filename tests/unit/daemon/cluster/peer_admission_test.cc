// Who may be a peer: strangers, impostors and namesakes, over real gRPC on loopback.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "tests/unit/daemon/cluster/link_nodes.h"

namespace mkernel::cluster {
namespace {

/// A node that lets in whom it is configured with.
struct ClosedNode : Node {
  ClosedNode(boost::asio::io_context& context, const std::string& name, std::uint64_t boot_id,
             std::vector<std::string> peers = {})
      : Node(context, name, boot_id, std::move(peers)) {
    options.open = false;
  }
};

const PeerSnapshot& seen_at(const std::vector<PeerSnapshot>& peers, const std::string& address) {
  const auto found =
      std::find_if(peers.begin(), peers.end(), [&](const auto& peer) { return peer.address == address; });
  REQUIRE(found != peers.end());
  return *found;
}

}  // namespace

TEST_CASE("a node without peers does not listen; a reload opens and closes its port") {
  boost::asio::io_context io;
  ClosedNode a(io, "a", 1);
  REQUIRE(a.start().ok());
  CHECK(a.links->address().empty());
  ClosedNode b(io, "b", 2, {"127.0.0.1:1"});
  REQUIRE(b.start().ok());
  REQUIRE_FALSE(b.links->address().empty());
  REQUIRE(a.links->set_static_peers({b.links->address()}).ok());
  REQUIRE_FALSE(a.links->address().empty());
  REQUIRE(b.links->set_static_peers({a.links->address()}).ok());
  REQUIRE(run_until(io, [&] { return linked({&a, &b}); }));

  // A reload that leaves nobody closes the port and lets the peer go; the next one opens it again.
  const std::string port = a.links->address();
  REQUIRE(a.links->set_static_peers({}).ok());
  CHECK(a.links->address().empty());
  Script late(io, "late", 3);
  late.knock(port);
  REQUIRE(run_until(io, [&] { return late.closed.has_value(); }));
  CHECK(late.closed->code() == StatusCode::kUnavailable);
  CHECK(late.answers.empty());
  REQUIRE(run_until(io, [&] { return a.down.size() == 1; }));
  CHECK(contains(a.down[0], "node b "));
  CHECK(contains(a.down[0], "is no longer in peers.list of node a"));
  REQUIRE(run_until(io, [&] { return b.down.size() == 1; }));
  CHECK(run_until(io, [&] { return a.links->peers().empty(); }));
  REQUIRE(a.links->set_static_peers({b.links->address()}).ok());
  REQUIRE_FALSE(a.links->address().empty());
  REQUIRE(b.links->set_static_peers({a.links->address()}).ok());
  REQUIRE(run_until(io, [&] { return linked({&a, &b}); }));
  Script stranger(io, "stranger", 3);
  CHECK(refusal(io, stranger, a).code() == StatusCode::kPermissionDenied);
}

TEST_CASE("a daemon that is not in the list is refused by name and not dialled") {
  boost::asio::io_context io;
  ClosedNode a(io, "a", 1, {"127.0.0.1:1"}), b(io, "b", 2);
  REQUIRE(a.start().ok());
  b.options.peers = {a.links->address()};
  REQUIRE(b.start().ok());
  REQUIRE(a.links->set_static_peers({b.links->address()}).ok());
  REQUIRE(run_until(io, [&] { return linked({&a, &b}); }));

  // a and b are all that a is configured with, and both are there: nobody else can be a peer.
  Script stranger(io, "stranger", 3);
  const Status refused = refusal(io, stranger, a);
  CHECK(refused.code() == StatusCode::kPermissionDenied);
  CHECK(contains(refused.text(), "node stranger at " + stranger.address));
  CHECK(contains(refused.text(), "none of the peers that node a is configured with"));
  CHECK(stranger.heard.empty());
  CHECK(a.links->peers().size() == 1);
  CHECK(a.up.size() == 1);
}

TEST_CASE("while a configured peer is missing a stranger gets as far as a hello, and no further") {
  boost::asio::io_context io;
  ClosedNode a(io, "a", 1, {"127.0.0.1:1"});
  REQUIRE(a.start().ok());
  Script stranger(io, "stranger", 3);
  stranger.knock(a.links->address());
  REQUIRE(run_until(io, [&] { return !stranger.answers.empty(); }));
  CHECK(stranger.answers.front().hello().endpoints(0).address().empty());
  stranger.start();
  REQUIRE(run_until(io, [&] { return stranger.closed.has_value(); }));
  CHECK(a.up.empty());
  CHECK(stranger.heard.empty());
}

TEST_CASE("who knows a peer's name and boot id is not that peer: the daemon at its address is") {
  boost::asio::io_context io;
  ClosedNode a(io, "a", 1);
  Script b(io, "b", 2), impostor(io, "b", 2);
  impostor.address = b.address;
  a.options.peers = {b.address};
  REQUIRE(a.start().ok());
  // Until a knows the answer of b, an impostor is refused for another reason.
  REQUIRE(run_until(io, [&] { return !b.token.empty() && !a.state_of("b").empty(); }));
  impostor.knock(a.links->address());
  REQUIRE(run_until(io, [&] { return !impostor.answers.empty(); }));
  impostor.token = std::string(16, 'x');
  impostor.start();
  REQUIRE(run_until(io, [&] { return impostor.closed.has_value(); }));
  CHECK(impostor.closed->code() == StatusCode::kPermissionDenied);
  CHECK(contains(impostor.closed->text(), "does not know what node a said there"));
  CHECK(a.up.empty());

  link(io, b, a);
  CHECK(a.id_of("b") != 0);
  // It does not replace the stream of the real one either.
  impostor.knock(a.links->address());
  REQUIRE(run_until(io, [&] { return !impostor.answers.empty(); }));
  impostor.start();
  REQUIRE(run_until(io, [&] { return impostor.closed.has_value(); }));
  b.say(1);
  REQUIRE(run_until(io, [&] { return a.rounds["b"].size() == 1; }));
  CHECK(a.down.empty());
}

// A Start carries the tokens of many hellos. The long ones of two impostors made it too long for
// gRPC: for as long as they stayed the link to the real peer did not come up.
TEST_CASE("impostors with long tokens do not keep a peer out") {
  boost::asio::io_context io;
  ClosedNode a(io, "a", 1, {"127.0.0.1:1"}), b(io, "b", 2);
  REQUIRE(a.start().ok());
  Script one(io, "b", 2), two(io, "b", 2);
  for (Script* impostor : {&one, &two}) {
    const auto lengthen = [](v1::Hello& hello) { hello.set_token(std::string(40000, 'x')); };
    CHECK(contains(refusal(io, *impostor, a, lengthen).text(), "token of 40000 bytes, allowed are 64"));
  }
  b.options.peers = {a.links->address()};
  REQUIRE(b.start().ok());
  REQUIRE(a.links->set_static_peers({b.links->address()}).ok());
  CHECK(run_until(io, [&] { return linked({&a, &b}); }));
}

// A Start carried the tokens of the latest sixteen hellos.
TEST_CASE("many impostors do not push a peer's token out of the Start") {
  boost::asio::io_context io;
  ClosedNode a(io, "a", 1, {"127.0.0.1:1"});
  a.options.time_scale = 1;  // none of the streams is closed for its age, however busy the machine is
  REQUIRE(a.start().ok());
  Script b(io, "b", 2), impostor(io, "b", 2);
  b.knock(a.links->address());
  REQUIRE(run_until(io, [&] { return !b.answers.empty(); }));
  std::vector<std::shared_ptr<PeerStream>> open;
  for (int i = 0; i < 40; ++i) {
    impostor.knock(a.links->address(), [](v1::Hello& hello) { hello.set_token("of an impostor"); });
    REQUIRE(run_until(io, [&] { return !impostor.answers.empty(); }));
    open.push_back(impostor.out);
  }
  REQUIRE(a.links->set_static_peers({b.address}).ok());
  const auto is_start = [](const v1::PeerMessage& message) { return message.has_start(); };
  REQUIRE(run_until(io, [&] { return std::any_of(b.heard.begin(), b.heard.end(), is_start); }));
  const auto start = std::find_if(b.heard.begin(), b.heard.end(), is_start);
  const auto& tokens = start->start().tokens();
  CHECK(tokens.size() == 41);
  CHECK(std::count(tokens.begin(), tokens.end(), "of b") == 1);
}

TEST_CASE("a second daemon with a living peer's name and address is refused, and the peer lives on") {
  boost::asio::io_context io;
  Node a(io, "a", 1), b(io, "b", 2);
  SUBCASE("everybody may come in") {}
  SUBCASE("who is configured may come in") {
    a.options.open = b.options.open = false;
  }
  a.options.peers = b.options.peers = {"127.0.0.1:1"};
  REQUIRE(a.start().ok());
  REQUIRE(b.start().ok());
  REQUIRE(a.links->set_static_peers({b.links->address()}).ok());
  REQUIRE(b.links->set_static_peers({a.links->address()}).ok());
  REQUIRE(run_until(io, [&] { return linked({&a, &b}); }));
  Script clone(io, "b", 3);
  clone.address = b.links->address();  // the same file with `advertise`
  for (int times = 0; times < 3; ++times) {
    const Status refused = refusal(io, clone, a);
    CHECK(refused.code() == StatusCode::kAlreadyExists);
    CHECK(contains(refused.text(), b.links->address() + ", which lives: names must differ"));
  }
  a.say("b", 1);
  REQUIRE(run_until(io, [&] { return b.rounds["a"].size() == 1; }));
  CHECK(a.down.empty());
  CHECK(b.down.empty());
}

TEST_CASE(
    "a namesake that answers at another configured address is refused too, and says where the first is") {
  boost::asio::io_context io;
  ClosedNode a(io, "a", 1);
  Script b(io, "b", 2), twin(io, "b", 3);
  a.options.peers = {b.address};
  REQUIRE(a.start().ok());
  link(io, b, a);
  REQUIRE(a.links->set_static_peers({b.address, twin.address}).ok());
  REQUIRE(run_until(io, [&] { return !seen_at(a.links->peers(), twin.address).reason.empty(); }));
  CHECK(contains(seen_at(a.links->peers(), twin.address).reason,
                 "has the name of the node at " + b.address + ": names must differ"));
  CHECK(a.down.empty());
}

TEST_CASE("who is taken out of the list is let go by that name, and does not come back") {
  boost::asio::io_context io;
  ClosedNode a(io, "a", 1);
  Script b(io, "b", 2);
  a.options.peers = {b.address};
  REQUIRE(a.start().ok());
  link(io, b, a);
  REQUIRE(a.links->set_static_peers({"127.0.0.1:1"}).ok());
  CHECK(a.down.empty());  // never from inside the call
  REQUIRE(run_until(io, [&] { return a.down.size() == 1; }));
  CHECK(contains(a.down[0], "is no longer in peers.list of node a"));
  CHECK(run_until(io, [&] { return a.links->peers().size() == 1; }));
  CHECK(a.links->peers()[0].address == "127.0.0.1:1");
}

TEST_CASE("where everybody is let in, who is taken out of the list stays, and is named as not listed") {
  boost::asio::io_context io;
  Node a(io, "a", 1);
  Script b(io, "b", 2);
  a.options.peers = {b.address};
  REQUIRE(a.start().ok());
  link(io, b, a);
  CHECK(a.links->unlisted().empty());
  REQUIRE(a.links->set_static_peers({"127.0.0.1:1"}).ok());
  CHECK(a.links->unlisted() == std::set<std::string>{"node b at " + b.address});
  b.say(1);
  REQUIRE(run_until(io, [&] { return a.rounds["b"].size() == 1; }));
  CHECK(a.down.empty());
}

TEST_CASE("names and addresses of a hello are printable, and of a length that a host can have") {
  boost::asio::io_context io;
  Node a(io, "a", 1);
  REQUIRE(a.start().ok());
  const auto refused = [&](const auto& change) { return refusal(io, a, change); };
  CHECK(contains(refused([](v1::Hello& hello) { hello.set_node("b\x1b[2J"); }), "node name of 5 bytes"));
  CHECK(contains(refused([](v1::Hello& hello) { hello.set_software_version(std::string(65, '1')); }),
                 "software version of 65 bytes, allowed are 64"));
  CHECK(
      contains(refused([](v1::Hello& hello) { hello.set_address("127.0.0.1:1\n"); }), "address of 12 bytes"));
  CHECK(contains(refused([](v1::Hello& hello) { hello.set_address("unix:/run/other.sock"); }),
                 "no address to dial"));
  CHECK(contains(refused([](v1::Hello& hello) { hello.mutable_endpoints(0)->set_version(7); }),
                 "speaks version 7 between its tcp rails, node a version 0"));
  CHECK(a.links->peers().empty());
}

}  // namespace mkernel::cluster
