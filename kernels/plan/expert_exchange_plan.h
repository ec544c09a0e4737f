// Plan of what ranks write into each other's memory when rows travel to experts and finished rows travel
// back: words, counts, pools, and what crosses nodes. Pure; the same on every rank, on host and device.
#pragma once

#include <cstdint>

#include "kernels/plan/cuts.h"
#include "kernels/plan/expert_blocks.h"
#include "kernels/plan/expert_routing.h"
#include "proto/abi/host_device.h"

namespace mkernel::kernels {

/// Beside a row in the pool: where its finished row goes.
struct ExpertRowOrigin {
  std::int32_t rank = 0;   ///< where the finished row is summed
  std::int32_t entry = 0;  ///< number of its entry in finished[] there
};

/// Of a token that crosses to another node: what comes before its entries there.
struct CrossingHead {
  std::int32_t returning = 0;  ///< its number of returning
  std::int32_t entries = 0;    ///< its experts on that node: 1 .. top-k
  std::int32_t reserved[2] = {};
};
static_assert(sizeof(CrossingHead) == 16);

/// Of a token that crosses to another node: one of its experts there. They follow in top-k order.
struct CrossingEntry {
  std::int32_t expert = 0;
  std::int32_t index = 0;  ///< number of the row among those that its source sends to the expert
  float weight = 0;
  std::int32_t reserved = 0;
};
static_assert(sizeof(CrossingEntry) == 16);

/// In the operation's own workspace of every rank. 64-bit words, which only grow; what launch e waits for
/// (the README of moe_dispatch_gemm has writers and waiters):
///   counted[source]             e + 1: its counts are in, and its launch e - 1 is over
///   arrived[block]              (e + 1) x block rows: all rows of the block are in the pool
///   hidden[block][column]       e + 1: this part of what lies between the products is written
///   stored[block]               nobody waits: who adds the last of a launch's column tiles signals the rows
///   shared_hidden[block][column], shared_stored[block]   the same of the shared expert's blocks
///   finished[entry]             e + 1: the finished row is where it is summed
///   staged[node turn][row]      e + 1: the row may be put
///   forwarded[node turn][row]   e + 1: copies of the row are pushed, and its head has been read
///   summed[node turn][row]      e + 1: the sum may be put
/// and arrival counts, of the channels between rail peers: on lane 0 the counts, then rows, on lane 1 sums. A
/// launch puts as many times on a channel whatever its routing: rows are cut into `pieces` pieces, of which
/// some may be empty. So what is waited for follows from the epoch alone, and no rank keeps totals.
///
/// For the same reason every launch raises arrived[] by the same number, the launch that is refused too: the
/// owner adds block rows - rows for every block of the pool, used or not. The operation adds words of its own
/// between CTAs of one rank: barriers of the dispatching CTAs, the table's word, and work counters (which
/// start at 0 in every launch: a launch uses one of two, and zeroes the other).
///
/// The data. `row` of a node turn is a number of crossing (ChunkedRouting), or of returning where sums are:
///   counts[e & 1][source]       RoutingProblem; int32 [experts]: rows that the source sends to each expert;
///                               int32 [nodes]: tokens of it that cross to each node
///   row[pool row]               one token's row for one expert; experts in local order (OwnedExperts),
///   within
///                               an expert by source (PushOrder::source)
///   origin[pool row]            ExpertRowOrigin: where the finished row goes
///   hidden[pool row]            between the products, written and read on this rank alone
///   shared_hidden[token]        between the products of the shared expert
///   finished[entry]             finished rows, without their weights: of own tokens [max_tokens][topk], then
///                               by node turn of tokens that crossed to this rank, then the shared expert's
///                               [max_tokens]
///   crossing_out[node turn][row], crossing_in[node turn][row]
///                               CrossingHead, CrossingEntry [topk], the token's row; at the sender and at
///                               the receiver
///   sum_out[node turn][row], sum_in[node turn][row]
///                               the weighted sum of a token's rows of one node; at the two, the other way
///
/// Why nothing is overwritten that somebody may still read. The exchange of counts is the barrier between
/// launches: a rank sends its counts of launch e when its launch e - 1 is over, and all else that it writes
/// into others' memory in launch e it writes when it has the counts of all. So whoever's memory it is has
/// ended launch e - 1: the pools need no second parity. The counts do: a rank that has sent its counts of
/// launch e and is waited for by nobody else may send those of e + 1 while others still read those of e; not
/// those of e + 2, for which it needs theirs of e + 1. A launch is over when all blocks of the rank's pool
/// are computed, which all rows that are pushed to it belong to, all its tokens and all that crossed to it
/// are summed, which all finished rows that are pushed to it belong to, and all its puts are completed:
/// nothing of the launch comes later but puts without payload.
///
/// Why nobody is stuck. Counts wait for the launch before, of their own rank alone. Staged and pushed rows
/// wait for the counts of all; forwarded rows for rows that are staged on another node; tasks for pushed and
/// forwarded rows and for earlier tasks of their rank (layer_tasks.h); sums of what crossed for tasks of
/// this node; sums of own tokens for those and for tasks of this node. Each kind waits for kinds before it,
/// forwarded rows for no pushed ones. So a warp may do several kinds if it does them in this order, pushed
/// and forwarded rows in any: it takes no unit of a later kind before all units of the earlier ones are
/// taken. A CTA that sums before the tasks of its rank are handed out needs
/// another one there that does not, and inter_send is a warp of its own, as is the one that forwards counts.
///
/// Lent workspaces (base/lent_workspace.h): a launch here ends only when it has the counts of all ranks that
/// write into its memory, as the halves need it. The pools may lie in the half that a launch uses, or once in
/// memory that no other operation uses.
struct ExpertExchangePlan {
  static constexpr std::uint32_t kRowsLane = 0;  ///< counts, then rows
  static constexpr std::uint32_t kSumsLane = 1;  ///< sums of a node, back to the rank of the tokens

  ExpertOwners owners;
  std::int32_t ranks_per_node = 1;  ///< divides owners.world
  ExpertBlockRows cut;
  std::int32_t capacity_rows = 0;  ///< padded rows of a pool; a multiple of cut.unit
  std::int32_t max_tokens = 0;
  std::int32_t topk = 1;
  std::int32_t pieces = 1;         ///< puts of a launch for the rows that cross to a node, and for their sums
  std::int32_t columns1 = 1;       ///< columns of tiles of the first product
  std::int32_t columns2 = 0;       ///< columns of tiles of the second one; 0: there is only one product
  std::uint64_t row_bytes = 0;     ///< bytes of a token's row; a multiple of 16
  std::uint64_t hidden_bytes = 0;  ///< bytes of a row between the products; 0: there is only one product
  std::uint64_t finished_bytes = 0;  ///< bytes of a finished row
  std::int32_t shared_columns1 = 0;  ///< as columns1, of the shared expert; 0: there is none
  std::uint64_t shared_bytes = 0;    ///< as hidden_bytes
  RankSeats seats;

  MK_HOST_DEVICE std::int32_t nodes() const { return owners.world / ranks_per_node; }
  MK_HOST_DEVICE std::int32_t others() const { return nodes() - 1; }
  MK_HOST_DEVICE PushOrder order(std::int32_t rank) const { return {owners, rank, ranks_per_node, seats}; }

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
  /// Of finished[]: the first one of a token that crossed from the rank at `node_turn`.
  MK_HOST_DEVICE std::int32_t crossed_entry(std::int32_t node_turn, std::int32_t returning) const {
    return ((1 + node_turn) * max_tokens + returning) * topk;
  }
  /// Of finished[]: the shared expert's for an own token.
  MK_HOST_DEVICE std::int32_t shared_entry(std::int32_t token) const {
    return nodes() * max_tokens * topk + token;
  }
  /// Of finished[]; below 2^31.
  MK_HOST_DEVICE std::int32_t entries() const { return shared_entry(shared_columns1 > 0 ? max_tokens : 0); }

  /// Blocks of the shared expert, of so many own tokens.
  MK_HOST_DEVICE std::int32_t shared_blocks(std::int32_t tokens) const {
    return shared_columns1 > 0 ? cut.blocks(tokens) : 0;
  }
  /// `expert` is not set; rows are tokens.
  MK_HOST_DEVICE OwnedExperts::Block shared_block(std::int32_t tokens, std::int32_t index) const {
    const std::int32_t first = index * cut.block, left = tokens - first;
    return {0, first, left < cut.block ? left : std::int32_t{cut.block}};
  }

  // Puts. `rows`: that cross to a node in this launch; none when it is refused.
  MK_HOST_DEVICE std::int32_t piece_begin(std::int32_t piece, std::int32_t rows) const {
    return static_cast<std::int32_t>(std::int64_t{rows} * piece / pieces);
  }
  MK_HOST_DEVICE std::int32_t piece_of(std::int32_t row, std::int32_t rows) const {
    return static_cast<std::int32_t>(((std::int64_t{row} + 1) * pieces - 1) / rows);
  }
  /// Arrivals on lane 0 from which the counts have come; a piece of rows has.
  MK_HOST_DEVICE std::uint64_t counts_arrivals(std::uint64_t epoch) const { return epoch * (pieces + 1) + 1; }
  MK_HOST_DEVICE std::uint64_t rows_arrivals(std::uint64_t epoch, std::int32_t piece) const {
    return counts_arrivals(epoch) + piece + 1;
  }
  /// Arrivals on lane 1 from which a piece of sums has come.
  MK_HOST_DEVICE std::uint64_t sums_arrivals(std::uint64_t epoch, std::int32_t piece) const {
    return epoch * pieces + piece + 1;
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
  MK_HOST_DEVICE std::uint64_t shared_stored(std::int32_t block) const {
    return hidden_word(max_blocks(), 0) + word(block);
  }
  MK_HOST_DEVICE std::uint64_t shared_hidden_word(std::int32_t block, std::int32_t column) const {
    return shared_stored(shared_blocks(max_tokens)) + word(std::int64_t{block} * shared_columns1 + column);
  }
  MK_HOST_DEVICE std::uint64_t finished_word(std::int32_t entry) const {
    return shared_hidden_word(shared_blocks(max_tokens), 0) + word(entry);
  }
  MK_HOST_DEVICE std::uint64_t staged_word(std::int32_t node_turn, std::int32_t row) const {
    return finished_word(entries()) + word(std::int64_t{node_turn} * max_tokens + row);
  }
  MK_HOST_DEVICE std::uint64_t forwarded_word(std::int32_t node_turn, std::int32_t returning) const {
    return staged_word(others() + node_turn, returning);
  }
  MK_HOST_DEVICE std::uint64_t summed_word(std::int32_t node_turn, std::int32_t returning) const {
    return staged_word(2 * others() + node_turn, returning);
  }
  MK_HOST_DEVICE std::uint64_t word_bytes() const { return whole_lines(staged_word(3 * others(), 0)); }

  // Offsets of data.
  MK_HOST_DEVICE std::uint64_t counts_bytes() const {
    return whole_lines(sizeof(RoutingProblem) + static_cast<std::uint64_t>(owners.experts + nodes()) * 4);
  }
  MK_HOST_DEVICE std::uint64_t counts(std::uint64_t epoch, std::int32_t source) const {
    return word_bytes() + ((epoch & 1) * owners.world + source) * counts_bytes();
  }
  /// Within counts[]: what follows the problem.
  static constexpr std::uint64_t kRowsInCounts = sizeof(RoutingProblem);
  MK_HOST_DEVICE std::uint64_t crossings_in_counts() const {
    return kRowsInCounts + static_cast<std::uint64_t>(owners.experts) * 4;
  }
  MK_HOST_DEVICE std::uint64_t row(std::int32_t pool_row) const {
    return counts(0, 2 * owners.world) + pool_row * row_bytes;
  }
  MK_HOST_DEVICE std::uint64_t origin(std::int32_t pool_row) const {
    return whole_lines(row(capacity_rows)) + pool_row * sizeof(ExpertRowOrigin);
  }
  MK_HOST_DEVICE std::uint64_t hidden(std::int32_t pool_row) const {
    return whole_lines(origin(capacity_rows)) + pool_row * hidden_bytes;
  }
  MK_HOST_DEVICE std::uint64_t shared_hidden(std::int32_t token) const {
    return whole_lines(hidden(capacity_rows)) + static_cast<std::uint64_t>(token) * shared_bytes;
  }
  MK_HOST_DEVICE std::uint64_t finished(std::int32_t entry) const {
    return whole_lines(shared_hidden(max_tokens)) + entry * finished_bytes;
  }
  /// Within crossing_out[] and crossing_in[]: the token's row.
  MK_HOST_DEVICE std::uint64_t row_in_crossing() const {
    return sizeof(CrossingHead) + static_cast<std::uint64_t>(topk) * sizeof(CrossingEntry);
  }
  MK_HOST_DEVICE std::uint64_t crossing_bytes() const { return row_in_crossing() + row_bytes; }
  MK_HOST_DEVICE std::uint64_t crossing_out(std::int32_t node_turn, std::int32_t row) const {
    return whole_lines(finished(entries())) +
           crossing_bytes() * static_cast<std::uint64_t>(node_turn * max_tokens + row);
  }
  MK_HOST_DEVICE std::uint64_t crossing_in(std::int32_t node_turn, std::int32_t row) const {
    return crossing_out(others() + node_turn, row);
  }
  MK_HOST_DEVICE std::uint64_t sum_out(std::int32_t node_turn, std::int32_t returning) const {
    return whole_lines(crossing_out(2 * others(), 0)) +
           finished_bytes * static_cast<std::uint64_t>(node_turn * max_tokens + returning);
  }
  MK_HOST_DEVICE std::uint64_t sum_in(std::int32_t node_turn, std::int32_t returning) const {
    return sum_out(others() + node_turn, returning);
  }
  MK_HOST_DEVICE std::uint64_t bytes() const { return whole_lines(sum_out(2 * others(), 0)); }

 private:
  static MK_HOST_DEVICE std::uint64_t word(std::int64_t index) {
    return static_cast<std::uint64_t>(index) * 8;
  }
};

}  // namespace mkernel::kernels
