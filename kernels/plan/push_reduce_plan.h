// Plan of the reduce-scatter of tiles inside a node: every rank pushes its partial tiles into a slot of its
// own at their reducer, who sums the slots of its node. The reducer of an owner is the rank of the node with
// the owner's local index: on the owner's node itself. An all-reduce of few rows may do without owners: every
// rank gets the partials of all rows and sums them for itself (`to_all`), in the same order and so with the
// same bits. Pure; the same on every rank, on host and device.
#pragma once

#include <cstdint>

#include "kernels/plan/cuts.h"
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
///
/// Where slots are `marked`, kernels do without these words: the data themselves say that they have come.
/// Their slots lie in the operation's own workspace, which nobody else writes:
///   marked slot[half][source]    as the slots above; an element that has not come is kMark
/// Each rank fills its slots with the mark before any rank launches. It reads a piece of a slot until no
/// element in it is the mark, and then writes the mark there again. No element is ordered against another
/// one, for each says for itself that it is there; so no fence is needed between the stores and a signal.
///
/// Nobody reads data of another launch, and no data are overwritten or marked too late: the half is that of
/// the lent workspace, although the slots do not lie there, and a launch ends only when its rank has seen
/// every element of every source, its own among them, or, without rows, the dummy signal of every rank. So a
/// rank in launch g + 2, which stores into the half of launch g, knows that all ranks have ended launch g
/// (base/lent_workspace.h), with all the marks that they wrote in it. Rows and columns that do not exist are
/// neither stored nor awaited. A launch that gives up leaves slots half marked: its rank launches nothing any
/// more, and those that wait for it give up too.
struct PushReducePlan {
  /// A NaN that no rounding gives: of every NaN, of either sign, conversions to bf16 and fp16 make 0x7FFF.
  static constexpr std::uint16_t kMark = 0xFFFF;
  static constexpr std::uint64_t kMostMarkedBytes = 64 << 20;  ///< more memory is not worth the time

  std::int64_t rows = 0;     ///< of all owners
  std::int64_t columns = 0;  ///< a multiple of 8
  std::int32_t world = 1;    ///< owners
  std::int32_t sources = 1;  ///< ranks of a node; divides `world`
  std::int32_t tile_rows = 1;
  std::int32_t tile_columns = 1;
  bool to_all = false;  ///< every rank gets the partials of all rows, and sums them for itself; on one node
  bool marked = false;  ///< slots have marks in kernels, always with `to_all`; on one node
  std::uint64_t marked_begin = 0;  ///< of marked slots in the operation's own workspace; a multiple of 128

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
  MK_HOST_DEVICE std::uint64_t slot_bytes() const {
    return whole_lines(static_cast<std::uint64_t>(max_rows() * columns * 2));
  }
  MK_HOST_DEVICE std::uint64_t word_bytes() const { return ready_offset(nodes(), 0); }
  MK_HOST_DEVICE std::uint64_t slot_offset(std::int32_t node_turn, std::int32_t source) const {
    return (node_turn * sources + source) * slot_bytes();
  }
  MK_HOST_DEVICE std::uint64_t data_bytes() const { return slot_offset(nodes(), 0); }
  MK_HOST_DEVICE std::uint64_t marked_offset(std::uint64_t half, std::int32_t source) const {
    return marked_begin + half * data_bytes() + slot_offset(0, source);
  }
  MK_HOST_DEVICE std::uint64_t marked_end() const { return marked_offset(2, 0); }
  MK_HOST_DEVICE std::uint64_t marked_bytes() const { return marked_end() - marked_begin; }

 private:
  MK_HOST_DEVICE std::int64_t cut(std::int32_t owner) const { return rows * owner / world; }
};

/// Waits that come after other ranks' waits end later than these, so that a missing rank is named by those
/// who wait for it directly. Waits for tiles of the node's ranks are at stage 0; the others are for what is
/// made of these tiles, for what owners make of that, and for what is forwarded of that.
enum SumStage : std::uint32_t { kAfterNode = 1, kAfterOwner = 2, kAfterForward = 3 };

}  // namespace mkernel::kernels
