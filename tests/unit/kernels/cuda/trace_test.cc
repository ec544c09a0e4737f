#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/sync/device_timeline.h"
#include "kernels/cuda/sync/launch_control.h"

using namespace mkernel;
using namespace mkernel::kernels;
using Kind = TraceEvent::Kind;

namespace {

constexpr std::size_t kKept = 4;

/// What the host reads of a launch of two CTAs whose tracks hold kKept events.
struct TracedLaunch {
  std::vector<DeviceTrack> tracks{2 * kTracksPerCta};
  std::vector<DeviceTraceEvent> events{2 * kTracksPerCta * kKept};

  /// `warp` -1: of the CTA as a whole.
  template <class What>
  void add(int cta, int warp, DeviceEventKind kind, What what, std::uint64_t begin, std::uint64_t end,
           int peer = -1, std::uint32_t index = kNoIndex) {
    const std::size_t track = cta * kTracksPerCta + warp + 1;
    const std::uint32_t n = tracks[track].events++;
    if (n < kKept)
      events[track * kKept + n] = {begin, end, kind, static_cast<std::uint32_t>(what), peer, index};
  }
};

}  // namespace

TEST_CASE("a launch's events in words, on the machine's clock, by CTA and warp") {
  TracedLaunch launch;
  launch.add(1, -1, DeviceEventKind::kRole, DeviceRole::kCompute, 100, 900);
  launch.add(1, 4, DeviceEventKind::kWork, DeviceWork::kProduct, 300, 800, -1, 5);
  launch.add(1, 0, DeviceEventKind::kWait, DeviceTag::kChunkReady, 150, 250, 3, 17);
  const auto timeline = device_timeline(launch.tracks, launch.events, kKept, -50);
  REQUIRE(timeline.size() == 3);
  const TraceEvent &role = timeline[0], &wait = timeline[1], &product = timeline[2];
  CHECK(role.kind == Kind::kRole);
  CHECK(role.name == "compute");
  CHECK(role.track == 1);
  CHECK(role.warp == -1);
  CHECK(role.index == -1);
  CHECK(role.begin_ns == 50);
  CHECK(role.end_ns == 850);
  CHECK(wait.kind == Kind::kWait);
  CHECK(wait.name == std::string("a chunk"));
  CHECK(wait.peer == 3);
  CHECK(wait.index == 17);
  CHECK(wait.warp == 0);
  CHECK(product.kind == Kind::kWork);
  CHECK(product.name == "product");
  CHECK(product.index == 5);
  CHECK(product.warp == 4);
}

TEST_CASE("lanes that wait side by side are one wait, for the one that came last; work beside it stays") {
  TracedLaunch launch;
  launch.add(0, 2, DeviceEventKind::kWait, DeviceTag::kTileReady, 101, 180, 1, 6);
  launch.add(0, 2, DeviceEventKind::kWait, DeviceTag::kTileReady, 100, 240, 2, 6);
  launch.add(0, 2, DeviceEventKind::kWait, DeviceTag::kTileReady, 102, 200, 3, 6);
  launch.add(0, 2, DeviceEventKind::kWork, DeviceWork::kSum, 240, 300);
  const auto timeline = device_timeline(launch.tracks, launch.events, kKept, 0);
  REQUIRE(timeline.size() == 2);
  CHECK(timeline[0].begin_ns == 100);
  CHECK(timeline[0].end_ns == 240);
  CHECK(timeline[0].peer == 2);
  CHECK(timeline[1].name == "sum");
  CHECK(timeline[1].index == -1);

  TracedLaunch apart;
  apart.add(0, 2, DeviceEventKind::kWait, DeviceTag::kTileReady, 100, 200, 1, 6);
  apart.add(0, 2, DeviceEventKind::kWait, DeviceTag::kTileReady, 200, 300, 1, 7);
  CHECK(device_timeline(apart.tracks, apart.events, kKept, 0).size() == 2);
}

TEST_CASE("events beyond what fits are not made up") {
  TracedLaunch launch;
  for (std::uint32_t i = 0; i < kKept + 3; ++i)
    launch.add(0, 1, DeviceEventKind::kWork, DeviceWork::kLoad, 10 * i, 10 * i + 5, -1, i);
  CHECK(device_timeline(launch.tracks, launch.events, kKept, 0).size() == kKept);
}
