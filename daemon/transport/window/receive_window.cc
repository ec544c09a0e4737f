#include "daemon/transport/window/receive_window.h"

#include <algorithm>
#include <bit>

namespace mkernel::transport {

ReceiveWindow::ReceiveWindow(std::uint32_t capacity)
    : capacity_(std::clamp<std::uint32_t>(capacity, 1, kMaxWindow)),
      mask_(std::max<std::uint64_t>(64, std::bit_ceil(capacity_)) - 1),
      bitmap_((mask_ + 1) / 64, 0) {}

ReceiveWindow::Announced ReceiveWindow::judge(std::uint64_t number) const {
  if (number > prefix_ + capacity_) return {Verdict::kOutside, number};
  if (number <= prefix_ || held(number)) return {Verdict::kDuplicate, number};
  return {Verdict::kNew, number};
}

ReceiveWindow::Announced ReceiveWindow::announce(WireSequence wire) const {
  // The nearest number to the prefix that carries this sequence: between 2^15 behind and 2^15 - 1 ahead of
  // it.
  const auto ahead = static_cast<std::int16_t>(static_cast<WireSequence>(wire - to_wire(prefix_)));
  if (ahead <= 0 && static_cast<std::uint64_t>(-ahead) >= prefix_) return {Verdict::kOutside, 0};
  return judge(prefix_ + static_cast<std::uint64_t>(static_cast<std::int64_t>(ahead)));
}

bool ReceiveWindow::accept(std::uint64_t number) {
  if (judge(number).verdict != Verdict::kNew) return false;
  std::uint64_t* const bitmap = bitmap_.data();
  const std::uint64_t bit = number & mask_;
  bitmap[bit >> 6] |= 1ULL << (bit & 63U);
  const std::uint64_t before = prefix_;
  while (held(prefix_ + 1)) {
    ++prefix_;
    const std::uint64_t freed = prefix_ & mask_;
    bitmap[freed >> 6] &= ~(1ULL << (freed & 63U));
  }
  return prefix_ > before;
}

void ReceiveWindow::restart(std::uint64_t prefix) {
  prefix_ = prefix;
  std::fill(bitmap_.begin(), bitmap_.end(), 0);
}

}  // namespace mkernel::transport
