// How the host reads what a launch has left in device memory.
#pragma once

#include <memory>
#include <utility>

#include "kernels/cuda/memory/own_stream.h"
#include "kernels/cuda/sync/launch_control.h"
#include "proto/abi/status.h"

namespace mkernel::kernels {

/// Reads control blocks through pinned memory, on a stream of its own, so that it waits for no other launch
/// of the process. Of the device that was current. One thread at a time.
class LaunchStateReader {
 public:
  static Result<LaunchStateReader> make() {
    auto stream = OwnStream::make("state of a launch");
    if (!stream.ok()) return stream.status();
    auto memory = pinned_memory(sizeof(LaunchControl), "state of a launch");
    if (!memory.ok()) return memory.status();
    LaunchStateReader reader;
    reader.stream_ = std::move(*stream);
    reader.memory_ = std::move(*memory);
    return Result<LaunchStateReader>(std::move(reader));
  }

  /// Once the stream of the launch is done. Blocks until it is read.
  template <class Control>
  Status read(const Control* control, Control& state) const {
    static_assert(sizeof(Control) <= sizeof(LaunchControl));
    MK_RETURN_IF_ERROR(stream_.to_host(memory_.get(), control, sizeof(state), "state of a launch"));
    state = *static_cast<const Control*>(memory_.get());
    return {};
  }
  const OwnStream& stream() const { return stream_; }

 private:
  OwnStream stream_;
  std::unique_ptr<void, FreePinned> memory_;
};

}  // namespace mkernel::kernels
