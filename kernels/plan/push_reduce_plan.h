// Plan of the reduce-scatter of tiles inside a node: every rank pushes its partial tiles into a slot of its
// own at their reducer, who sums the slots of its node. The reducer of an owner is the rank of the node with
// the owner's local index: on the owner's node itself. An all-reduce of few rows may do without owners: every
// rank gets the partials of all rows and sums them for itself (`to_all`), in the same order and so with the
// same bits. Pure; the same on every rank, on host and device.
#pragma once

#include <cstdint>

#include "proto/abi/host_device.h"

namespace mkernel::kernels {

/// At a reducer, words in the operation's own workspace, data in the half of the lent one that a launch uses:
///   ready[node turn][source][row tile][column tile]
///                                64-bit words: launches for which the source's tile has come
///   slot[node turn][source]      the source's partial of the owner's rows, [rows of the owner, columns], 16
///                                bits each
/// `source`: local index on this node. `node turn`: whose rows they are, the reducer's own last
/// (plan/raster.h). Every word has one writer, who stores it. What the halves rest on
/// (base/lent_workspace.h): a launch sees a word of its own from every rank of its node; an owner without
/// rows gets a dummy signal, tile 0.
struct PushReducePlan {
  std::int64_t rows = 0;     ///< of all owners
  std::int64_t columns = 0;  ///< a multiple of 8
  std::int32_t world = 1;    ///< owners
  std::int32_t sources = 1;  ///< ranks of a node; divides `world`
  std::int32_t tile_rows = 1;
  std::int32_t tile_columns = 1;
  bool to_all = false;  ///< every rank gets the partials of all rows, and sums them for itself; on one node

  MK_HOST_DEVICE std::int64_t first_row(std::int32_t owner) const { return to_all ? 0 : cut(owner); }
  MK_HOST_DEVICE std::int64_t rows_of(std::int32_t owner) const {
    return to_all ? rows : cut(owner + 1) - cut(owner);
  }
  MK_HOST_DEVICE std::int32_t nodes() const { return world / sources; }
  /// Of the owner that has most.
  MK_HOST_DEVICE std::int64_t max_rows() const { return to_all ? rows : (rows + world - 1) / world; }
  MK_HOST_DEVICE bool some_without_rows() const { return !to_all && rows < world; }
  MK_HOST_DEVICE std::int64_t row_tiles() const { return (max_rows() + tile_rows - 1) / tile_rows; }
  MK_HOST_DEVICE std::int64_t column_tiles() const { return (columns + tile_columns - 1) / tile_columns; }

  /// Value of a word from which the tile of launch `epoch` is there.
  static MK_HOST_DEVICE std::uint64_t count(std::uint64_t epoch) { return epoch + 1; }

  MK_HOST_DEVICE std::uint64_t ready_offset(std::int32_t node_turn, std::int32_t source) const {
    return (node_turn * sources + source) * row_tiles() * column_tiles() * 8;
  }
  MK_HOST_DEVICE std::uint64_t slot_bytes() const { return (max_rows() * columns * 2 + 127) / 128 * 128; }
  MK_HOST_DEVICE std::uint64_t word_bytes() const { return ready_offset(nodes(), 0); }
  MK_HOST_DEVICE std::uint64_t slot_offset(std::int32_t node_turn, std::int32_t source) const {
    return (node_turn * sources + source) * slot_bytes();
  }
  MK_HOST_DEVICE std::uint64_t data_bytes() const { return slot_offset(nodes(), 0); }

 private:
  MK_HOST_DEVICE std::int64_t cut(std::int32_t owner) const { return rows * owner / world; }
};

/// Waits that come after other ranks' waits end later than these, so that a missing rank is named by those
/// who wait for it directly. Waits for tiles of the node's ranks are at stage 0; the others are for what is
/// made of these tiles, for what owners make of that, and for what is forwarded of that.
enum SumStage : std::uint32_t { kAfterNode = 1, kAfterOwner = 2, kAfterForward = 3 };

}  // namespace mkernel::kernels
