// Plan of what the ranks of a node write into each other's memory when rows travel to experts and finished
// rows travel back: words, counts, pools. Pure; the same on every rank, on host and device.
#pragma once

#include <cstdint>

#include "kernels/plan/expert_blocks.h"
#include "kernels/plan/expert_routing.h"
#include "proto/abi/host_device.h"

namespace mkernel::kernels {

/// In the operation's own workspace of every rank. 64-bit words, which only grow:
///
///   word                     writer, how                               waiter            meaning in launch e
///   counted[source]          source, stores e + 1                      reading CTA       its counts are in;
///   its launch e - 1 is over arrived[block]           pushing warps, add rows; the owner adds   first
///   product     (e + 1) x block rows: the block is whole
///                            what a whole block lacks
///   hidden[block][column]    the tile's CTA, stores e + 1              second product    this part of h is
///   written stored[block]            CTAs of the last product, add 1           nobody            who adds
///   the last of a launch's column tiles
///                                                                                        signals the block's
///                                                                                        rows
///   finished[token][j]       the owner of expert j, stores e + 1       summing warps     the finished row is
///   at its home
///
/// The operation adds words of its own between CTAs of one rank: barriers of the dispatching CTAs, the
/// table's word, and work counters (which start at 0 in every launch: a launch uses one of two, and zeroes
/// the other). arrived[] is the only one that counts rows, and every launch raises it by the same number, the
/// launch that is refused too: the owner adds block rows - rows for every block of the pool, used or not. So
/// what is waited for follows from the epoch alone, and no rank keeps totals.
///
/// The data:
///   counts[e & 1][source]    RoutingProblem, then int32 [experts]: what the source sends to each expert
///   rows[row]                the pool: one token's row for one expert; experts in local order (OwnedExperts)
///   origins[row]             ExpertRowOrigin: where the finished row goes
///   hidden[row]              between the products, written and read on this rank alone
///   finished[token][j]       at the token's home: the finished row of its j-th expert, without its weight
///
/// Why nothing is overwritten that somebody may still read. The exchange of counts is the barrier between
/// launches: a rank sends its counts of launch e when its launch e - 1 is over, and all else that it writes
/// into others' memory in launch e it writes when it has the counts of all. So whoever's memory it is has
/// ended launch e - 1: the pools need no second parity. The counts do: a rank that has sent its counts of
/// launch e and is waited for by nobody else may send those of e + 1 while others still read those of e; not
/// those of e + 2, for which it needs theirs of e + 1. A launch is over when all blocks of the rank's pool
/// are computed, which all rows that are pushed to it belong to, and all its tokens are summed, which all
/// finished rows that are pushed to it belong to: nothing of the launch comes later.
///
/// Why nobody is stuck. Counts wait for the launch before, of their own rank alone. Rows wait for the counts
/// of all. Tasks wait for rows and for earlier tasks of their rank (expert_tasks.h). Sums wait for tasks of
/// all ranks. A CTA that sums before the tasks of its rank are handed out needs another CTA there that does
/// not.
///
/// Lent workspaces (base/lent_workspace.h): a launch here ends only when it has the counts of all ranks that
/// write into its memory, as the halves need it. The pools may lie in the half that a launch uses, or once in
/// memory that no other operation uses.
struct ExpertRowOrigin {
  std::int32_t rank = 0;   ///< the home
  std::int32_t entry = 0;  ///< there: token * topk + j
};

struct ExpertExchangePlan {
  ExpertOwners owners;
  ExpertBlockRows cut;
  std::int32_t capacity_rows = 0;  ///< padded rows of a pool; a multiple of cut.unit
  std::int32_t max_tokens = 0;
  std::int32_t topk = 1;
  std::int32_t columns1 = 1;         ///< of tiles, of the first product
  std::int32_t columns2 = 0;         ///< of the second one; 0: there is only one product
  std::uint64_t row_bytes = 0;       ///< of a token
  std::uint64_t hidden_bytes = 0;    ///< of a row between the products; 0: there is only one
  std::uint64_t finished_bytes = 0;  ///< of a finished row

  /// Value of a word that one writer stores, in launch `epoch`.
  static MK_HOST_DEVICE std::uint64_t stamp(std::uint64_t epoch) { return epoch + 1; }
  /// Value of arrived[] from which a block is whole.
  MK_HOST_DEVICE std::uint64_t arrived_count(std::uint64_t epoch) const { return (epoch + 1) * cut.block; }
  /// Whether the CTA that raised stored[] from `before` was a launch's last one.
  MK_HOST_DEVICE bool last_column(std::uint64_t before) const {
    return (before + 1) % static_cast<std::uint64_t>(last_columns()) == 0;
  }
  /// Column tiles of the product whose rows are the finished ones.
  MK_HOST_DEVICE std::int32_t last_columns() const { return columns2 > 0 ? columns2 : columns1; }
  MK_HOST_DEVICE std::int32_t max_blocks() const { return cut.max_blocks(capacity_rows, owners.max_local()); }
  /// What the owner adds to arrived[block] itself. `mine`: null when the launch is refused.
  MK_HOST_DEVICE std::int32_t lacking_rows(const OwnedExperts* mine, std::int32_t block) const {
    if (mine == nullptr || block >= mine->all_blocks()) return cut.block;
    return cut.block - mine->block(block).rows;
  }

  // Offsets of words.
  MK_HOST_DEVICE std::uint64_t counted(std::int32_t source) const { return word(source); }
  MK_HOST_DEVICE std::uint64_t arrived(std::int32_t block) const {
    return counted(owners.world) + word(block);
  }
  MK_HOST_DEVICE std::uint64_t stored(std::int32_t block) const {
    return arrived(max_blocks()) + word(block);
  }
  MK_HOST_DEVICE std::uint64_t hidden_word(std::int32_t block, std::int32_t column) const {
    return stored(max_blocks()) + (columns2 > 0 ? word(std::int64_t{block} * columns1 + column) : 0);
  }
  MK_HOST_DEVICE std::uint64_t finished_word(std::int32_t entry) const {
    return hidden_word(max_blocks(), 0) + word(entry);
  }
  MK_HOST_DEVICE std::uint64_t word_bytes() const { return aligned(finished_word(max_tokens * topk)); }

  // Offsets of data.
  MK_HOST_DEVICE std::uint64_t counts_bytes() const {
    return aligned(sizeof(RoutingProblem) + static_cast<std::uint64_t>(owners.experts) * 4);
  }
  MK_HOST_DEVICE std::uint64_t counts(std::uint64_t epoch, std::int32_t source) const {
    return word_bytes() + ((epoch & 1) * owners.world + source) * counts_bytes();
  }
  MK_HOST_DEVICE std::uint64_t row(std::int32_t pool_row) const {
    return counts(0, 2 * owners.world) + pool_row * row_bytes;
  }
  MK_HOST_DEVICE std::uint64_t origin(std::int32_t pool_row) const {
    return aligned(row(capacity_rows)) + pool_row * sizeof(ExpertRowOrigin);
  }
  MK_HOST_DEVICE std::uint64_t hidden(std::int32_t pool_row) const {
    return aligned(origin(capacity_rows)) + pool_row * hidden_bytes;
  }
  MK_HOST_DEVICE std::uint64_t finished(std::int32_t entry) const {
    return aligned(hidden(capacity_rows)) + entry * finished_bytes;
  }
  MK_HOST_DEVICE std::uint64_t bytes() const { return aligned(finished(max_tokens * topk)); }

 private:
  static MK_HOST_DEVICE std::uint64_t word(std::int64_t index) {
    return static_cast<std::uint64_t>(index) * 8;
  }
  static MK_HOST_DEVICE std::uint64_t aligned(std::uint64_t bytes) { return (bytes + 127) / 128 * 128; }
};

}  // namespace mkernel::kernels
