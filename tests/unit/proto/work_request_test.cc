#include "proto/abi/work_request.h"

#include <doctest/doctest.h>

#include <initializer_list>
#include <random>

namespace mkernel::abi {
namespace {

WorkRequest random_request(std::mt19937_64& random) {
  return {static_cast<std::uint8_t>(random() & 0x7f),
          static_cast<std::uint32_t>(random() & kMax24),
          static_cast<std::uint32_t>(random() & kMax24),
          static_cast<std::uint32_t>(random()),
          static_cast<std::uint16_t>(random()),
          static_cast<std::uint16_t>(random()),
          random() & kOffsetMask,
          random() & kOffsetMask};
}

void check_equal(const WorkRequest& a, const WorkRequest& b) {
  CHECK(a.opcode == b.opcode);
  CHECK(a.channel == b.channel);
  CHECK(a.peer == b.peer);
  CHECK(a.length == b.length);
  CHECK(a.local_region == b.local_region);
  CHECK(a.remote_region == b.remote_region);
  CHECK(a.local_offset == b.local_offset);
  CHECK(a.remote_offset == b.remote_offset);
}

TEST_CASE("the layout is what both sides were told") {
  const WorkSlot slot = encode(
      {1, 0xabcdef, 0x123456, 0x89abcdef, 0x1122, 0x3344, 0x5566778899aaULL, 0xbbccddeeff00ULL}, kLapBit);
  CHECK(slot.word[0] == 0x81abcdef89abcdefULL);
  CHECK(slot.word[1] == 0x11225566778899aaULL);
  CHECK(slot.word[2] == 0x3344bbccddeeff00ULL);
  CHECK(slot.word[3] == 0x8012345600000000ULL);
}

TEST_CASE("what is encoded is decoded, under both laps, and leaves the reserved bits zero") {
  std::mt19937_64 random(42);
  for (int i = 0; i < 2000; ++i) {
    const WorkRequest request = random_request(random);
    for (const std::uint64_t lap : {std::uint64_t{0}, kLapBit}) {
      const WorkSlot slot = encode(request, lap);
      check_equal(decode(slot), request);
      CHECK((slot.word[0] & kLapBit) == lap);
      CHECK((slot.word[3] & kLapBit) == lap);
      CHECK((slot.word[3] & kReservedMask) == 0);
    }
  }
}

TEST_CASE("fields that do not fit are cut, never spilled into their neighbours") {
  WorkRequest request{};
  request.channel = 0xff000001;
  request.peer = 0xff000002;
  request.opcode = 0xff;
  request.local_offset = ~0ULL;
  request.remote_offset = ~0ULL;
  const WorkRequest seen = decode(encode(request, 0));
  CHECK(seen.channel == 1);
  CHECK(seen.peer == 2);
  CHECK(seen.opcode == 0x7f);
  CHECK(seen.local_region == 0);
  CHECK(seen.remote_region == 0);
  CHECK(seen.local_offset == kOffsetMask);
}

TEST_CASE("the lap turns with every round, and a ring of zeros is empty") {
  for (const std::uint32_t log2_slots : {0U, 1U, 4U, 16U}) {
    const std::uint64_t slots = 1ULL << log2_slots;
    CHECK(lap_bit(0, log2_slots) == kLapBit);
    CHECK(lap_bit(slots - 1, log2_slots) == kLapBit);
    CHECK(lap_bit(slots, log2_slots) == 0);
    CHECK(lap_bit(2 * slots, log2_slots) == kLapBit);
    // Positions are 64-bit and do not wrap in the life of a machine; the lap is right at the far end too.
    CHECK(lap_bit(~0ULL, log2_slots) == 0);
  }
  WorkSlot empty{};
  WorkSlot snapshot{};
  CHECK_FALSE(load_slot(empty, lap_bit(0, 4), snapshot));
}

TEST_CASE("a slot is read only when both halves carry the lap") {
  const WorkSlot whole = encode({1, 2, 3, 4, 5, 6, 7, 8}, kLapBit);
  WorkSlot place{};
  WorkSlot snapshot{};
  place.word[0] = whole.word[0];
  place.word[1] = whole.word[1];
  CHECK_FALSE(load_slot(place, kLapBit, snapshot));
  place = {};
  place.word[2] = whole.word[2];
  place.word[3] = whole.word[3];
  CHECK_FALSE(load_slot(place, kLapBit, snapshot));
  store_slot(place, whole);
  REQUIRE(load_slot(place, kLapBit, snapshot));
  check_equal(decode(snapshot), {1, 2, 3, 4, 5, 6, 7, 8});
  CHECK_FALSE(load_slot(place, 0, snapshot));  // the next round waits for its own writer
}

}  // namespace
}  // namespace mkernel::abi
