// Copies between one pair of GPUs: gathered while the engines are busy, handed over as one batch when they
// are not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "daemon/memory/gpu/memory.cuh"

namespace mkernel::memory::gpu {

/// One thread.
///
/// NOTES: copies that follow each other on a stream pay about 3 us each, so 64 KiB at a time move at 20 to 30
/// GB/s; in batches of 16 they move at 130 (2 x H200, CUDA 13.0). A lone copy is still handed over at once.
class Queue {
 public:
  /// `runs_on` is the GPU whose engines copy.
  static Result<std::unique_ptr<Queue>> open(std::shared_ptr<const Device> runs_on);
  explicit Queue(std::shared_ptr<const Device> runs_on) : runs_on_(std::move(runs_on)) {}
  /// Waits for the copies that the engines have.
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  /// Returns the copy's number: 1, 2, 3, ...
  std::uint64_t start(std::shared_ptr<Memory> source, std::uint64_t source_offset,
                      std::shared_ptr<Memory> target, std::uint64_t target_offset, std::uint64_t bytes);
  /// Takes note of the batches that are over, hands over the next.
  Status poll();
  /// All copies up to this number are over, as of the last poll().
  std::uint64_t completed() const { return completed_; }

 private:
  struct Batch {
    CUevent over;
    std::uint64_t last;  ///< number of its last copy
  };
  struct Copy {
    std::shared_ptr<Memory> source, target;  ///< kept until it is over
  };

  Status hand_over();
  Status copy_gathered();
  Result<CUevent> take_event();
  const Driver& driver() const { return runs_on_->driver(); }

  const std::shared_ptr<const Device> runs_on_;
  CUstream stream_ = nullptr;
  std::uint64_t started_ = 0, completed_ = 0;
  std::deque<Copy> copies_;  ///< completed_ + 1 .. started_
  std::deque<Batch> batches_;
  std::vector<CUdeviceptr> sources_, targets_;  ///< gathered: started and not handed over
  std::vector<std::size_t> sizes_;
  std::vector<CUevent> spare_events_;
};

}  // namespace mkernel::memory::gpu
