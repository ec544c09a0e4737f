#include "kernels/cuda/launch/rings.h"

namespace mkernel::kernels {
namespace {

DeviceRings rings_of_gpu(abi::SessionSegment& segment, void* claims) {
  constexpr auto kWriter = abi::RingWriter::kGpu;
  std::byte* begin = reinterpret_cast<std::byte*>(&segment);
  return {.slots = reinterpret_cast<abi::WorkSlot*>(
              begin + abi::ring_offset(segment.ring_count, segment.log2_slots, kWriter, 0)),
          .heads = &segment.head(kWriter, 0),
          .claims = static_cast<RingClaims*>(claims),
          .count = segment.ring_count,
          .log2_slots = segment.log2_slots};
}

}  // namespace

RingsOnDevice::RingsOnDevice(abi::SessionSegment& segment, DeviceBuffer claims)
    : claims_(std::move(claims)), device_rings_(rings_of_gpu(segment, claims_.get())) {}

Result<std::shared_ptr<RingsOnDevice>> RingsOnDevice::make(abi::SessionSegment& segment) {
  auto claims = DeviceBuffer::zeroed(segment.ring_count * sizeof(RingClaims), "claims of the work rings");
  if (!claims.ok()) return claims.status();
  return std::shared_ptr<RingsOnDevice>(new RingsOnDevice(segment, std::move(*claims)));
}

}  // namespace mkernel::kernels
