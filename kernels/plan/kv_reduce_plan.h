// Plan of the sums of gradients of keys and values: every rank stores its part of those of another rank at
// the one of its node that sums them, which puts the sums to a rail peer that owns the keys. Pure.
#pragma once

#include <cstdint>

#include "kernels/plan/kv_gather_plan.h"
#include "kernels/plan/ring_backward_tasks.h"

namespace mkernel::kernels {

/// Behind what KvGatherPlan lays out, in chunks as it cuts them, gradients in fp32:
///   stored[distance][writer][chunk]   64-bit words: launches for which the writer's part has come
///   slot[distance][writer][tensor]    its part
///   staged[distance][tensor]          the sums of this node's parts, where they are put from
///   partial[distance][tensor]         those of another node, where they arrive
/// A distance is that of a node behind this one: slots and staged sums at distance d are for the keys of the
/// rail peer there, partials come from the one there. At distance 0 lie the slots of the own keys, whose sums
/// are not staged. A writer is a rank of this node, by local rank. A part of a chunk that no query of its
/// writer sees is not stored, and owners know which these are (contributes()).
///
/// Sums are made in the order of ranks: over the writers of a node, then over the nodes. So they do not
/// depend on who was first.
///
/// Over several nodes a chunk's sum is one put for d_k and one for d_v, in the order of KvGatherPlan; empty
/// ones where no query of the node sees it. What the halves rest on (base/lent_workspace.h): a launch ends
/// when all parts of all others, and all puts, have come.
struct KvReducePlan {
  static constexpr std::int32_t kTensors = KvGatherPlan::kTensors;
  static constexpr std::int32_t kElementBytes = 4;
  static constexpr std::uint64_t kAlignment = 128;

  std::int32_t nodes = 1, writers = 1;
  std::int32_t chunks = 0;
  std::uint64_t first_word = 0, first_byte = 0;  ///< where the gather's end
  std::uint64_t block_bytes = 0;                 ///< of a tensor of the owner that has most

  KvReducePlan() = default;
  /// `gather`: cut already.
  explicit KvReducePlan(const KvGatherPlan& gather)
      : nodes(gather.rails() + 1),
        writers(gather.near + 1),
        chunks(gather.chunks()),
        first_word(gather.word_bytes()),
        first_byte(aligned(gather.data_bytes())) {
    for (std::int32_t owner = 0; owner < gather.world; ++owner) {
      const std::uint64_t bytes = aligned(widened(gather.rows(owner) * std::uint64_t(gather.row_bytes)));
      block_bytes = block_bytes < bytes ? bytes : block_bytes;
    }
  }

  std::uint64_t stored_offset(std::int32_t distance, std::int32_t writer) const {
    return first_word + std::uint64_t{8} * (distance * writers + writer) * chunks;
  }
  std::uint64_t word_bytes() const { return stored_offset(nodes, 0); }
  /// Value of a word from which the part of launch `epoch` is there.
  static std::uint64_t count(std::uint64_t epoch) { return epoch + 1; }

  std::uint64_t slot_offset(std::int32_t distance, std::int32_t writer, std::int32_t tensor) const {
    return block_offset(distance * writers + writer, tensor);
  }
  std::uint64_t staged_offset(std::int32_t distance, std::int32_t tensor) const {
    return block_offset(nodes * writers + distance - 1, tensor);
  }
  std::uint64_t partial_offset(std::int32_t distance, std::int32_t tensor) const {
    return block_offset(nodes * writers + nodes - 1 + distance - 1, tensor);
  }
  std::uint64_t data_bytes() const { return block_offset(nodes * writers + 2 * (nodes - 1), 0); }

  /// Where a chunk lies in each of these, and how long it is.
  static std::uint64_t chunk_offset(const KvGatherPlan& gather, std::int32_t owner, std::int32_t chunk) {
    return widened(gather.chunk_offset(owner, chunk));
  }
  static std::uint64_t chunk_bytes(const KvGatherPlan& gather, std::int32_t owner, std::int32_t chunk) {
    return widened(gather.chunk_bytes(owner, chunk));
  }

  /// Whether a query of `writer` sees a key of the owner's chunk.
  static bool contributes(const KvGatherPlan& gather, std::int32_t writer, std::int32_t owner,
                          std::int32_t chunk) {
    const std::int32_t first = gather.part_rows[owner][0], row = gather.chunk_row(chunk);
    const std::int32_t end = row + gather.chunk_rows(owner, chunk);
    if (row == end) return false;
    return (row < first && RingBackwardTasks::is_seen(gather, writer, owner, 0)) ||
           (end > first && RingBackwardTasks::is_seen(gather, writer, owner, 1));
  }

 private:
  static std::uint64_t aligned(std::uint64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  /// From keys and values, of 16 bits.
  static std::uint64_t widened(std::uint64_t bytes) { return bytes / 2 * kElementBytes; }
  std::uint64_t block_offset(std::int32_t block, std::int32_t tensor) const {
    return first_byte + std::uint64_t(block * kTensors + tensor) * block_bytes;
  }
};

}  // namespace mkernel::kernels
