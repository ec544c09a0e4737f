#include "kernels/cuda/sync/device_timeline.h"

#include <algorithm>
#include <utility>

#include "kernels/cuda/sync/launch_control.h"

namespace mkernel::kernels {
namespace {

constexpr TraceEvent::Kind kind_of(DeviceEventKind kind) {
  return static_cast<TraceEvent::Kind>(kind);
}
static_assert(kind_of(DeviceEventKind::kRole) == TraceEvent::Kind::kRole);
static_assert(kind_of(DeviceEventKind::kWait) == TraceEvent::Kind::kWait);
static_assert(kind_of(DeviceEventKind::kWork) == TraceEvent::Kind::kWork);

const char* event_name(const DeviceTraceEvent& event) {
  switch (event.kind) {
    case DeviceEventKind::kRole: return name_of(static_cast<DeviceRole>(event.what));
    case DeviceEventKind::kWait: return name_of(static_cast<DeviceTag>(event.what));
    case DeviceEventKind::kWork: break;
  }
  return name_of(static_cast<DeviceWork>(event.what));
}

/// Waits that overlap become one, which ends with the last.
std::vector<DeviceTraceEvent> in_order(std::span<const DeviceTraceEvent> events) {
  std::vector<DeviceTraceEvent> sorted(events.begin(), events.end());
  std::sort(sorted.begin(), sorted.end(), [](const DeviceTraceEvent& a, const DeviceTraceEvent& b) {
    return std::pair(a.begin_ns, a.end_ns) < std::pair(b.begin_ns, b.end_ns);
  });
  std::vector<DeviceTraceEvent> merged;
  for (DeviceTraceEvent event : sorted) {
    const auto waits = [](const DeviceTraceEvent& e) { return e.kind == DeviceEventKind::kWait; };
    if (merged.empty() || !waits(event) || !waits(merged.back()) || event.begin_ns >= merged.back().end_ns) {
      merged.push_back(event);
      continue;
    }
    event.begin_ns = merged.back().begin_ns;
    if (event.end_ns > merged.back().end_ns) merged.back() = event;
  }
  return merged;
}

}  // namespace

std::vector<TraceEvent> device_timeline(std::span<const DeviceTrack> tracks,
                                        std::span<const DeviceTraceEvent> events, std::size_t kept,
                                        std::int64_t to_monotonic_ns) {
  std::vector<TraceEvent> timeline;
  for (std::size_t track = 0; track < tracks.size(); ++track) {
    const std::size_t count = std::min<std::size_t>(tracks[track].events, kept);
    for (const DeviceTraceEvent& event : in_order(events.subspan(track * kept, count))) {
      timeline.push_back({.kind = kind_of(event.kind),
                          .track = static_cast<std::uint32_t>(track / kTracksPerCta),
                          .name = event_name(event),
                          .peer = event.peer,
                          .begin_ns = event.begin_ns + to_monotonic_ns,
                          .end_ns = event.end_ns + to_monotonic_ns,
                          .warp = static_cast<std::int32_t>(track % kTracksPerCta) - 1,
                          .index = event.index == kNoIndex ? -1 : std::int64_t{event.index}});
    }
  }
  return timeline;
}

}  // namespace mkernel::kernels
