// What kernels need of this process: pinned segments, and operations and endpoints made on the session's
// device.
#include <string>
#include <utility>

#include "client/src/gpu_memory.h"
#include "kernels/cuda/memory/error.h"
#include "kernels/cuda/memory/on_device.h"
#include "kernels/ops/cuda_operations.h"
#include "kernels/plan/gemm_shape.h"

namespace mkernel::client {
namespace {

kernels::AgGemmCudaOptions gather_options(const GemmPlanOptions& plan) {
  return {
      .comm_ctas = plan.comm_ctas, .sms = plan.sms, .nic_gbytes = plan.nic_gbytes, .machine = plan.machine};
}

}  // namespace

Result<std::shared_ptr<const void>> pin_for_gpu(int device, void* data, std::uint64_t bytes) {
  const kernels::OnDevice here(device);
  MK_RETURN_IF_ERROR(here.status());
  MK_RETURN_IF_ERROR(kernels::cuda_status(
      cudaHostRegister(data, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped),
      "pinning " + std::to_string(bytes) + " bytes of host memory for GPU " + std::to_string(device)));
  return std::shared_ptr<const void>(data, [](void* pinned) { (void)cudaHostUnregister(pinned); });
}

Result<std::unique_ptr<GemmOperation>> make_gemm_on_gpu(int device, OpKind kind, const GemmShape& shape,
                                                        const GemmPlanOptions& plan,
                                                        const kernels::GroupView& group,
                                                        std::shared_ptr<kernels::RingsOnDevice> rings) {
  const kernels::OnDevice here(device);
  MK_RETURN_IF_ERROR(here.status());
  auto topology = kernels::Topology::of(group);
  if (!topology.ok()) return topology.status();
  Result<std::unique_ptr<kernels::CudaGemmOperation>> made =
      Status(StatusCode::kUnimplemented,
             std::string(kernels::name_of(kind)) + ": the cuda executor does not have this operation yet");
  const kernels::TileReduceOptions reduce{
      .reduce_ctas = plan.comm_ctas, .sms = plan.sms, .machine = plan.machine};
  if (kind == OpKind::kAgGemm)
    made = kernels::make_cuda_ag_gemm(shape, std::move(*topology), group.rank(), gather_options(plan));
  if (kind == OpKind::kGemmRs)
    made = kernels::make_cuda_gemm_rs(shape, std::move(*topology), group.rank(), reduce);
  if (kind == OpKind::kGemmAr)
    made = kernels::make_cuda_gemm_ar(shape, std::move(*topology), group.rank(), reduce);
  if (!made.ok()) return made.status();
  (*made)->use_rings(std::move(rings));
  (*made)->tell_overrides(plan);
  return std::unique_ptr<GemmOperation>(std::move(*made));
}

Result<std::shared_ptr<kernels::RingsOnDevice>> take_rings(int device, const abi::SessionSegment& segment,
                                                           std::vector<kernels::RingView> rings) {
  const kernels::OnDevice here(device);
  MK_RETURN_IF_ERROR(here.status());
  return kernels::RingsOnDevice::take(segment, std::move(rings));
}

Result<std::shared_ptr<kernels::EndpointOnDevice>> make_endpoint_on_gpu(
    int device, const kernels::GroupView& group, std::shared_ptr<kernels::RingsOnDevice> rings,
    const kernels::SymmetricView& workspace, const kernels::EndpointOnDeviceOptions& options) {
  const kernels::OnDevice here(device);
  MK_RETURN_IF_ERROR(here.status());
  auto made = kernels::EndpointOnDevice::make(group, std::move(rings), workspace, options);
  if (!made.ok()) return made.status();
  return std::shared_ptr<kernels::EndpointOnDevice>(std::move(*made));
}

Result<device::Peers> peers_on_gpu(kernels::EndpointOnDevice& endpoint,
                                   const kernels::SymmetricView& buffer) {
  return endpoint.peers(buffer);
}

Status status_of_launches(const kernels::EndpointOnDevice& endpoint) {
  return endpoint.status();
}

}  // namespace mkernel::client
