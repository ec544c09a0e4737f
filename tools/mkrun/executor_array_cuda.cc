#include <utility>

#include "kernels/cuda/memory/buffer.h"
#include "kernels/cuda/memory/on_device.h"
#include "tools/mkrun/executor_array.h"

namespace mkernel::mkrun {
namespace {

class GpuArray final : public ExecutorArray {
 public:
  GpuArray(void* host, int device, kernels::DeviceBuffer copy)
      : host_(host), device_(device), copy_(std::move(copy)) {}
  ~GpuArray() override {
    const kernels::OnDevice here(device_);
    copy_ = {};
  }
  GpuArray(const GpuArray&) = delete;
  void* get() const override { return copy_.get(); }
  Status fetch() override {
    const kernels::OnDevice here(device_);
    MK_RETURN_IF_ERROR(here.status());
    return copy_.read(host_, copy_.bytes());
  }

 private:
  void* const host_;
  const int device_;
  kernels::DeviceBuffer copy_;
};

}  // namespace

Result<std::unique_ptr<ExecutorArray>> gpu_array(void* host, std::uint64_t bytes, int device) {
  const kernels::OnDevice here(device);
  MK_RETURN_IF_ERROR(here.status());
  auto copy = kernels::DeviceBuffer::allocate(bytes, "mkrun: operands");
  if (!copy.ok()) return copy.status();
  MK_RETURN_IF_ERROR(copy->write(host, bytes));
  return std::unique_ptr<ExecutorArray>(std::make_unique<GpuArray>(host, device, std::move(*copy)));
}

}  // namespace mkernel::mkrun
