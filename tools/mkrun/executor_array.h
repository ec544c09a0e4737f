// Where an executor finds what the host has read, and leaves what is written to files.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "proto/abi/status.h"

namespace mkernel::mkrun {

/// Bytes of the host that an executor reads or writes: on the cpu executor these, on the cuda executor a copy
/// on the GPU. The bytes on the host stay where they are as long as this.
class ExecutorArray {
 public:
  virtual ~ExecutorArray() = default;
  /// For the operation's arguments. Null when there are no bytes.
  virtual void* get() const = 0;
  /// Back to the host, when nothing writes any more. Blocks.
  virtual Status fetch() = 0;
};

/// `device`: of the cuda executor. Errors: kResourceExhausted, those of the device; kUnimplemented where
/// mkrun was built without CUDA.
Result<std::unique_ptr<ExecutorArray>> executor_array(void* host, std::uint64_t bytes,
                                                      std::optional<int> device);

/// The same on a GPU; one of two files, built with CUDA or without.
Result<std::unique_ptr<ExecutorArray>> gpu_array(void* host, std::uint64_t bytes, int device);

}  // namespace mkernel::mkrun
