#include "daemon/transport/window/send_window.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

namespace mkernel::transport {

SendWindow::SendWindow(std::uint32_t capacity, std::shared_ptr<PeerLoad> load)
    : capacity_(std::clamp<std::uint32_t>(capacity, 1, kMaxWindow)),
      mask_(std::bit_ceil(capacity_) - 1),
      ring_(mask_ + 1),
      load_(std::move(load)) {}

SendWindow::~SendWindow() {
  load_->bytes -= bytes_submitted_ - bytes_acknowledged_;
}

bool SendWindow::push(const Put& put, Time now) {
  if (in_flight() == capacity_ || put.sequence != next_sequence()) return false;
  ++submitted_;
  const std::uint64_t bytes = PeerLoad::kPut + put.length;
  bytes_submitted_ += bytes;
  ring_.data()[submitted_ & mask_] = Entry{put, now, bytes_submitted_};
  load_->bytes += bytes;
  return true;
}

Status SendWindow::out_of_order(const Put& put) const {
  return {StatusCode::kInternal, "put number " + std::to_string(put.sequence) + " was submitted where " +
                                     std::to_string(next_sequence()) + " is next"};
}

void SendWindow::mark_sent() {
  ++sent_;
  ever_sent_ = std::max(ever_sent_, sent_);
}

bool SendWindow::reads(const memory::Region& region) const {
  for (std::uint64_t n = acknowledged_ + 1; n <= submitted_; ++n) {
    if (at(n).source == &region) return true;
  }
  return false;
}

bool SendWindow::acknowledge(std::uint64_t count) {
  if (count < acknowledged_ || count > ever_sent_) return false;
  if (count > acknowledged_) {
    const std::uint64_t bytes = entry(count).bytes;
    load_->bytes -= bytes - bytes_acknowledged_;
    bytes_acknowledged_ = bytes;
  }
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
