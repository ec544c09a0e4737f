// The consumer's side of one work ring. The ring lies in memory that the client can write at any time: the
// reader trusts nothing in it but the lap bits, and those only to say "there is a slot".
#pragma once

#include <atomic>
#include <cstdint>

#include "daemon/dataplane/ports.h"
#include "proto/abi/region_map.h"
#include "proto/abi/work_request.h"

namespace mkernel::dataplane {

/// Proxy thread only. The segment outlives the reader.
class RingReader {
 public:
  RingReader() = default;

  /// Reads ring `ring` of `writer` from position 0. `count`: the rings of each writer, by the daemon's own
  /// word. The slots of a ring are read once and checked against the mapping's true size: a client that
  /// changes them later harms nobody.
  static Result<RingReader> open(const ipc::Mapping& segment, std::uint32_t count, abi::RingWriter writer,
                                 std::uint32_t ring);

  /// Takes the next slot when it is complete. One snapshot: what is returned cannot change any more.
  bool next(abi::WorkSlot& snapshot) {
    abi::WorkSlot& place = slots_[position_ & mask_];
    if (!abi::load_slot(place, abi::lap_bit(position_, log2_slots_), snapshot)) return false;
    ++position_;
    // The writers are ahead when the ring is busy: their lines travel here while we check this slot.
    __builtin_prefetch(&slots_[(position_ + kLookahead) & mask_]);
    return true;
  }

  /// Takes back the last next(): the slot will be read again.
  void unread() { --position_; }

  /// True when next() would find a slot.
  bool ready() const {
    abi::WorkSlot ignored;
    return abi::load_slot(slots_[position_ & mask_], abi::lap_bit(position_, log2_slots_), ignored);
  }

  /// Gives the consumed slots back to the writers.
  void publish() { std::atomic_ref<std::uint64_t>(head_->tail).store(position_, std::memory_order_release); }

  std::uint64_t position() const { return position_; }  ///< slots consumed so far

  /// About how many slots wait, found by bisection over the laps: exact unless writers left holes.
  std::uint64_t depth() const;

 private:
  static constexpr std::uint64_t kLookahead = 8;

  abi::WorkSlot* slots_ = nullptr;
  abi::RingHead* head_ = nullptr;
  std::uint64_t position_ = 0;
  std::uint64_t mask_ = 0;
  std::uint32_t log2_slots_ = 0;
};

}  // namespace mkernel::dataplane
