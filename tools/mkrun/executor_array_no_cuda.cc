#include "tools/mkrun/executor_array.h"

namespace mkernel::mkrun {

Result<std::unique_ptr<ExecutorArray>> gpu_array(void*, std::uint64_t, int) {
  return Status(StatusCode::kUnimplemented, "mkrun was built without CUDA");
}

}  // namespace mkernel::mkrun
