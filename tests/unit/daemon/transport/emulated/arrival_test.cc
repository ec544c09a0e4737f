// Puts that are in place before the wire would have brought them: the copy is done while the put is on its
// way, and what counts is the wire's time.
#include "daemon/transport/emulated/message.h"
#include "tests/support/fake_engines.h"
#include "tests/unit/daemon/transport/emulated/pair.h"

namespace mkernel::transport::emulated {
namespace {

using std::chrono::milliseconds;

/// A put takes that long on the wire: far longer than its copy, than a time-out, and than a busy machine may
/// take between two polls.
constexpr milliseconds kOnTheWire{300}, kRetransmitTimeout{100};

struct SlowWire {
  explicit SlowWire(abi::RegionKind kind = abi::RegionKind::kHostMemory)
      : pair(std::make_shared<test::FakeEngines>(1, 8), std::make_shared<test::FakeEngines>(2, 8),
             kRetransmitTimeout),
        source(make_region(7, kind)) {
    pair.receiver->memory = make_region(1, kind);
    fill(*source, 0x31);
    LinkShape shape;
    shape.bandwidth_gbytes = kBytes / std::chrono::duration<double, std::nano>(kOnTheWire).count();
    REQUIRE(pair.sender->transport->set_link(0, shape).ok());
    // Connected, and the channel flows: what is timed below is the wire alone.
    const Put signal{.channel = 0, .sequence = 1};
    REQUIRE(pair.sender->transport->submit({&signal, 1}) == 1);
    REQUIRE(pair.completed(1));
    pair.submit(*source, 2);
  }

  bool in_place() {
    return pair.until([&] { return is(*pair.receiver->memory, 0x31); });
  }
  void wait(milliseconds time) {
    const auto end = Clock::now() + time;
    pair.until([&] { return Clock::now() >= end; });
  }

  const Time begin = Clock::now();
  Pair pair;
  std::unique_ptr<memory::Region> source;
};

TEST_CASE("a put is in place while the wire still has it, counts when its time has come, and is sent once") {
  for (const auto kind : {abi::RegionKind::kHostMemory, abi::RegionKind::kVmm}) {
    SlowWire wire(kind);
    REQUIRE(wire.in_place());
    wire.pair.pump();  // the engine's end is noted
    CHECK(wire.pair.receiver->arrivals == 1);
    CHECK(!wire.pair.receiver->transport->holds(*wire.pair.receiver->memory));
    // One more, which the other end acknowledges long after the first.
    wire.pair.submit(*wire.source, 3);
    REQUIRE(wire.pair.until([&] { return wire.pair.sender->completions == 2; }));
    CHECK(Clock::now() - wire.begin >= kOnTheWire);
    CHECK(wire.pair.receiver->arrivals == 2);
    REQUIRE(wire.pair.completed(3));
    CHECK(Clock::now() - wire.begin >= 2 * kOnTheWire);
    CHECK(wire.pair.sender->faults().retransmitted == 0);
  }
}

TEST_CASE("a link that is lost with a put on the wire loses it, and replays it") {
  SlowWire wire;
  REQUIRE(wire.in_place());
  wire.pair.set_down(true);
  wire.pair.set_down(false);
  REQUIRE(wire.pair.completed(2));
  CHECK(wire.pair.receiver->arrivals == 2);
  CHECK(wire.pair.receiver->faults().duplicates_discarded == 0);
}

TEST_CASE("a put on the wire does not count once its sender has closed the channel") {
  SlowWire wire;
  REQUIRE(wire.in_place());
  wire.pair.sender->transport->close_channel(0);
  CHECK(wire.pair.until([&] { return wire.pair.receiver->faults().fenced == 1; }));
  CHECK(Clock::now() - wire.begin >= kOnTheWire);
  CHECK(wire.pair.receiver->arrivals == 1);
}

TEST_CASE("a put on the wire does not reach the channel that takes the place of a closed one") {
  SlowWire wire;
  REQUIRE(wire.in_place());
  wire.pair.receiver->transport->close_channel(0);
  wire.pair.sender->transport->close_channel(0);
  REQUIRE(wire.pair.receiver->transport->open_inbound(0, 0, 5).ok());
  wire.wait(2 * kOnTheWire);
  CHECK(wire.pair.receiver->arrivals == 1);
  CHECK(wire.pair.receiver->faults().fenced == 0);
}

}  // namespace
}  // namespace mkernel::transport::emulated
