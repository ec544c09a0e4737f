// Floods: of messages to a peer that does not keep up, and of streams that say nothing. Over the fake wire,
// so that the test decides how far everybody gets.
#include <doctest/doctest.h>

#include <chrono>
#include <map>

#include "daemon/cluster/peer_hello.h"
#include "tests/unit/daemon/cluster/fake_wire.h"
#include "tests/unit/daemon/cluster/link_nodes.h"

namespace mkernel::cluster {
namespace {

constexpr const char* kPeer = "10.0.0.2:7600";
constexpr std::chrono::milliseconds kShortPatience{50};

/// Node a with one configured peer b, whose end of both streams is the test's.
struct Flooded final : PeerEvents {
  explicit Flooded(double time_scale = 100) {  // no keepalive comes by itself
    PeerLinksOptions options;
    options.node = "a";
    options.boot_id = 1;
    options.listen = "10.0.0.1:7600";
    options.peers = {kPeer};
    options.transport = "tcp";
    options.endpoints = {"a:1"};
    options.time_scale = time_scale;
    options.least_patience = kShortPatience;
    auto made = std::make_unique<FakeWire>();
    wire = made.get();
    auto started = PeerLinks::start(io, options, *this, std::move(made));
    REQUIRE(started.ok());
    links = std::move(started).value();
    run();
  }

  void run() {
    io.restart();
    io.poll();
  }
  static PeerLinksOptions b() {
    PeerLinksOptions options;
    options.node = "b";
    options.boot_id = 2;
    options.transport = "tcp";
    options.endpoints = {"b:1"};
    return options;
  }
  std::shared_ptr<FakeStream> hello(const std::string& host) {
    auto stream = wire->knock(host);
    v1::PeerMessage message;
    *message.mutable_hello() = dialling_hello(b(), kPeer, "of b");
    stream->say(message);
    run();
    return stream;
  }
  void link() {
    out = wire->dialled[kPeer].at(0);
    in = hello("10.0.0.2");
    v1::PeerMessage message;
    *message.mutable_hello() = dialling_hello(b(), kPeer, "");
    message.mutable_hello()->set_epoch(1);
    out->say(message);
    run();
    message.Clear();
    message.mutable_start()->set_epoch(1);
    message.mutable_start()->add_tokens(out->sent.at(0).hello().token());
    in->say(message);
    run();
    REQUIRE(peer != 0);
  }
  void say(std::size_t count) {
    for (std::size_t n = 0; n < count; ++n) {
      v1::PeerMessage message;
      message.mutable_contribution()->set_round(++said);
      links->send(peer, message);
    }
  }
  void acknowledge(std::uint64_t received) {
    v1::PeerMessage message;
    message.mutable_keepalive()->set_received(received);
    in->say(message);
    run();
  }

  void peer_up(const PeerInfo& info) override { peer = info.id; }
  void peer_down(transport::PeerId, const Status& why) override { down = why; }
  void received(transport::PeerId, const v1::PeerMessage&) override { ++heard; }
  void congestion_cleared() override { ++cleared; }

  boost::asio::io_context io;
  FakeWire* wire = nullptr;
  std::unique_ptr<PeerLinks> links;
  std::shared_ptr<FakeStream> out, in;
  transport::PeerId peer = 0;
  std::uint64_t said = 0;
  int cleared = 0, heard = 0;
  std::optional<Status> down;
};

/// Numbers of the messages that have gone out.
std::vector<std::uint64_t> sequences(const FakeStream& stream) {
  std::vector<std::uint64_t> list;
  for (const v1::PeerMessage& message : stream.sent) {
    if (message.sequence() != 0) list.push_back(message.sequence());
  }
  return list;
}

}  // namespace

TEST_CASE("a stream that waits in the full queue of a port is not given up for good") {
  Flooded a(0.001);
  // The other side comes to a stream when it has waited for so long, and not before.
  constexpr auto kQueue = 3 * kShortPatience;
  using Clock = std::chrono::steady_clock;
  std::map<const FakeStream*, Clock::time_point> since;
  const auto end = Clock::now() + std::chrono::seconds(60);
  std::shared_ptr<FakeStream> reached;
  while (reached == nullptr && Clock::now() < end) {
    a.io.restart();
    a.io.run_for(std::chrono::milliseconds(1));
    const auto& dialled = a.wire->dialled[kPeer];
    for (const auto& stream : dialled) since.try_emplace(stream.get(), Clock::now());
    const auto& last = dialled.back();
    if (!last->closed && Clock::now() - since.at(last.get()) > kQueue) reached = last;
  }
  REQUIRE(reached != nullptr);
  CHECK(a.wire->dialled[kPeer].size() > 1);  // the first ones were given up sooner
}

TEST_CASE("a peer that is far behind is congested until it has caught up, and stays up") {
  Flooded a;
  a.link();
  a.say(PeerBus::kCongestedAbove);
  CHECK_FALSE(a.links->congested());
  a.say(1);
  CHECK(a.links->congested());
  a.acknowledge(a.said - PeerBus::kCongestedBelow - 1);
  CHECK(a.links->congested());
  CHECK(a.cleared == 0);
  a.acknowledge(a.said - PeerBus::kCongestedBelow);
  CHECK_FALSE(a.links->congested());
  CHECK(a.cleared == 1);
  // Who goes down is not waited for.
  a.say(PeerBus::kCongestedAbove);
  CHECK(a.links->congested());
  a.links->drop(a.peer, {StatusCode::kUnavailable, "gone"});
  a.run();
  CHECK_FALSE(a.links->congested());
  CHECK(a.cleared == 2);
  CHECK(a.down.has_value());
}

TEST_CASE("a full stream gets no more; the rest goes out in order when it has room again") {
  Flooded a;
  a.link();
  const std::size_t before = a.out->sent.size();
  a.out->room = before + 10;
  a.say(1000);
  CHECK(a.out->sent.size() == before + 10);
  a.out->drain(500);
  CHECK(a.out->sent.size() == before + 510);
  a.acknowledge(400);
  a.out->drain(2000);
  const auto list = sequences(*a.out);
  REQUIRE(list.size() == 1000);
  for (std::size_t n = 0; n < list.size(); ++n) CHECK(list[n] == n + 1);
}

TEST_CASE("an acknowledgement that found the stream full comes first when there is room") {
  Flooded a;
  a.link();
  a.out->room = 0;
  a.say(5);
  const std::size_t before = a.out->sent.size();
  for (std::uint64_t n = 1; n <= 256; ++n) {
    v1::PeerMessage message;
    message.set_sequence(n);
    message.mutable_contribution()->set_round(n);
    a.in->say(message);
  }
  CHECK(a.heard == 256);
  CHECK(a.out->sent.size() == before);
  a.out->drain(3);
  REQUIRE(a.out->sent.size() == before + 3);
  CHECK(a.out->sent[before].keepalive().received() == 256);
  CHECK(a.out->sent[before + 1].sequence() == 1);
}

TEST_CASE("what one stream did not get out the next one says, from where the peer has got to") {
  Flooded a;
  a.link();
  a.out->room = a.out->sent.size() + 10;
  a.say(100);
  a.out->hang_up();
  a.run();
  const auto in_again = a.hello("10.0.0.2");
  REQUIRE(a.wire->dialled[kPeer].size() == 2);
  const auto out_again = a.wire->dialled[kPeer][1];
  v1::PeerMessage answer;
  *answer.mutable_hello() = dialling_hello(Flooded::b(), kPeer, "");
  answer.mutable_hello()->set_epoch(1);
  answer.mutable_hello()->set_received(10);
  out_again->say(answer);
  a.run();
  const auto list = sequences(*out_again);
  REQUIRE(list.size() == 90);
  CHECK(list.front() == 11);
  CHECK(list.back() == 100);
  CHECK_FALSE(a.down);
}

TEST_CASE("silent streams of one host push each other out, and nobody else") {
  Flooded a;
  const auto quiet = a.wire->knock("10.0.0.3");
  std::vector<std::shared_ptr<FakeStream>> flood;
  for (int n = 0; n < 1000; ++n) flood.push_back(a.wire->knock("10.0.0.66"));
  const auto open = std::count_if(flood.begin(), flood.end(), [](const auto& one) { return !one->closed; });
  CHECK(open == 256);
  CHECK_FALSE(flood.back()->closed);
  REQUIRE(flood.front()->closed);
  CHECK(flood.front()->closed->text() == "more than 256 streams that have not begun");
  CHECK_FALSE(quiet->closed);
  a.link();
  CHECK(a.peer != 0);
}

TEST_CASE("silent streams of many hosts: the oldest makes room for a peer") {
  Flooded a;
  std::vector<std::shared_ptr<FakeStream>> flood;
  for (int n = 0; n < 5000; ++n) flood.push_back(a.wire->knock("10.1.0." + std::to_string(n % 100)));
  const auto open = std::count_if(flood.begin(), flood.end(), [](const auto& one) { return !one->closed; });
  CHECK(open == 4096);
  CHECK(flood[900]->closed);
  CHECK_FALSE(flood[1000]->closed);
  a.link();
  CHECK(a.peer != 0);
}

}  // namespace mkernel::cluster
