#include "daemon/transport/tcp/unloader.h"

#include <algorithm>
#include <utility>

namespace mkernel::transport::tcp {

Unloader::~Unloader() {
  const auto over = [&] { return !queue_.any([&](const Piece& piece) { return !gpu_.done(piece.ticket); }); };
  queue_.close(gpu_, gpu_.wait(over));
}

Status Unloader::begin(Inbound& channel, std::uint64_t number, const memory::Region& region,
                       std::uint64_t offset) {
  auto target = gpu_.reach(region);
  if (!target.ok()) return target.status();
  MK_RETURN_IF_ERROR(queue_.open(gpu_));
  target_ = std::move(target).value();
  offset_ = offset;
  next_ = {.channel = &channel, .number = number, .region = &region};
  return {};
}

std::span<std::byte> Unloader::room(std::size_t left) {
  const auto all = queue_.room().subspan(std::min(next_.bytes, queue_.room().size()));
  return all.first(std::min(left, all.size()));
}

void Unloader::filled(std::size_t bytes) {
  next_.bytes += bytes;
  if (next_.bytes == queue_.room().size()) hand_over(false);
}

void Unloader::finish(bool last) {
  hand_over(last);
  target_.reset();
  next_ = {};
}

void Unloader::abandon() {
  target_.reset();
  next_ = {};
}

void Unloader::hand_over(bool last) {
  // The last bytes may have filled a piece and gone with it: the frame then ends with that one.
  if (next_.bytes == 0) {
    queue_[queue_.end() - 1].last = last;
    return;
  }
  const std::uint64_t number = queue_.push(next_);
  Piece& piece = queue_[number];
  next_.bytes = 0;
  auto ticket = gpu_.start(queue_.engine(), piece.at, target_, offset_, piece.bytes);
  offset_ += piece.bytes;
  if (ticket.ok()) {
    piece.ticket = ticket.value();
    piece.last = last;
  } else {
    sink_.on_landing_failed(*piece.channel, ticket.status());
  }
}

void Unloader::lost() {
  abandon();
  drain_end_ = queue_.end();
}

std::size_t Unloader::collect() {
  if (queue_.empty()) return 0;
  const std::uint64_t before = queue_.first();
  if (!gpu_.failure().ok()) fail();
  while (!queue_.empty() && gpu_.done(queue_[queue_.first()].ticket)) {
    const Piece piece = queue_[queue_.first()];
    queue_.pop();
    if (piece.last && piece.channel != nullptr) sink_.on_landed(*piece.channel, piece.number);
  }
  return queue_.first() - before;
}

/// What the engines had never ends. Nothing is copied from now on, so the bytes may be used again.
void Unloader::fail() {
  while (!queue_.empty()) {
    const Piece piece = queue_[queue_.first()];
    queue_.pop();
    if (piece.channel != nullptr) sink_.on_landing_failed(*piece.channel, gpu_.failure());
  }
}

void Unloader::forget(const Inbound& channel) {
  if (next_.channel == &channel) abandon();
  static_cast<void>(gpu_.wait([&] {
    return !queue_.any(
        [&](const Piece& piece) { return piece.channel == &channel && !gpu_.done(piece.ticket); });
  }));
  queue_.each([&](Piece& piece) {
    if (piece.channel == &channel) piece.channel = nullptr;
  });
}

bool Unloader::lands_in(const memory::Region& region) const {
  return next_.region == &region || queue_.any([&](const Piece& piece) { return piece.region == &region; });
}

}  // namespace mkernel::transport::tcp
