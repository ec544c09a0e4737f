#include "kernels/cuda/launch/trace.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "kernels/cuda/memory/error.h"
#include "kernels/cuda/memory/gpu_clock.h"
#include "kernels/cuda/sync/device_timeline.h"

namespace mkernel::kernels {
namespace {

/// Of a warp: some hundred tiles, each loaded in a few parts. 32 KiB per track.
constexpr std::uint32_t kCapacity = 1024;

}  // namespace

Status LaunchTrace::load() {
  return load_gpu_clock();
}

Result<LaunchTrace> LaunchTrace::make() {
  int device = 0, sms = 0;
  MK_RETURN_IF_ERROR(cuda_status(cudaGetDevice(&device), "timeline: device"));
  MK_RETURN_IF_ERROR(cuda_status(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device),
                                 "timeline: multiprocessors"));
  LaunchTrace trace;
  trace.tracks_ = static_cast<std::uint32_t>(sms) * kTracksPerCta;
  auto headers = DeviceBuffer::allocate(trace.tracks_ * sizeof(DeviceTrack), "tracks of the timeline");
  if (!headers.ok()) return headers.status();
  trace.headers_ = std::move(*headers);
  auto events = DeviceBuffer::allocate(std::uint64_t{trace.tracks_} * kCapacity * sizeof(DeviceTraceEvent),
                                       "events of the timeline");
  if (!events.ok()) return events.status();
  trace.events_ = std::move(*events);
  auto none = pinned_memory(trace.headers_.bytes(), "timeline");
  if (!none.ok()) return none.status();
  trace.none_ = std::move(*none);
  auto stream = OwnStream::make("timeline");
  if (!stream.ok()) return stream.status();
  trace.stream_ = std::move(*stream);
  return Result<LaunchTrace>(std::move(trace));
}

DeviceTrace LaunchTrace::on_device() const {
  return {static_cast<DeviceTrack*>(headers_.get()), static_cast<DeviceTraceEvent*>(events_.get()),
          kCapacity};
}

Status LaunchTrace::clear(CUstream_st* stream) const {
  return cuda_status(
      cudaMemcpyAsync(headers_.get(), none_.get(), headers_.bytes(), cudaMemcpyHostToDevice, stream),
      "timeline: clear");
}

Status LaunchTrace::tell(Trace& trace) const {
  std::vector<DeviceTrack> tracks(tracks_);
  MK_RETURN_IF_ERROR(stream_.to_host(tracks.data(), headers_.get(), headers_.bytes(), "timeline: tracks"));
  std::uint32_t most = 0;
  for (const DeviceTrack& track : tracks) {
    most = std::max(most, track.events);
    trace.lose(track.events - std::min(track.events, kCapacity));
  }
  const std::size_t kept = std::min(most, kCapacity);
  std::vector<DeviceTraceEvent> events(tracks_ * kept);
  const std::size_t width = kept * sizeof(DeviceTraceEvent);
  if (kept > 0) {
    MK_RETURN_IF_ERROR(stream_.rows_to_host(events.data(), events_.get(), width,
                                            kCapacity * sizeof(DeviceTraceEvent), tracks_,
                                            "timeline: events"));
  }
  const auto to_monotonic = gpu_clock_to_monotonic();
  if (!to_monotonic.ok()) return to_monotonic.status();
  for (TraceEvent& event : device_timeline(tracks, events, kept, to_monotonic.value()))
    trace.add(std::move(event));
  return {};
}

}  // namespace mkernel::kernels
