// Built instead of gpu_memory.cc where there is no CUDA toolkit.
#include "client/src/gpu_memory.h"

namespace mkernel::client {

Result<std::shared_ptr<MemorySource>> open_gpu_memory(int device) {
  return Status(StatusCode::kUnimplemented,
                "memory of GPU " + std::to_string(device) + ": this libmkernel was built without CUDA");
}

}  // namespace mkernel::client
