// The receiving end of one channel's numbering: turns the 16-bit sequence that crosses the wire back into the
// 64-bit number of the put, remembers which puts are in place, and says how long the contiguous prefix is.
//
// The wire field is narrow on purpose (the immediate data of an RDMA write has room for no more), so the
// whole window, sender's and receiver's, must stay below half of its range: then the number nearest to the
// prefix is the right one.
#pragma once

#include <cstdint>
#include <vector>

namespace mkernel::transport {

/// What is carried of a put's number.
using WireSequence = std::uint16_t;

/// Largest window of puts in flight that a WireSequence can number without ambiguity.
inline constexpr std::uint32_t kMaxWindow = (1U << 15) - 1;

constexpr WireSequence to_wire(std::uint64_t number) {
  return static_cast<WireSequence>(number);
}

/// One thread. Never allocates after construction.
class ReceiveWindow {
 public:
  enum class Verdict {
    kNew,        ///< not seen yet: read its payload, then accept() it
    kDuplicate,  ///< already in place: its payload must not be written again
    kOutside,    ///< further ahead than the capacity allows (or before the first put): not a put of this
                 ///< channel
  };

  struct Announced {
    Verdict verdict = Verdict::kOutside;
    std::uint64_t number = 0;  ///< of the put, 1 for the channel's first
  };

  /// Accepts puts up to `capacity` (1..kMaxWindow) ahead of the prefix.
  explicit ReceiveWindow(std::uint32_t capacity);

  /// Judges a put by its wire sequence; changes nothing.
  Announced announce(WireSequence wire) const;

  /// The payload of put `number` is in place. Returns true when the prefix grew. A number that announce()
  /// would not call new changes nothing.
  bool accept(std::uint64_t number);

  /// A new path begins behind put `prefix`: what was in place beyond it is forgotten and comes again. For
  /// transports whose sender writes into place by itself, where a replayed put must not count before it
  /// lands.
  void restart(std::uint64_t prefix);

  /// n: the first n puts are all in place. Only grows, but for restart().
  std::uint64_t prefix() const { return prefix_; }
  std::uint32_t capacity() const { return capacity_; }

 private:
  // The mask keeps every bit within the bitmap: data() saves the check of each index.
  bool held(std::uint64_t number) const {
    const std::uint64_t bit = number & mask_;
    return ((bitmap_.data()[bit >> 6] >> (bit & 63U)) & 1U) != 0;
  }
  Announced judge(std::uint64_t number) const;

  std::uint32_t capacity_;
  std::uint64_t mask_;  ///< bits of the bitmap - 1; number & mask_ is the put's bit
  std::uint64_t prefix_ = 0;
  std::vector<std::uint64_t> bitmap_;  ///< puts in place beyond the prefix
};

}  // namespace mkernel::transport
