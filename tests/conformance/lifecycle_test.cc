// Refusals, closing, and peers that go away.
#include <cstring>

#include "tests/conformance/suite.h"
#include "tests/support/text.h"

namespace mkernel::test {
namespace {

TEST_CASE("a put outside the target region fails its channel and no other") {
  TransportPair pair;
  const auto healthy = pair.stream(pair.a(), 2000, 16, 1024, random_lengths(1024, 1));
  Stream& stray = pair.make_stream(50, 8, 4096, always(4096));
  pair.b().receive(stray);
  const ChannelId bad_region = pair.a().send(stray, 200);
  Stream& long_stream = pair.make_stream(50, 64, 4096, always(4096));
  Stream& short_stream = pair.make_stream(50, 1, 16, always(16));
  const std::uint16_t small = pair.b().region_of(pair.b().receive(short_stream));
  pair.b().receive(long_stream);
  const ChannelId bad_offset = pair.a().send(long_stream, small);

  CHECK(pair.run_until([&] {
    return !pair.a().channel_status(bad_region).ok() && !pair.a().channel_status(bad_offset).ok() &&
           pair.b().arrived(healthy.in) == 2000 && pair.a().completed(healthy.out) == 2000;
  }));
  CHECK(pair.violation() == "");
  CHECK(pair.a().channel_status(bad_region).code() == StatusCode::kOutOfRange);
  CHECK(pair.a().channel_status(bad_offset).code() == StatusCode::kOutOfRange);
  CHECK(contains(pair.a().channel_status(bad_region).text(), "node-b"));
  CHECK(contains(pair.a().channel_status(bad_region).text(), "200"));
  CHECK(pair.a().completed(bad_region) == 0);
  CHECK(pair.a().peer_status().ok());
  CHECK(pair.b().peer_status().ok());
}

TEST_CASE("a peer that goes away is reported within the time-out") {
  TransportPair pair({.peer_timeout = std::chrono::milliseconds(400)});
  const auto ends = pair.stream(pair.a(), 1000000, 4, 65536, always(65536));
  pair.stream(pair.b(), 1000000, 4, 65536, always(65536));
  REQUIRE(pair.run_until([&] { return pair.b().arrived(ends.in) > 3; }));
  pair.b().kill();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (pair.a().peer_status().ok() && std::chrono::steady_clock::now() < end) pair.a().pump();
  CHECK(pair.a().peer_status().code() == StatusCode::kUnavailable);
  CHECK(contains(pair.a().peer_status().text(), "node-b"));
  CHECK(pair.a().violation() == "");
  // Nothing moves any more, and nothing is said twice.
  const std::uint64_t completed = pair.a().completed(ends.out);
  for (int i = 0; i < 100; ++i) pair.a().pump();
  CHECK(pair.a().completed(ends.out) == completed);
  CHECK(pair.a().violation() == "");
}

TEST_CASE("a peer that never comes is reported within the time-out") {
  TransportPair pair({.peer_timeout = std::chrono::milliseconds(200), .connect = false});
  pair.connect_a();
  CHECK(pair.run_until([&] { return !pair.a().peer_status().ok(); }, std::chrono::seconds(20)));
  CHECK(contains(pair.a().peer_status().text(), "node-b"));
  CHECK(!pair.a().connected());
  CHECK(pair.violation() == "");
}

TEST_CASE("a connection meant for another life of the node is refused") {
  for (const bool wrong_at_a : {true, false}) {
    TransportPair pair({.peer_timeout = std::chrono::milliseconds(500), .connect = false});
    pair.connect_a(wrong_at_a ? 1000000 : 0);
    pair.connect_b(wrong_at_a ? 0 : 1000000);
    Node& mistaken = wrong_at_a ? pair.a() : pair.b();
    CHECK(pair.run_until([&] { return !mistaken.peer_status().ok(); }, std::chrono::seconds(20)));
    CHECK(contains(mistaken.peer_status().text(), "boot"));
    CHECK(!pair.a().connected());
    CHECK(!pair.b().connected());
    CHECK(pair.violation() == "");
  }
}

// Two daemons open the ends of a channel each in its own time. The emulated fabric once forgot what the
// receiver had said before the sender had opened its end: that channel carried nothing, ever.
TEST_CASE("the ends of a channel may be opened in either order") {
  for (const bool receiver_first : {true, false}) {
    TransportPair pair;
    const auto before = pair.stream(pair.a(), 10, 2, 512, always(512));  // the connection is up
    REQUIRE(pair.run_until([&] { return pair.a().completed(before.out) == 10; }));
    Stream& stream = pair.make_stream(20, 4, 1024, always(1024));
    const auto pause = [&pair] { pair.pump(200); };
    ChannelId in = 0, out = 0;
    if (receiver_first) {
      in = pair.b().receive(stream);
      pause();
      out = pair.a().send(stream, pair.b().region_of(in));
    } else {
      out = pair.a().send(stream, pair.b().region_of(before.in) + 1);
      pause();
      in = pair.b().receive(stream);
    }
    CHECK(pair.run_until([&] { return pair.b().arrived(in) == 20 && pair.a().completed(out) == 20; },
                         std::chrono::seconds(20)));
    CHECK(pair.violation() == "");
  }
}

TEST_CASE("closing a channel at the sender frees its sources at once") {
  for (const int pumps : {0, 1, 2, 5}) {
    TransportPair pair;
    const auto doomed = pair.stream(pair.a(), 1000, 4, 1U << 20, always(1U << 20));
    const auto other = pair.stream(pair.a(), 300, 8, 2048, random_lengths(2048, 4));
    REQUIRE(pair.run_until([&] { return pair.b().arrived(doomed.in) > 2; }));
    pair.pump(pumps);
    pair.a().pump();
    pair.a().close_channel(doomed.out);
    memory::Region& source = pair.a().source_of(doomed.out);
    std::memset(source.host(0), 0x77, source.bytes);
    // What arrives of the closed channel from now on was sent before, and must be whole: Node verifies it.
    CHECK(pair.run_until([&] { return pair.a().done() && pair.b().arrived(other.in) == 300; }));
    pair.pump(200);
    CHECK(pair.violation() == "");
  }
}

TEST_CASE("closing a channel at the receiver frees its targets at once") {
  for (const int pumps : {0, 1, 2, 5}) {
    TransportPair pair;
    const auto doomed = pair.stream(pair.a(), 1000, 4, 1U << 20, always(1U << 20));
    const auto other = pair.stream(pair.a(), 300, 8, 2048, random_lengths(2048, 4));
    REQUIRE(pair.run_until([&] { return pair.b().arrived(doomed.in) > 2; }));
    pair.pump(pumps);
    pair.b().close_channel(doomed.in);
    memory::Region& target = pair.b().region(pair.b().region_of(doomed.in));
    std::memset(target.host(0), 0x77, target.bytes);
    CHECK(pair.run_until([&] { return pair.b().arrived(other.in) == 300; }));
    pair.pump(200);
    CHECK(pair.violation() == "");
    const std::byte* bytes = target.host(0);
    CHECK(std::memcmp(bytes, bytes + 1, target.bytes - 1) == 0);
    CHECK(bytes[0] == std::byte{0x77});
  }
}

TEST_CASE("a transport that was closed says nothing any more") {
  TransportPair pair;
  const auto ends = pair.stream(pair.a(), 1000, 8, 8192, always(8192));
  REQUIRE(pair.run_until([&] { return pair.b().arrived(ends.in) > 10; }));
  pair.b().transport().close();
  const std::uint64_t arrived = pair.b().arrived(ends.in);
  for (int i = 0; i < 100; ++i) pair.b().transport().poll();
  CHECK(pair.b().arrived(ends.in) == arrived);
  CHECK(pair.b().violation() == "");
}

// A proxy thread sleeps on the event fd: one that stays readable costs a core, and nothing else shows it.
TEST_CASE("an owner that has nothing left to do sleeps, also when large regions were used") {
  TransportPair pair;
  for (Node* const node : {&pair.a(), &pair.b()}) {
    pair.stream(*node, 20, 2, 4U << 20, always(4U << 20));
    pair.stream(*node, 100, 16, 2048, always(2048));
  }
  CHECK(pair.run(Threads::kOne) == "");
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
  int turns = 0;  // each ends with a wait for the fds of both
  pair.run_until([&] {
    ++turns;
    return std::chrono::steady_clock::now() > end;
  });
  CHECK(turns < 200);
}

TEST_CASE("set_link is for fabrics that emulate") {
  TransportPair pair;
  const Status status = pair.a().transport().set_link(pair.a().peer(), LinkShape{});
  if (pair.wire().can(Fault::kDrop)) {
    CHECK(status.ok());
  } else {
    CHECK(status.code() == StatusCode::kUnimplemented);
    CHECK(contains(status.text(), pair.wire().name()));
  }
}

}  // namespace
}  // namespace mkernel::test
