#include "proto/abi/region_map.h"

#include <doctest/doctest.h>

#include <initializer_list>

namespace mkernel::abi {
namespace {

TEST_CASE("a session segment holds all its rings") {
  for (std::uint32_t rings = 1; rings <= kMaxRings; ++rings) {
    SessionSegment segment{};
    const std::uint64_t bytes = layout_session(segment, rings, 12);
    CHECK(segment.magic == kMagic);
    CHECK(segment.version == kVersion);
    CHECK(segment.slots_offset >= sizeof(SessionSegment));
    CHECK(segment.slots_offset % 64 == 0);
    CHECK(bytes == segment.slots_offset + 2 * rings * 32ULL * 4096);
    CHECK(ring_offset(rings, 12, RingWriter::kThreads, 0) == segment.slots_offset);
    CHECK(ring_offset(rings, 12, RingWriter::kGpu, 0) ==
          ring_offset(rings, 12, RingWriter::kThreads, rings - 1) + 32ULL * 4096);
    CHECK(ring_offset(rings, 12, RingWriter::kGpu, rings - 1) + 32ULL * 4096 == bytes);
    CHECK(bytes == segment.bytes);
  }
}

TEST_CASE("the parts of a group segment lie one after the other, aligned, also at the limits") {
  struct Shape {
    std::uint32_t world_size, lanes, regions;
  };
  for (const Shape shape :
       {Shape{1, 1, 1}, Shape{3, 5, 7}, Shape{8, 4, 16}, Shape{kMaxWorldSize, kMaxLanes, kMaxRegions}}) {
    GroupSegment segment{};
    const std::uint64_t bytes = layout_group(segment, shape.world_size, 0, shape.lanes, shape.regions);
    const std::uint64_t counts = std::uint64_t{8} * shape.world_size * shape.lanes;
    CHECK(segment.arrivals_offset >= sizeof(GroupSegment));
    CHECK(segment.completed_offset >= segment.arrivals_offset + counts);
    CHECK(segment.members_offset >= segment.completed_offset + counts);
    CHECK(segment.regions_offset >=
          segment.members_offset + sizeof(Member) * std::uint64_t{shape.world_size});
    CHECK(segment.board_offset >=
          segment.regions_offset + sizeof(RegionEntry) * std::uint64_t{shape.world_size} * shape.regions);
    CHECK(bytes >= segment.board_offset + kExchangeBytes * std::uint64_t{shape.world_size});
    for (const std::uint64_t offset :
         {segment.arrivals_offset, segment.completed_offset, segment.members_offset, segment.regions_offset,
          segment.board_offset}) {
      CHECK(offset % 64 == 0);
    }
  }
}

}  // namespace
}  // namespace mkernel::abi
