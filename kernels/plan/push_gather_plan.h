// Plan of the all-gather of rows: every rank pushes its rows into the slab of every other rank of its node,
// and puts them into those of its rail peers, which push them on. Pure; the same on every rank, on host and
// device.
#pragma once

#include <cstdint>

#include "kernels/base/divisor.h"
#include "proto/abi/host_device.h"

namespace mkernel::kernels {

/// First come the chunks of the rank's own stream, then those of the others: the j-th chunks of all of them
/// in turn.
struct StreamTurns {
  struct Turn {
    std::int32_t stream, chunk;
  };

  std::int32_t own_chunks = 0;
  std::int32_t others = 0;       ///< streams after the own one
  std::int32_t most_chunks = 0;  ///< of one of these: one with fewer skips its turn

  MK_HOST_DEVICE std::int32_t turns() const { return own_chunks + others * most_chunks; }
  MK_HOST_DEVICE Turn turn(std::int32_t index) const {
    if (index < own_chunks) return {0, index};
    index -= own_chunks;
    return {1 + index % others, index / others};
  }
};

/// Parts begin at whole lines of 128 bytes (64 elements of 16 bits: one step of the product along k); the
/// last one may be shorter. 1 <= parts <= lines().
struct RowParts {
  static constexpr std::int64_t kLineBytes = 128;

  std::int64_t row_bytes = 0;
  Divisor parts;

  MK_HOST_DEVICE std::int32_t lines() const {
    return static_cast<std::int32_t>((row_bytes + kLineBytes - 1) / kLineBytes);
  }
  MK_HOST_DEVICE std::int32_t first_line(std::int32_t part) const { return lines() * part / parts; }
  MK_HOST_DEVICE std::int64_t begin(std::int32_t part) const {
    return part == parts ? row_bytes : first_line(part) * kLineBytes;
  }
  MK_HOST_DEVICE std::int64_t bytes(std::int32_t part) const { return begin(part + 1) - begin(part); }
};

/// Words in the operation's own workspace, data in the half of the lent one that a launch uses:
///   ready[source][chunk]   64-bit words: shares of the chunk that have come, over all launches
///   slab                   rows, first part 0 of all of them, then part 1, ... A slab for every source, one
///                          behind the other, of which a rank uses its own only when there is another node to
///                          put it to; or, of few rows, one slab that all sources share, own rows included
/// A chunk is one part (along k) of a block of rows; the parts of a block follow each other, so that a
/// product of these rows can begin when a part of them is here. There is a word per chunk instead of one
/// count per source because several CTAs push at their own pace: a sum over chunks would not say which of
/// them are whole.
///
/// What the halves rest on (base/lent_workspace.h): a launch takes at least one chunk from every rank, hence
/// every source has at least one block, if need be an empty one; and no launch ends before its own puts are
/// completed, since the next but one overwrites what they are read from. A chunk is one put: it has no more
/// than block_rows times kFanOutPieceBytes (cuda/comm/fan_out.cuh), far below abi::kMaxPutBytes.
struct PushGatherPlan {
  std::int64_t rows = 0;  ///< of all sources; below 2^31
  RowParts row;           ///< row_bytes: on GPUs a multiple of 16
  Divisor world;
  Divisor block_rows;
  Divisor shares;  ///< CTAs that share every chunk: what a launch adds to each word
  /// All sources have one slab, and tiles of the product hold rows of several of them. A source then has one
  /// block of rows at most.
  bool shared = false;

  /// floor(rows * source / world), without a division of 64 bits.
  MK_HOST_DEVICE std::int64_t first_row(std::int32_t source) const {
    const auto all = static_cast<std::int32_t>(rows);
    return std::int64_t{all / world} * source + all % world * source / world;
  }
  MK_HOST_DEVICE std::int64_t rows_of(std::int32_t source) const {
    return first_row(source + 1) - first_row(source);
  }
  /// Of the sources that have fewest; others have one more.
  MK_HOST_DEVICE std::int64_t min_rows() const { return static_cast<std::int32_t>(rows) / world; }
  /// Of the source that has most.
  MK_HOST_DEVICE std::int64_t max_rows() const { return world.ceil(static_cast<std::int32_t>(rows)); }
  MK_HOST_DEVICE std::int32_t blocks(std::int64_t rows_of_source) const {
    const std::int32_t count = block_rows.ceil(static_cast<std::int32_t>(rows_of_source));
    return count > 0 ? count : 1;
  }
  MK_HOST_DEVICE std::int32_t chunks(std::int32_t source) const {
    return blocks(rows_of(source)) * row.parts;
  }
  MK_HOST_DEVICE std::int32_t max_chunks() const { return blocks(max_rows()) * row.parts; }

  MK_HOST_DEVICE std::int32_t slabs() const { return shared ? 1 : static_cast<std::int32_t>(world); }
  MK_HOST_DEVICE std::int32_t slab_of(std::int32_t source) const { return shared ? 0 : source; }
  /// Rows of a slab, and the first one of them among all rows.
  MK_HOST_DEVICE std::int64_t slab_rows(std::int32_t slab) const { return shared ? rows : rows_of(slab); }
  std::int64_t most_slab_rows() const { return shared ? rows : max_rows(); }
  MK_HOST_DEVICE std::int64_t slab_row(std::int32_t slab) const { return shared ? 0 : first_row(slab); }
  /// Of the slabs that have fewest, or that have `more` = 1 rows more: as many as a tensor map may have,
  /// which is one at least.
  MK_HOST_DEVICE std::int64_t map_rows(std::int32_t more) const {
    const std::int64_t least = shared ? rows : min_rows() + more;
    return least > 0 ? least : 1;
  }
  /// Where the source's rows begin among those of its slab.
  MK_HOST_DEVICE std::int64_t row_in_slab(std::int32_t source) const {
    return shared ? first_row(source) : 0;
  }
  /// visit(source) for every source with rows among `begin` .. `end` - 1 of the shared slab, until it returns
  /// false. False when one did.
  template <class Visit>
  MK_HOST_DEVICE bool each_source(std::int64_t begin, std::int64_t end, const Visit& visit) const {
    for (std::int32_t source = 0; source < world; ++source) {
      const std::int64_t first = first_row(source), behind = first_row(source + 1);
      if (first < behind && first < end && behind > begin && !visit(source)) return false;
    }
    return true;
  }

  /// Value of a chunk's word from which the chunk of launch `epoch` is there.
  MK_HOST_DEVICE std::uint64_t count(std::uint64_t epoch) const { return (epoch + 1) * shares; }

  MK_HOST_DEVICE std::uint64_t ready_offset(std::int32_t source) const {
    return std::uint64_t{8} * source * max_chunks();
  }
  MK_HOST_DEVICE std::uint64_t word_bytes() const { return ready_offset(world); }
  MK_HOST_DEVICE std::uint64_t slab_offset(std::int32_t slab) const {
    return static_cast<std::uint64_t>(slab_row(slab)) * row.row_bytes;
  }
  /// Where a part of a slab's rows begins: [slab_rows, row.bytes(part)].
  MK_HOST_DEVICE std::uint64_t part_offset(std::int32_t slab, std::int32_t part) const {
    return slab_offset(slab) + static_cast<std::uint64_t>(slab_rows(slab) * row.begin(part));
  }
  /// Where a part of the source's row `source_row` lies, and that of those behind it.
  MK_HOST_DEVICE std::uint64_t row_offset(std::int32_t source, std::int64_t source_row,
                                          std::int32_t part) const {
    return part_offset(slab_of(source), part) +
           static_cast<std::uint64_t>((row_in_slab(source) + source_row) * row.bytes(part));
  }
  /// Where a chunk lies: [block's rows, row.bytes(part)], and how long it is.
  MK_HOST_DEVICE std::uint64_t chunk_offset(std::int32_t source, std::int32_t chunk) const {
    return row_offset(source, chunk / row.parts * std::int64_t{block_rows}, chunk % row.parts);
  }
  MK_HOST_DEVICE std::uint64_t chunk_bytes(std::int32_t source, std::int32_t chunk) const {
    const std::int64_t most = block_rows, behind = rows_of(source) - chunk / row.parts * most;
    return static_cast<std::uint64_t>((behind < most ? behind : most) * row.bytes(chunk % row.parts));
  }
  MK_HOST_DEVICE std::uint64_t data_bytes() const {
    return static_cast<std::uint64_t>(rows) * static_cast<std::uint64_t>(row.row_bytes);
  }
};

}  // namespace mkernel::kernels
