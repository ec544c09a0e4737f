// What channels of one tenant do to those of another that share their connection.
#include "tests/support/large_registration.h"
#include "tests/unit/daemon/transport/verbs/pair.h"

namespace mkernel::test {
namespace {

constexpr int kRounds = 100;

/// Traffic of another tenant, which goes on while `kRounds` ranks come and go beside it.
struct Neighbours {
  explicit Neighbours(TransportPair& pair_) : pair(pair_) {
    // Fewer puts in flight than Node submits at a time: something is left for others.
    for (std::uint64_t i = 0; i < 4; ++i) {
      channels.push_back(pair.stream(pair.a(), 1ULL << 40, 8, 4096, random_lengths(4096, i)));
    }
  }
  /// All of them.
  bool go_on() {
    std::vector<std::uint64_t> before;
    for (const auto& ends : channels) before.push_back(pair.b().arrived(ends.in));
    return pair.run_until([&] {
      for (std::size_t i = 0; i < channels.size(); ++i) {
        if (pair.b().arrived(channels[i].in) <= before[i] + 32) return false;
      }
      return true;
    });
  }
  /// Of both devices of a host, so far.
  std::uint64_t queue_pairs(const std::string& host) {
    return fabric_of(pair).queue_pairs(device_of(host, 0)) + fabric_of(pair).queue_pairs(device_of(host, 1));
  }
  void check_the_route() {
    CHECK(fabric_of(pair).received(device_of("node-b", 1)) == 0);
    for (const Node* node : {&pair.a(), &pair.b()}) {
      CHECK_MESSAGE(node->paths().empty(), node->paths().size() << " changes of a path, the first of them "
                                                                << node->paths().front().lost.text());
    }
    pair.a().stop();
    CHECK(pair.run(Threads::kOne) == "");
  }

  TransportPair& pair;
  std::vector<TransportPair::Ends> channels;
};

/// A rank of the second node in traffic, on one of the two links.
TransportPair::Ends doomed(TransportPair& pair, int round) {
  const auto ends = pair.stream(pair.a(), 1ULL << 40, 16, 65536, always(65536));
  REQUIRE(pair.run_until([&] { return pair.b().arrived(ends.in) > 3U + static_cast<unsigned>(round % 7); }));
  return ends;
}

// Its memory was taken back with puts on their way to it. The device refuses those and breaks the connection,
// and that was once taken for a lost path: everybody moved to another rail and back, with a warning.
TEST_CASE("a rank that dies in traffic leaves its neighbours on their route") {
  TransportPair pair;
  Neighbours neighbours(pair);
  const std::uint64_t before = neighbours.queue_pairs("node-a");
  for (int round = 0; round < kRounds; ++round) {
    const auto ends = doomed(pair, round);
    pair.b().close_channel(ends.in);
    REQUIRE(neighbours.go_on());
    CHECK(pair.a().channel_status(ends.out).ok());
    pair.a().close_channel(ends.out);
  }
  // Connections did break: there was something to keep a route through.
  CHECK(neighbours.queue_pairs("node-a") >= before + kRounds / 4);
  neighbours.check_the_route();
}

TEST_CASE("a channel that was quiet before it closed breaks no connection") {
  for (const bool at_receiver : {true, false}) {
    CAPTURE(at_receiver);
    TransportPair pair;
    Neighbours neighbours(pair);
    REQUIRE(neighbours.go_on());
    const std::uint64_t before = neighbours.queue_pairs("node-a");
    for (int round = 0; round < kRounds; ++round) {
      const auto ends = doomed(pair, round);
      Node& first = at_receiver ? pair.b() : pair.a();
      const ChannelId channel = at_receiver ? ends.in : ends.out;
      first.transport().quiesce(channel);
      REQUIRE(pair.run_until([&] { return first.transport().quiet(channel); }));
      first.close_channel(channel);
      pair.pump(round % 5);
      if (at_receiver) {
        pair.a().close_channel(ends.out);
      } else {
        pair.b().close_channel(ends.in);
      }
      REQUIRE(neighbours.go_on());
    }
    CHECK(neighbours.queue_pairs("node-a") == before);
    neighbours.check_the_route();
  }
}

TEST_CASE("a channel is not quiet before the sender has answered, or its connection has gone") {
  for (const bool answers : {true, false}) {
    CAPTURE(answers);
    TransportPair pair;
    const auto ends = pair.stream(pair.a(), 1ULL << 40, 16, 65536, always(65536));
    REQUIRE(pair.run_until([&] { return pair.b().arrived(ends.in) > 3; }));
    pair.b().transport().quiesce(ends.in);
    for (int i = 0; i < 100; ++i) pair.b().pump();  // the sender does nothing
    CHECK_FALSE(pair.b().transport().quiet(ends.in));
    if (!answers) {
      pair.a().kill();
      for (int i = 0; i < 100; ++i) pair.b().pump();
      CHECK_FALSE(pair.b().transport().quiet(ends.in));  // who knows what its device still does
      continue;
    }
    REQUIRE(pair.run_until([&] { return pair.b().transport().quiet(ends.in); }));
    const std::uint64_t arrived = pair.b().arrived(ends.in);
    pair.pump(100);
    CHECK(pair.b().arrived(ends.in) == arrived);
    CHECK(pair.violation() == "");
  }
}

// Both daemons close their ends of a group and open them again, each in its own time.
TEST_CASE("a channel whose receiver was closed attaches again when that is opened again") {
  TransportPair pair;
  Stream& stream = pair.make_stream(1ULL << 40, 8, 4096, always(4096));
  const ChannelId first = pair.b().receive(stream);
  const ChannelId out = pair.a().send(stream, pair.b().region_of(first));
  REQUIRE(pair.run_until([&] { return pair.b().arrived(first) > 20; }));
  pair.b().transport().quiesce(first);
  REQUIRE(pair.run_until([&] { return pair.b().transport().quiet(first); }));
  pair.b().close_channel(first);
  pair.pump(100);
  const std::uint64_t completed = pair.a().completed(out);
  CHECK(pair.a().channel_status(out).ok());
  const std::uint64_t queue_pairs = fabric_of(pair).queue_pairs(device_of("node-a", 0));
  // Its count begins at zero there: the receiver has been asked again, and says that it has lost puts.
  pair.b().receive(stream);
  REQUIRE(pair.run_until([&] { return !pair.a().channel_status(out).ok(); }));
  CHECK(pair.a().channel_status(out).code() == StatusCode::kDataLoss);
  CHECK(pair.a().completed(out) == completed);
  CHECK(fabric_of(pair).queue_pairs(device_of("node-a", 0)) == queue_pairs);
}

TEST_CASE("a channel whose writes are refused again and again fails, and others have peace") {
  TransportPair pair;
  const auto ends = pair.stream(pair.a(), 1ULL << 40, 4, 65536, always(65536));
  REQUIRE(pair.run_until([&] { return pair.b().arrived(ends.in) > 3; }));
  const std::string device = device_of("node-b", 0);
  pair.b().disturb = [&](Node&) {
    if (pair.a().channel_status(ends.out).ok()) fabric_of(pair).void_keys(device);
  };
  REQUIRE(pair.run_until([&] { return !pair.a().channel_status(ends.out).ok(); }));
  const Status why = pair.a().channel_status(ends.out);
  CHECK(why.code() == StatusCode::kPermissionDenied);
  CHECK_MESSAGE(contains(why.text(), "node node-b refused its writes 3 times in a row"), why.text());
  CHECK_MESSAGE(contains(why.text(), "QPN "), why.text());
  CHECK(pair.a().peer_status().ok());
  pair.b().close_channel(ends.in);
  Neighbours neighbours(pair);
  CHECK(neighbours.go_on());
  neighbours.check_the_route();
}

// Pinning a region's pages takes some tenths of a second for a gigabyte, and was once the proxy thread's
// work.
TEST_CASE("others go on while a large region is registered, at the sender and at the receiver") {
  for (const char* const host : {"node-a", "node-b"}) {
    CAPTURE(host);
    TransportPair pair;
    LargeRegistration(pair, fabric_of(pair), device_of(host, 0)).check_that_nobody_waits();
  }
}

}  // namespace
}  // namespace mkernel::test
