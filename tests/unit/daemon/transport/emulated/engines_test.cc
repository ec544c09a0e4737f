// Puts that copy engines carry: what must hold while they are in flight. The engines are played, and so is
// the GPU memory; the real ones are in tests/gpu.
#include <vector>

#include "tests/support/fake_engines.h"
#include "tests/unit/daemon/transport/emulated/pair.h"

namespace mkernel::transport::emulated {
namespace {

using test::FakeEngines;

/// Sender and receiver with engines, GPU memory at both ends.
struct EnginesRig {
  explicit EnginesRig(abi::RegionKind source_kind = abi::RegionKind::kVmm,
                      abi::RegionKind target_kind = abi::RegionKind::kVmm)
      : pair(std::make_shared<FakeEngines>(1, 8), engines), source(make_region(7, source_kind)) {
    pair.receiver->memory = make_region(1, target_kind);
    fill(*source, 0x31);
    fill(target(), 0xee);
    for (memory::Region* region : {source.get(), &target()}) {
      if (region->kind == abi::RegionKind::kIpc) region->cuda_ipc = FakeEngines::name(region->fd.get());
    }
  }

  memory::Region& target() { return *pair.receiver->memory; }
  void submit(std::uint64_t sequence) { pair.submit(*source, sequence); }
  bool in_flight(std::size_t copies) {
    return pair.until([&] { return engines->in_flight() == copies; });
  }

  std::shared_ptr<FakeEngines> engines = std::make_shared<FakeEngines>(2, 8);  ///< the receiver's
  Pair pair;
  std::unique_ptr<memory::Region> source;
};

TEST_CASE("with engines a transport says that it moves GPU memory, without them that it does not") {
  CHECK(EnginesRig().pair.receiver->transport->capabilities().gpu_memory);
  CHECK(!Pair().receiver->transport->capabilities().gpu_memory);
}

TEST_CASE("a count waits for the copy, and the put behind it waits too") {
  EnginesRig rig;
  rig.engines->hold();
  rig.submit(1);
  rig.submit(2);
  const Put signal{.channel = 0, .sequence = 3};
  REQUIRE(rig.pair.sender->transport->submit({&signal, 1}) == 1);
  REQUIRE(rig.in_flight(2));
  rig.pair.pump(50);
  CHECK(rig.pair.receiver->arrivals == 0);
  CHECK(rig.pair.sender->completions == 0);
  CHECK(rig.pair.receiver->transport->holds(rig.target()));
  rig.engines->release();
  REQUIRE(rig.pair.completed(3));
  CHECK(rig.pair.receiver->arrivals == 3);
  CHECK(is(rig.target(), 0x31));
  CHECK(!rig.pair.receiver->transport->holds(rig.target()));
}

TEST_CASE("a put that is sent again while an engine has it is not copied a second time") {
  EnginesRig rig;
  rig.engines->hold();
  rig.submit(1);
  const auto& faults = rig.pair.receiver->faults();
  REQUIRE(rig.pair.until([&] { return faults.duplicates_discarded >= 3; }));
  CHECK(rig.engines->started() == 1);
  rig.engines->release();
  REQUIRE(rig.pair.completed(1));
  CHECK(rig.pair.receiver->arrivals == 1);
}

TEST_CASE("closing the receiving end waits for its copies: nothing lands afterwards") {
  EnginesRig rig;
  rig.engines->hold(300);
  for (std::uint64_t i = 1; i <= 5; ++i) rig.submit(i);
  REQUIRE(rig.in_flight(5));
  rig.pair.receiver->transport->close_channel(0);
  CHECK(rig.engines->in_flight() == 0);
  CHECK(!rig.pair.receiver->transport->holds(rig.target()));
  fill(rig.target(), 0x44);
  rig.pair.pump(400);
  CHECK(is(rig.target(), 0x44));
  CHECK(rig.pair.receiver->arrivals == 0);
}

TEST_CASE("closing the sending end frees the sources: what was being copied does not count") {
  EnginesRig rig;
  rig.engines->hold();
  rig.submit(1);
  REQUIRE(rig.in_flight(1));
  rig.pair.sender->transport->close_channel(0);
  CHECK(!rig.pair.sender->transport->holds(*rig.source));
  fill(*rig.source, 0x55);
  rig.engines->release();
  REQUIRE(rig.in_flight(0));
  rig.pair.pump(50);
  CHECK(rig.pair.receiver->arrivals == 0);
  CHECK(rig.pair.receiver->faults().fenced == 1);
}

TEST_CASE("a link that is lost with copies in flight resumes when they have landed, and replays") {
  EnginesRig rig;
  rig.submit(1);
  REQUIRE(rig.pair.completed(1));
  rig.engines->hold();
  rig.submit(2);
  rig.submit(3);
  REQUIRE(rig.in_flight(2));
  rig.pair.set_down(true);
  rig.pair.set_down(false);
  const auto& faults = rig.pair.receiver->faults();
  REQUIRE(rig.pair.until([&] { return faults.connections == 2; }));
  const std::uint64_t discarded = faults.duplicates_discarded;
  rig.pair.pump(200);
  // Connected, and not a word of where to go on: a replayed copy could end before the old one, which would
  // then land over whatever came next. (One that is replayed all the same is discarded, and waits for the
  // time-out.)
  CHECK(rig.engines->started() == 3);
  CHECK(faults.duplicates_discarded == discarded);
  CHECK(rig.pair.receiver->transport->holds(rig.target()));
  rig.engines->release();
  REQUIRE(rig.pair.completed(3));
  CHECK(rig.engines->started() == 5);
  CHECK(rig.pair.receiver->arrivals == 3);
}

TEST_CASE("mappings live as long as the regions: forget() gives back both ends") {
  EnginesRig rig;
  rig.submit(1);
  REQUIRE(rig.pair.completed(1));
  CHECK(rig.engines->mapped() == 2);
  SUBCASE("the source first, while the channel stays open") {
    rig.pair.sender->transport->forget(*rig.source);
    CHECK(rig.pair.until([&] { return rig.engines->mapped() == 1; }));
    const auto next = make_region(8, abi::RegionKind::kVmm);
    rig.pair.submit(*next, 2);
    REQUIRE(rig.pair.completed(2));
    CHECK(rig.engines->mapped() == 2);
    rig.pair.sender->transport->close_channel(0);
  }
  SUBCASE("the channel first") {
    rig.pair.sender->transport->close_channel(0);
    rig.pair.sender->transport->forget(*rig.source);
  }
  CHECK(rig.pair.until([&] { return rig.engines->mapped() == 1; }));
  rig.pair.receiver->transport->close_channel(0);
  rig.pair.receiver->transport->forget(rig.target());
  CHECK(rig.engines->mapped() == 0);
}

TEST_CASE("a source that goes while it is copied from stays mapped until the copy is over") {
  EnginesRig rig;
  rig.engines->hold();
  rig.submit(1);
  REQUIRE(rig.in_flight(1));
  rig.pair.sender->transport->close_channel(0);  // the peer is told to forget the source
  rig.pair.pump(50);
  CHECK(rig.engines->mapped() == 2);
  rig.engines->release();
  CHECK(rig.pair.until([&] { return rig.engines->mapped() == 1; }));
}

TEST_CASE("an engine that fails ends the channel with its reason, and no other") {
  EnginesRig rig;
  rig.engines->hold();
  rig.submit(1);
  REQUIRE(rig.in_flight(1));
  rig.engines->fail({StatusCode::kInternal, "CUDA_ERROR_ECC_UNCORRECTABLE"});
  REQUIRE(rig.pair.until([&] { return !rig.pair.sender->failure.ok(); }));
  CHECK(rig.pair.sender->failure.text().find("CUDA_ERROR_ECC") != std::string::npos);
  CHECK(rig.pair.sender->failure.text().find("put 1") != std::string::npos);
  CHECK(rig.pair.receiver->arrivals == 0);
  CHECK(rig.pair.receiver->failure.ok());  // that would be the link
}

TEST_CASE("an allocation smaller than announced fails the channel, at either end") {
  for (const std::string end : {"source", "target"}) {
    EnginesRig rig;
    (end == "source" ? *rig.source : rig.target()).bytes = 1 << 20;
    rig.submit(1);
    REQUIRE(rig.pair.until([&] { return !rig.pair.sender->failure.ok(); }));
    CHECK(rig.pair.sender->failure.text().find(end + ": no such allocation") != std::string::npos);
    CHECK(rig.pair.receiver->failure.ok());
  }
}

TEST_CASE("between host and GPU the engines copy as well") {
  const auto host = abi::RegionKind::kHostMemory;
  const auto gpu = abi::RegionKind::kVmm;
  for (const auto& [from, to] : {std::pair(host, gpu), std::pair(gpu, host), std::pair(host, host)}) {
    EnginesRig rig(from, to);
    for (std::uint64_t i = 1; i <= 20; ++i) rig.submit(i);
    REQUIRE(rig.pair.completed(20));
    CHECK(is(rig.target(), 0x31));
    CHECK(rig.engines->started() == (from == to ? 0 : 20));
  }
}

TEST_CASE("plain GPU memory is opened by its name, at either end and once, and closed with its region") {
  const auto plain = abi::RegionKind::kIpc, vmm = abi::RegionKind::kVmm;
  for (const auto& [from, to] : {std::pair(plain, plain), std::pair(plain, vmm), std::pair(vmm, plain)}) {
    EnginesRig rig(from, to);
    for (std::uint64_t i = 1; i <= 20; ++i) rig.submit(i);
    REQUIRE(rig.pair.completed(20));
    CHECK(is(rig.target(), 0x31));
    CHECK(rig.engines->mapped() == 2);
    rig.pair.receiver->transport->forget(rig.target());
    rig.pair.sender->transport->forget(*rig.source);
    CHECK(rig.pair.until([&] { return rig.engines->mapped() == 0; }));
  }
}

TEST_CASE("a name that opens nothing fails the channel, at either end, and nobody else") {
  for (const std::string end : {"source", "target"}) {
    EnginesRig rig(abi::RegionKind::kIpc, abi::RegionKind::kIpc);
    (end == "source" ? *rig.source : rig.target()).cuda_ipc = FakeEngines::name(-1);
    rig.submit(1);
    REQUIRE(rig.pair.until([&] { return !rig.pair.sender->failure.ok(); }));
    CHECK(rig.pair.sender->failure.text().find(end + ": no such allocation") != std::string::npos);
    CHECK(rig.pair.receiver->failure.ok());
  }
}

TEST_CASE("a peer without engines refuses GPU memory by the name of the key that would help") {
  Pair pair(std::make_shared<FakeEngines>(1, 8), nullptr);
  const auto source = make_region(7, abi::RegionKind::kVmm);
  pair.submit(*source, 1);
  REQUIRE(pair.until([&] { return !pair.sender->failure.ok(); }));
  CHECK(pair.sender->failure.text().find("transport.gpu_memory") != std::string::npos);
}

}  // namespace
}  // namespace mkernel::transport::emulated
