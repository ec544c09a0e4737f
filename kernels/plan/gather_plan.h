// Plan of the two-level all-gather: every rank has a stream of bytes that everybody gets, chunk by chunk.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/signal.h"

namespace mkernel::kernels {

/// Pure; the same on every rank. Its part of the symmetric workspace:
///   ready[source]        SignalWord: chunks of `source` that are in this rank's slab, over all launches
///   slab[epoch parity]   the streams of all sources, one behind the other
/// Two slabs are enough without any credit. A rank writes into a peer's slab of launch e only after its own
/// launch e - 1 ended, which took at least one chunk from every rank, which that rank gave out after its
/// launch e - 2 had ended: nobody reads the slab of launch e - 2 any more. This is why every stream has at
/// least one chunk, if need be an empty one.
class GatherPlan {
 public:
  struct Chunk {
    std::uint64_t offset = 0;  ///< in the slab
    std::uint64_t bytes = 0;
  };

  GatherPlan() = default;
  /// Chunk i of a source is bytes [bounds[source][i], bounds[source][i + 1]) of its stream; bounds begin
  /// with 0 and have at least two entries. `base`: where the plan's part of the workspace begins.
  GatherPlan(std::vector<std::vector<std::uint64_t>> bounds, std::uint64_t base);

  std::uint32_t sources() const { return static_cast<std::uint32_t>(bounds_.size()); }
  /// Also the puts per launch of channel (source -> each rail peer): a chunk is one put.
  std::uint64_t chunks(std::uint32_t source) const { return bounds_[source].size() - 1; }
  Chunk chunk(std::uint32_t source, std::uint64_t index) const;
  /// Value of ready[source], and arrival count, from which chunk `index` of launch `epoch` is there.
  std::uint64_t count(std::uint64_t epoch, std::uint32_t source, std::uint64_t index) const {
    return epoch * chunks(source) + index + 1;
  }

  std::uint64_t ready_offset(std::uint32_t source) const { return base_ + source * sizeof(SignalWord); }
  std::uint64_t slab_offset(std::uint64_t epoch) const { return slabs_ + (epoch & 1) * slab_bytes_; }
  /// End of the plan's part of the workspace.
  std::uint64_t end() const { return slabs_ + 2 * slab_bytes_; }

 private:
  std::vector<std::vector<std::uint64_t>> bounds_;
  std::vector<std::uint64_t> begin_;  ///< of each source's stream in the slab
  std::uint64_t base_ = 0;
  std::uint64_t slabs_ = 0;
  std::uint64_t slab_bytes_ = 0;
};

}  // namespace mkernel::kernels
