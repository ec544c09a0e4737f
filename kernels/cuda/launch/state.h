// How the host reads what a launch has left in device memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
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
    auto memory = pinned_memory(sizeof(Pinned), "state of a launch");
    if (!memory.ok()) return memory.status();
    LaunchStateReader reader;
    reader.stream_ = std::move(*stream);
    reader.memory_ = std::move(*memory);
    return Result<LaunchStateReader>(std::move(reader));
  }

  static constexpr std::uint64_t kMostBytes = sizeof(LaunchControl);

  /// Once the stream of the launch is done. Blocks until it is read.
  template <class Control>
  Status read(const Control* control, Control& state) const {
    static_assert(sizeof(Control) <= kMostBytes);
    return read(control, &state, sizeof(state));
  }
  /// At most kMostBytes.
  Status read(const void* on_device, void* state, std::uint64_t bytes) const {
    void* const copy = &pinned().copy;
    MK_RETURN_IF_ERROR(stream_.to_host(copy, on_device, bytes, "state of a launch"));
    std::memcpy(state, copy, bytes);
    return {};
  }
  /// From now on launches with `control` tell this reader when they fail. It must outlive them.
  Status watch(LaunchControl* control) const {
    std::uint32_t* const word = &pinned().failed;
    return stream_.to_device(&control->host_failed, &word, sizeof(word), "control block");
  }
  /// Whether a launch that this reader watches has failed or was stopped. Never blocks.
  bool has_failed() const { return std::atomic_ref(pinned().failed).load(std::memory_order_acquire) != 0; }
  const OwnStream& stream() const { return stream_; }

 private:
  struct Pinned {
    LaunchControl copy;
    std::uint32_t failed;
  };
  Pinned& pinned() const { return *static_cast<Pinned*>(memory_.get()); }

  OwnStream stream_;
  std::unique_ptr<void, FreePinned> memory_;
};

}  // namespace mkernel::kernels
