// A peer that is known and connected, and says what it should not.
#include <cstring>

#include "proto/ipc/packet.h"
#include "tests/unit/daemon/transport/tcp/harness.h"

namespace mkernel::transport::tcp {
namespace {

constexpr std::uint64_t kKey = 11;

/// End b (boot id 9) and a raw peer (boot id 4) past the handshake, with one inbound and one outbound
/// channel.
struct Rig {
  End b{9};
  PeerSecret secret = raw_secret(b, 4);
  std::unique_ptr<RawPeer> raw;

  Rig() {
    REQUIRE(b.transport().connect(kPeer, {{"raw", 4}, "127.0.0.1:9"}).ok());
    agree(b, secret);
    REQUIRE(b.transport().open_inbound(1, kPeer, kKey).ok());
    REQUIRE(b.transport().open_outbound(2, kPeer, kKey + 1).ok());
    dial();
  }

  void dial() {
    raw = std::make_unique<RawPeer>(b);
    REQUIRE(raw->greet(raw->hello(4), secret).code == 0);
    OpenFrame open{};
    REQUIRE(raw->receive(&open, sizeof(open)));
    CHECK(open.type == FrameType::kOpen);
    CHECK(open.key == kKey + 1);
  }

  void put(std::uint64_t number, std::uint64_t key, std::uint64_t offset, std::uint32_t length,
           char content) {
    raw->say(PutFrame{FrameType::kPut, 0, to_wire(number), length, key, offset, 0, {}});
    const std::vector<char> payload(length, content);
    raw->send(payload.data(), payload.size());
  }

  std::uint64_t held() {
    HeldFrame held{};
    REQUIRE(raw->receive(&held, sizeof(held)));
    CHECK(held.type == FrameType::kHeld);
    CHECK(held.key == kKey);
    return held.count;
  }

  char at(std::uint64_t offset) { return static_cast<char>(*b.region().host(offset)); }
};

TEST_CASE("a put that is held already is not written again, on the same connection or after a replay") {
  Rig rig;
  rig.raw->say(OpenFrame{FrameType::kOpen, {}, kKey});
  CHECK(rig.held() == 0);
  rig.put(1, kKey, 0, 100, 'a');
  CHECK(rig.held() == 1);
  rig.put(1, kKey, 0, 100, 'X');
  rig.put(2, kKey, 100, 100, 'b');
  CHECK(rig.held() == 2);
  CHECK(rig.at(0) == 'a');

  rig.dial();  // the old connection is replaced: fenced
  rig.raw->say(OpenFrame{FrameType::kOpen, {}, kKey});
  CHECK(rig.held() == 2);
  rig.put(1, kKey, 0, 100, 'X');
  rig.put(2, kKey, 100, 100, 'X');
  rig.put(3, kKey, 200, 100, 'c');
  CHECK(rig.held() == 3);
  CHECK(rig.at(0) == 'a');
  CHECK(rig.at(199) == 'b');
  CHECK(rig.at(299) == 'c');
  CHECK(rig.b.tcp().statistics().puts_duplicate == 3);
  CHECK(rig.b.arrivals[1] == 3);
}

TEST_CASE("half a put is forgotten with its connection") {
  Rig rig;
  rig.raw->say(PutFrame{FrameType::kPut, 0, 1, 1000, kKey, 0, 0, {}});
  const std::vector<char> half(500, 'h');
  rig.raw->send(half.data(), half.size());
  CHECK(run({&rig.b}, [&] { return rig.at(499) == 'h'; }));
  rig.dial();
  rig.raw->say(OpenFrame{FrameType::kOpen, {}, kKey});
  CHECK(rig.held() == 0);
  rig.put(1, kKey, 0, 1000, 'w');
  CHECK(rig.held() == 1);
  CHECK(rig.at(0) == 'w');
  CHECK(rig.at(999) == 'w');
}

TEST_CASE("puts for channels nobody knows are read and thrown away") {
  Rig rig;
  rig.put(1, 999, 0, 300000, 'X');
  rig.put(1, kKey, 0, 10, 'a');
  CHECK(rig.held() == 1);
  CHECK(rig.at(10) != 'X');
  CHECK(rig.b.tcp().statistics().puts_discarded == 1);
}

TEST_CASE("a refused put fails the channel for good, with the reason, also after a new connection") {
  Rig rig;
  const auto refused = [&] {
    RefusedFrame frame{};
    REQUIRE(rig.raw->receive(&frame, sizeof(frame)));
    CHECK(frame.type == FrameType::kRefused);
    CHECK(frame.key == kKey);
    CHECK(frame.code == static_cast<std::uint32_t>(StatusCode::kOutOfRange));
    CHECK(contains(std::string(ipc::text_of(frame.text)), "no such place"));
  };
  rig.put(1, kKey, ~0ULL - 10, 100, 'X');  // offset + length overflows
  refused();
  rig.put(2, kKey, 0, 100, 'X');
  rig.dial();
  rig.raw->say(OpenFrame{FrameType::kOpen, {}, kKey});
  refused();
  CHECK(rig.at(0) != 'X');
  CHECK(rig.b.arrivals.empty());
}

TEST_CASE("what makes no sense ends the connection, and the next one works") {
  Rig rig;
  const auto ends = [&](auto say) {
    say();
    CHECK(rig.raw->closed());
    rig.dial();
    rig.raw->say(OpenFrame{FrameType::kOpen, {}, kKey});
    CHECK(rig.held() == 0);
  };
  SUBCASE("no frame") {
    ends([&] { rig.raw->send("\xff nonsense", 10); });
  }
  SUBCASE("a put larger than any put") {
    ends([&] { rig.raw->say(PutFrame{FrameType::kPut, 0, 1, 0xffffffffU, kKey, 0, 0, {}}); });
  }
  SUBCASE("a put out of order") {
    ends([&] { rig.raw->say(PutFrame{FrameType::kPut, 0, 2, 8, kKey, 0, 0, {}}); });
  }
  SUBCASE("a put before the first") {
    ends([&] { rig.raw->say(PutFrame{FrameType::kPut, 0, 0, 8, kKey, 0, 0, {}}); });
  }
  CHECK(rig.b.tcp().statistics().connections_lost == 1);
  CHECK(rig.b.peer_failure.ok());
}

TEST_CASE("frames of a put that do not fit together end the connection, and the put comes again") {
  Rig rig;
  const auto frame = [&](std::uint8_t continues, WireSequence number, std::uint32_t length,
                         std::uint32_t rest, std::uint64_t offset = 0) {
    rig.raw->say(PutFrame{FrameType::kPut, continues, number, length, kKey, offset, 0, 0, rest});
    const std::vector<char> payload(length, 'f');
    if (length > 0) rig.raw->send(payload.data(), payload.size());
  };
  SUBCASE("goes on with what was never begun") {
    frame(1, 1, 100, 0);
  }
  SUBCASE("goes on with more than was left") {
    frame(0, 1, 100, 100);
    frame(1, 1, 100, 1);
  }
  SUBCASE("goes on with less than was left") {
    frame(0, 1, 100, 100);
    frame(1, 1, 99, 0);
  }
  SUBCASE("begins another put in between") {
    frame(0, 1, 100, 100);
    frame(0, 2, 100, 0);
  }
  SUBCASE("begins the same put again") {
    frame(0, 1, 100, 100);
    frame(0, 1, 100, 100);
  }
  SUBCASE("is empty, and the put is not") {
    frame(0, 1, 0, 100);
  }
  SUBCASE("is longer than a frame may be") {
    rig.raw->say(PutFrame{FrameType::kPut, 0, 1, kMaxFrameBytes + 1, kKey, 0, 0, 0, 0});
  }
  SUBCASE("belongs to a put larger than any, also where the sum overflows") {
    rig.raw->say(PutFrame{FrameType::kPut, 0, 1, 100, kKey, 0, 0, 0, 0xffffffffU});
  }
  CHECK(rig.raw->closed());
  CHECK(rig.b.arrivals.empty());
  CHECK_FALSE(rig.b.transport().holds(rig.b.region()));
  rig.dial();
  rig.raw->say(OpenFrame{FrameType::kOpen, {}, kKey});
  CHECK(rig.held() == 0);
  frame(0, 1, 100, 200);
  frame(1, 1, 150, 50, 999999);  // only the first frame says where
  CHECK(run({&rig.b}, [&] { return rig.b.transport().holds(rig.b.region()); }));
  frame(1, 1, 50, 0);
  CHECK(rig.held() == 1);
  CHECK(rig.at(299) == 'f');
  CHECK(rig.at(300) != 'f');
}

TEST_CASE("a put whose end lies outside the region is refused at its first frame") {
  Rig rig;
  rig.raw->say(PutFrame{FrameType::kPut, 0, 1, 100, kKey, rig.b.region().bytes - 150, 0, 0, 100});
  const std::vector<char> payload(100, 'X');
  rig.raw->send(payload.data(), payload.size());
  RefusedFrame refused{};
  REQUIRE(rig.raw->receive(&refused, sizeof(refused)));
  CHECK(refused.code == static_cast<std::uint32_t>(StatusCode::kOutOfRange));
  CHECK(rig.at(rig.b.region().bytes - 150) != 'X');
  rig.raw->say(PutFrame{FrameType::kPut, 1, 1, 100, kKey, 0, 0, 0, 0});  // what comes of it is thrown away
  rig.raw->send(payload.data(), payload.size());
  rig.raw->say(OpenFrame{FrameType::kOpen, {}, kKey});
  REQUIRE(rig.raw->receive(&refused, sizeof(refused)));
  CHECK(refused.type == FrameType::kRefused);
  CHECK(rig.b.tcp().statistics().connections_lost == 0);
  CHECK(rig.b.tcp().statistics().puts_discarded == 1);
}

TEST_CASE("a sender that closes a channel in the middle of a put leaves nothing held, and may begin again") {
  Rig rig;
  rig.raw->say(PutFrame{FrameType::kPut, 0, 1, 100, kKey, 0, 0, 0, 100});
  const std::vector<char> payload(200, 'h');
  rig.raw->send(payload.data(), 100);
  CHECK(run({&rig.b}, [&] { return rig.at(99) == 'h'; }));
  CHECK(rig.b.transport().holds(rig.b.region()));
  rig.raw->say(ClosedFrame{FrameType::kClosed, {}, 999});  // nobody's: ignored
  rig.raw->say(ClosedFrame{FrameType::kClosed, {}, kKey});
  CHECK(run({&rig.b}, [&] { return !rig.b.transport().holds(rig.b.region()); }));
  rig.raw->say(ClosedFrame{FrameType::kClosed, {}, kKey});  // and nothing to close
  rig.put(1, kKey, 0, 200, 'n');
  CHECK(rig.held() == 1);
  CHECK(rig.at(199) == 'n');
}

TEST_CASE("a receiver that claims more than was sent fails the channel, not the peer") {
  Rig rig;
  const Put puts[] = {rig.b.put(2, 1, 0, 8), rig.b.put(2, 2, 0, 8)};
  REQUIRE(rig.b.transport().submit(puts) == 2);
  rig.raw->say(HeldFrame{FrameType::kHeld, {}, kKey + 1, 0});
  struct {
    PutFrame frame;
    char payload[8];
  } put[2];
  REQUIRE(rig.raw->receive(put, sizeof(put)));
  CHECK(put[0].frame.sequence == 1);
  CHECK(put[1].frame.sequence == 2);
  CHECK(std::memcmp(put[1].payload, rig.b.region().host(0), 8) == 0);
  rig.raw->say(HeldFrame{FrameType::kHeld, {}, 12345, 7});  // nobody's channel: ignored
  rig.raw->say(HeldFrame{FrameType::kHeld, {}, kKey + 1, 1});
  CHECK(run({&rig.b}, [&] { return rig.b.completions[2] == 1; }));
  rig.raw->say(HeldFrame{FrameType::kHeld, {}, kKey + 1, 3});
  CHECK(run({&rig.b}, [&] { return rig.b.channel_failures.contains(2); }));
  CHECK(rig.b.channel_failures.at(2).code() == StatusCode::kDataLoss);
  CHECK(contains(rig.b.channel_failures.at(2).text(), "holds 3 puts"));
  CHECK(rig.b.completions[2] == 1);
  CHECK(rig.b.peer_failure.ok());
}

TEST_CASE("a receiver that forgot what it held fails the channel: replay is impossible") {
  Rig rig;
  const Put put = rig.b.put(2, 1, 0, 8);
  REQUIRE(rig.b.transport().submit({&put, 1}) == 1);
  rig.raw->say(HeldFrame{FrameType::kHeld, {}, kKey + 1, 0});
  rig.raw->say(HeldFrame{FrameType::kHeld, {}, kKey + 1, 0});  // said twice: nothing new
  std::byte bytes[sizeof(PutFrame) + 8];
  REQUIRE(rig.raw->receive(bytes, sizeof(bytes)));
  rig.raw->say(HeldFrame{FrameType::kHeld, {}, kKey + 1, 1});
  CHECK(run({&rig.b}, [&] { return rig.b.completions[2] == 1; }));
  rig.dial();
  rig.raw->say(HeldFrame{FrameType::kHeld, {}, kKey + 1, 0});
  CHECK(run({&rig.b}, [&] { return rig.b.channel_failures.contains(2); }));
}

TEST_CASE("a refusal without end or reason is still a status") {
  Rig rig;
  RefusedFrame refused{FrameType::kRefused, {}, 0, kKey + 1, {}};
  std::memset(refused.text, 'z', sizeof(refused.text));
  rig.raw->say(refused);
  CHECK(run({&rig.b}, [&] { return rig.b.channel_failures.contains(2); }));
  CHECK(rig.b.channel_failures.at(2).code() == StatusCode::kUnknown);
  CHECK(contains(rig.b.channel_failures.at(2).text(), "node raw refused a put: zzz"));
}

}  // namespace
}  // namespace mkernel::transport::tcp
