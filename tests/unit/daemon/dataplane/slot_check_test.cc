// Every field of a slot, one bad value at a time: the fault is found, and its text names the session, the
// channel, the peer, the value and the limit.
#include "daemon/dataplane/slot_check.h"

#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

#include "tests/support/dataplane_rig.h"

namespace mkernel::dataplane {
namespace {

constexpr std::uint64_t kLocalBytes = 4096;
constexpr std::uint64_t kRemoteBytes = 8192;
constexpr std::uint32_t kMaxPut = 2048;
constexpr std::uint32_t kFirst = 10;  // channels 10..: target * lanes + lane with 4 lanes
constexpr std::uint32_t kGood = kFirst + 1 * 4 + 2;

/// Rank 0 of three: rank 1 on a peer, rank 2 on this node; this proxy serves the even lanes of four.
struct Tables {
  Tables() {
    group.port = test::make_group(
        3, {.lanes = 4, .first_channel = kFirst, .ranks = {{.session = 3}, {.peer = 9}, {.session = 4}}});
    const Status built =
        build_group(group, {.index = 0, .count = 2, .max_put_bytes = kMaxPut, .gpu_memory = false});
    REQUIRE(built.ok());
    group.regions[1] = test::make_region(kLocalBytes);
    auto gpu = std::make_shared<memory::Region>();
    gpu->kind = abi::RegionKind::kVmm;
    gpu->bytes = kLocalBytes;
    group.regions[2] = gpu;
    group.remote_bytes_of(1, 3) = kRemoteBytes;
    group.remote_bytes_of(2, 3) = kRemoteBytes;
    channels.resize(kFirst + group.outbound.size());
    for (std::size_t i = 0; i < group.outbound.size(); ++i) channels[kFirst + i] = &group.outbound[i];
  }

  SlotFault check(const abi::WorkRequest& request, std::uint64_t extra_word3 = 0) const {
    abi::WorkSlot slot = abi::encode(request, abi::kLapBit);
    slot.word[3] |= extra_word3;
    return check_slot(slot, abi::decode(slot), channels);
  }
  Status words(SlotFault fault, const abi::WorkRequest& request, std::uint64_t extra_word3 = 0) const {
    abi::WorkSlot slot = abi::encode(request, abi::kLapBit);
    slot.word[3] |= extra_word3;
    return explain(fault, {7, "train.py", 0, 123}, slot, request, channels);
  }

  Group group;
  std::vector<Outbound*> channels;
};

abi::WorkRequest good() {
  return test::put_request(kGood, 1, 1024, 512, 100, 1, 3);
}

TEST_CASE("good slots pass") {
  const Tables tables;
  CHECK(tables.check(good()) == SlotFault::kNone);
  CHECK(tables.words(SlotFault::kNone, good()).ok());

  abi::WorkRequest exact = good();
  exact.length = kMaxPut;
  exact.local_offset = kLocalBytes - kMaxPut;
  exact.remote_offset = kRemoteBytes - kMaxPut;
  CHECK(tables.check(exact) == SlotFault::kNone);

  abi::WorkRequest local = good();
  local.channel = kFirst + 2 * 4;
  local.peer = 2;
  local.length = 4096;  // more than the transport's limit, but no transport is involved
  local.local_offset = 0;
  CHECK(tables.check(local) == SlotFault::kNone);

  // A bare signal names no memory: whatever stands there is ignored.
  CHECK(tables.check(test::put_request(kGood, 1, 0, abi::kOffsetMask, abi::kOffsetMask, 999, 999)) ==
        SlotFault::kNone);
}

struct Bad {
  const char* name;
  SlotFault fault;
  StatusCode code;
  abi::WorkRequest request;
  std::uint64_t word3;
  std::vector<std::string> mentions;
};

std::vector<Bad> bad_slots() {
  std::vector<Bad> table;
  const auto add = [&table](const char* name, SlotFault fault, StatusCode code, auto&& change,
                            std::vector<std::string> mentions, std::uint64_t word3 = 0) {
    abi::WorkRequest request = good();
    change(request);
    mentions.insert(mentions.begin(), {"session 7", "train.py", "slot 123"});
    table.push_back({name, fault, code, request, word3, std::move(mentions)});
  };
  using R = abi::WorkRequest&;
  const auto arg = StatusCode::kInvalidArgument;
  const auto missing = StatusCode::kNotFound;
  const auto range = StatusCode::kOutOfRange;
  add(
      "reserved low", SlotFault::kReservedBits, arg, [](R) {}, {"reserved", "0x0000000000000001"}, 1);
  add(
      "reserved high", SlotFault::kReservedBits, arg, [](R) {}, {"reserved"}, 1ULL << 62);
  add("opcode 0", SlotFault::kOpcode, arg, [](R r) { r.opcode = 0; }, {"opcode 0"});
  add("opcode 2", SlotFault::kOpcode, arg, [](R r) { r.opcode = 2; }, {"opcode 2"});
  add("channel of nobody", SlotFault::kUnknownChannel, missing, [](R r) { r.channel = 3; }, {"channel 3"});
  add("channel beyond all", SlotFault::kUnknownChannel, missing, [](R r) { r.channel = abi::kMax24; },
      {"channel 16777215", "22"});
  add("other ring's lane", SlotFault::kForeignRing, arg, [](R r) { r.channel = kGood + 1; },
      {"lane 3", "ring 0"});
  add("wrong peer", SlotFault::kPeerMismatch, arg, [](R r) { r.peer = 2; }, {"rank 2", "rank 1"});
  add("too long", SlotFault::kLength, range, [](R r) { r.length = kMaxPut + 1; }, {"2049", "2048"});
  add("local region missing", SlotFault::kLocalRegionMissing, missing, [](R r) { r.local_region = 0; },
      {"channel 16", "local region 0"});
  add("local region beyond", SlotFault::kLocalRegionMissing, missing, [](R r) { r.local_region = 65535; },
      {"local region 65535", "capacity 8"});
  add("local end", SlotFault::kLocalBounds, range, [](R r) { r.local_offset = kLocalBytes - 1023; },
      {"local region 1 [3073, +1024)", "4096 bytes"});
  add("local offset huge", SlotFault::kLocalBounds, range, [](R r) { r.local_offset = abi::kOffsetMask; },
      {"281474976710655", "4096"});
  add("GPU memory", SlotFault::kGpuMemory, StatusCode::kFailedPrecondition, [](R r) { r.local_region = 2; },
      {"local region 2", "GPU memory"});
  add("remote region missing", SlotFault::kRemoteRegionMissing, missing, [](R r) { r.remote_region = 2; },
      {"rank 1", "region 2"});
  add("remote region beyond", SlotFault::kRemoteRegionMissing, missing, [](R r) { r.remote_region = 8; },
      {"rank 1", "region 8"});
  add("remote end", SlotFault::kRemoteBounds, range, [](R r) { r.remote_offset = kRemoteBytes - 1000; },
      {"rank 1", "[7192, +1024)", "8192"});
  return table;
}

TEST_CASE("each bad field is found and put into words") {
  const Tables tables;
  for (const Bad& bad : bad_slots()) {
    CAPTURE(bad.name);
    CHECK(tables.check(bad.request, bad.word3) == bad.fault);
    const Status words = tables.words(bad.fault, bad.request, bad.word3);
    CHECK(words.code() == bad.code);
    for (const std::string& mention : bad.mentions) {
      CAPTURE(words.text());
      CAPTURE(mention);
      CHECK(words.text().find(mention) != std::string::npos);
    }
    if (bad.fault > SlotFault::kUnknownChannel) {
      CHECK(words.text().find("group-1") != std::string::npos);
      CHECK(words.text().find("rank 0 -> rank 1") != std::string::npos);
    }
  }
}

// Random slots near the limits, judged by 128-bit arithmetic of its own.
TEST_CASE("whatever passes lies within both regions") {
  const Tables tables;
  std::mt19937_64 random(20261121);
  int passed = 0;
  for (int i = 0; i < 200000; ++i) {
    abi::WorkRequest r = good();
    r.length = static_cast<std::uint32_t>(random() % (kMaxPut + 200));
    r.local_offset = random() % (kLocalBytes + 200);
    r.remote_offset = random() % (kRemoteBytes + 200);
    if (random() % 64 == 0) r.local_offset = abi::kOffsetMask - random() % 4096;
    const bool fits =
        r.length == 0 || (r.length <= kMaxPut && __uint128_t{r.local_offset} + r.length <= kLocalBytes &&
                          __uint128_t{r.remote_offset} + r.length <= kRemoteBytes);
    const bool accepted = tables.check(r) == SlotFault::kNone;
    if (accepted != fits)
      FAIL("length " << r.length << " from " << r.local_offset << " to " << r.remote_offset);
    passed += accepted ? 1 : 0;
  }
  CHECK(passed > 1000);
}

}  // namespace
}  // namespace mkernel::dataplane
