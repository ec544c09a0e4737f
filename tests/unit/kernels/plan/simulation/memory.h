// Memory that knows whose data it holds: every cell of a rank's workspace and result bears the stamp of what
// was written there last. Offsets are those of the plans, so a wrong one shows up as a wrong stamp.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "tests/unit/kernels/plan/simulation/scheduler.h"

namespace mkernel::test {

/// What a cell holds: which element of which rank's what, of which launch. The cells of one piece of data
/// have stamps that follow each other.
using Stamp = std::uint64_t;
enum class Content : std::uint64_t {
  kRows = 1,
  kPartialTile = 2,
  kNodeSum = 3,
  kSum = 4,
  kResult = 5,
  kCounts = 6,
  kOrigin = 7,
  kHidden = 8,
  kFinishedRow = 9,
  kCrossing = 10
};

/// `index`: of the cell, among all that the rank has of this kind.
inline Stamp stamp(std::uint64_t epoch, Content content, std::int64_t rank, std::int64_t index) {
  return (epoch + 1) << 48 | static_cast<Stamp>(content) << 44 | static_cast<Stamp>(rank) << 38 |
         static_cast<Stamp>(index);
}

/// Bytes [at, at + bytes).
struct Span {
  std::uint64_t at = 0, bytes = 0;
};

/// No role may write what another one is writing, or where words lie. A read is right when the stamps are the
/// expected ones as it begins and as it ends: whoever writes in between leaves other ones, or torn cells.
class Memory {
 public:
  static constexpr Stamp kTorn = ~Stamp{0};         ///< being written
  static constexpr Stamp kWord = ~Stamp{1};         ///< a count lies here
  static constexpr Stamp kWrong = ~Stamp{2};        ///< made from data that was not the expected one
  static constexpr Stamp kNeverWritten = Stamp{0};  ///< at the start

  /// `cell_bytes`: every span begins and ends with a cell.
  Memory(std::uint64_t bytes, std::uint64_t cell_bytes)
      : cell_bytes_(cell_bytes), cells_((bytes + cell_bytes - 1) / cell_bytes) {}

  std::uint64_t bytes() const { return cells_.size() * cell_bytes_; }
  /// Cells of so many bytes.
  std::int64_t cells(std::int64_t bytes) const { return bytes / static_cast<std::int64_t>(cell_bytes_); }

  /// "" or why it must not be written now; it is torn afterwards.
  std::string begin_write(const Span& span) {
    if (!fits(span)) return "a write beyond the memory, or from within a cell, at " + std::to_string(span.at);
    const char* problem = nullptr;
    for_each(span, [&](Stamp& cell, std::uint64_t) {
      if (cell == kTorn) problem = "two writers at once, at ";
      if (cell == kWord) problem = "data over a word, at ";
      cell = kTorn;
    });
    return problem == nullptr ? "" : problem + std::to_string(span.at);
  }
  /// Visible to everybody from now on. What was made from wrong data is wrong too.
  void end_write(const Span& span, Stamp first, bool right = true) {
    for_each(span, [&](Stamp& cell, std::uint64_t i) { cell = right ? first + i : kWrong; });
  }
  /// Like this, from somewhere else: `stamps` is what read() has returned there for as many bytes.
  void end_write(const Span& span, const std::vector<Stamp>& stamps) {
    for_each(span, [&](Stamp& cell, std::uint64_t i) { cell = i < stamps.size() ? stamps[i] : kWrong; });
  }

  bool holds(const Span& span, Stamp first) {
    bool right = fits(span);
    for_each(span, [&](Stamp& cell, std::uint64_t i) { right &= cell == first + i; });
    return right;
  }
  std::vector<Stamp> read(const Span& span) {
    std::vector<Stamp> stamps;
    for_each(span, [&](Stamp& cell, std::uint64_t) { stamps.push_back(cell); });
    return stamps;
  }
  /// For an error: what it holds where it does not hold what it should.
  std::string describe(const Span& span, Stamp first) {
    std::string text = fits(span) ? "" : "lies beyond the memory";
    for_each(span, [&](Stamp& cell, std::uint64_t i) {
      if (text.empty() && cell != first + i) text = "cell " + std::to_string(i) + " holds " + name_of(cell);
    });
    return text;
  }

  Word& word(std::uint64_t at) {
    const auto [found, is_new] = words_.try_emplace(at);
    if (is_new && at / cell_bytes_ < cells_.size()) cells_[at / cell_bytes_] = kWord;
    return found->second;
  }

 private:
  static std::string name_of(Stamp cell) {
    if (cell == kTorn) return "a half of what is being written";
    if (cell == kWord) return "a word";
    if (cell == kWrong) return "what was made from wrong data";
    if (cell == kNeverWritten) return "nothing";
    return "launch " + std::to_string((cell >> 48) - 1) + "'s kind " + std::to_string(cell >> 44 & 15) +
           " of rank " + std::to_string(cell >> 38 & 63) + ", cell " +
           std::to_string(cell & ((Stamp{1} << 38) - 1));
  }
  bool fits(const Span& span) const {
    return span.at % cell_bytes_ == 0 && span.bytes % cell_bytes_ == 0 && span.at <= bytes() &&
           span.bytes <= bytes() - span.at;
  }
  template <class Visit>
  void for_each(const Span& span, const Visit& visit) {
    if (!fits(span)) return;
    Stamp* cell = cells_.data() + span.at / cell_bytes_;
    for (std::uint64_t i = 0; i < span.bytes / cell_bytes_; ++i) visit(cell[i], i);
  }

  std::uint64_t cell_bytes_;
  std::vector<Stamp> cells_;
  std::unordered_map<std::uint64_t, Word> words_;  ///< by offset
};

}  // namespace mkernel::test
