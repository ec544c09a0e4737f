// Marked data (plan/push_reduce_plan.h) as step machines see them: data that say themselves that they have
// come.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/kernels/plan/simulation/memory.h"
#include "tests/unit/kernels/plan/simulation/scheduler.h"
#include "tests/unit/kernels/plan/simulation/world.h"

namespace mkernel::test {

/// The places of marked data in the memory of all ranks. Whether a piece has come is the state of the piece
/// itself: a word that is 1 from its store to its mark. Pieces come one by one, and marks are written at any
/// time until the launch ends.
class MarkedData {
 public:
  struct Piece {
    Memory* memory;
    Span at;
    Word* come;
  };

  MarkedData(Scheduler& scheduler, const Settings& settings) : scheduler_(scheduler), settings_(settings) {}

  /// In `memory`, of rank `index`.
  Piece piece(std::int32_t index, Memory& memory, const Span& at) {
    return {&memory, at, &come_[{index, at.at}]};
  }
  /// A store by rank `storing`; it ends at any later time.
  void begin_store(std::int32_t storing, const Piece& piece) {
    if (piece.come->value != 0 && settings_.fault != Fault::kGoesOn)
      scheduler_.report("rank " + std::to_string(storing) + " stores over what has no mark");
    begin(piece);
  }
  void end_store(const Piece& piece, Stamp first, bool right = true) {
    piece.memory->end_write(piece.at, first, right);
    scheduler_.set(*piece.come, 1);
  }
  /// "" or which piece is not marked, when all launches have ended.
  std::string check() const {
    for (const auto& [place, come] : come_)
      if (come.value != 0) return "data of rank " + std::to_string(place.first) + " end without their mark";
    return "";
  }

  /// Marks that a warp has begun to write over what it has read.
  class Marks {
   public:
    explicit Marks(MarkedData& data) : data_(data) {}

    void begin(const Piece& piece) {
      if (data_.settings_.fault == Fault::kNoMarks) return;
      data_.begin(piece);
      begun_.push_back(piece);
    }
    void finish() {
      for (const Piece& piece : begun_) {
        const std::size_t cells = piece.memory->read(piece.at).size();
        piece.memory->end_write(piece.at, std::vector<Stamp>(cells, Memory::kNeverWritten));
        data_.scheduler_.set(*piece.come, 0);
      }
      begun_.clear();
    }

   private:
    MarkedData& data_;
    std::vector<Piece> begun_;
  };

 private:
  void begin(const Piece& piece) {
    const std::string problem = piece.memory->begin_write(piece.at);
    if (!problem.empty() && settings_.fault != Fault::kGoesOn) scheduler_.report(problem);
  }

  Scheduler& scheduler_;
  const Settings& settings_;
  std::map<std::pair<std::int32_t, std::uint64_t>, Word> come_;  ///< by rank and offset
};

}  // namespace mkernel::test
