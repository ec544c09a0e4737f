#include "daemon/transport/window/send_window.h"

#include <algorithm>
#include <bit>

namespace mkernel::transport {

SendWindow::SendWindow(std::uint32_t capacity)
    : capacity_(std::clamp<std::uint32_t>(capacity, 1, kMaxWindow)),
      mask_(std::bit_ceil(capacity_) - 1),
      ring_(mask_ + 1) {}

bool SendWindow::push(const Put& put, Time now) {
  if (full() || put.sequence != next_sequence()) return false;
  ++submitted_;
  ring_.data()[submitted_ & mask_] = Entry{put, now};
  return true;
}

void SendWindow::mark_sent() {
  ++sent_;
  ever_sent_ = std::max(ever_sent_, sent_);
}

bool SendWindow::acknowledge(std::uint64_t count) {
  if (count < acknowledged_ || count > ever_sent_) return false;
  acknowledged_ = count;
  sent_ = std::max(sent_, count);
  return true;
}

bool SendWindow::resume(std::uint64_t held) {
  if (!acknowledge(held)) return false;
  sent_ = held;
  return true;
}

std::optional<SendWindow::Time> SendWindow::oldest() const {
  if (empty()) return std::nullopt;
  return entry(acknowledged_ + 1).pushed;
}

}  // namespace mkernel::transport
