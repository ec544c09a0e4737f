#include "kernels/cuda/launch/rings.h"

#include <utility>

#include "kernels/base/wait_site.h"
#include "kernels/cuda/memory/on_device.h"

namespace mkernel::kernels {

RingsOnDevice::RingsOnDevice(const abi::SessionSegment& segment, std::vector<RingView> rings,
                             DeviceBuffer claims, int device)
    : host_rings_(std::move(rings)), claims_(std::move(claims)), device_(device) {
  device_rings_ = {.slots = host_rings_[0].slots,
                   .heads = segment.ring,
                   .claims = static_cast<RingClaims*>(claims_.get()),
                   .count = segment.ring_count,
                   .log2_slots = segment.log2_slots};
}

Result<std::shared_ptr<RingsOnDevice>> RingsOnDevice::take(const abi::SessionSegment& segment,
                                                           std::vector<RingView> rings) {
  if (rings[0].on_gpu()) {
    return Status(StatusCode::kFailedPrecondition, "the session's rings are claimed on the GPU already");
  }
  auto buffer = DeviceBuffer::zeroed(rings.size() * sizeof(RingClaims), "claims of the work rings");
  if (!buffer.ok()) return buffer.status();
  int device = 0;
  MK_RETURN_IF_ERROR(cuda_status(cudaGetDevice(&device), "claims of the work rings"));
  std::vector<RingClaims> claims(rings.size());
  for (std::size_t r = 0; r < rings.size(); ++r) {
    claims[r] = {.head = rings[r].hand_over(), .tail = load_acquire(*rings[r].tail), .refreshing = 0};
  }
  const Status written = buffer->write(claims.data(), claims.size() * sizeof(RingClaims));
  if (!written.ok()) {
    for (std::size_t r = 0; r < rings.size(); ++r) rings[r].take_back(claims[r].head);
    return written;
  }
  return std::shared_ptr<RingsOnDevice>(
      new RingsOnDevice(segment, std::move(rings), std::move(*buffer), device));
}

RingsOnDevice::~RingsOnDevice() {
  const OnDevice here(device_);
  std::vector<RingClaims> claims(host_rings_.size());
  // Where the GPU cannot be asked any more nobody knows what it has claimed: the rings stay with it, and
  // puts of the CPU go on being refused.
  if (!claims_.read(claims.data(), claims.size() * sizeof(RingClaims)).ok()) return;
  for (std::size_t r = 0; r < host_rings_.size(); ++r) {
    if (!claims[r].closed()) host_rings_[r].take_back(claims[r].head);  // a closed one stays so for everybody
  }
}

}  // namespace mkernel::kernels
