#include "tools/mkrun/executor_array.h"

namespace mkernel::mkrun {
namespace {

class HostArray final : public ExecutorArray {
 public:
  explicit HostArray(void* host) : host_(host) {}
  void* get() const override { return host_; }
  Status fetch() override { return {}; }

 private:
  void* const host_;
};

}  // namespace

Result<std::unique_ptr<ExecutorArray>> executor_array(void* host, std::uint64_t bytes,
                                                      std::optional<int> device) {
  if (device && bytes > 0) return gpu_array(host, bytes, *device);
  return std::unique_ptr<ExecutorArray>(std::make_unique<HostArray>(bytes > 0 ? host : nullptr));
}

}  // namespace mkernel::mkrun
