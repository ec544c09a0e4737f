#include "daemon/transport/tcp/loader.h"

#include <algorithm>
#include <utility>

namespace mkernel::transport::tcp {

Loader::~Loader() {
  const bool clean = context_.gpu.wait([&] { return !queue_.any([&](const Piece& p) { return !over(p); }); });
  queue_.close(context_.gpu, clean && context_.gpu.failure().ok());
}

// Loading

void Loader::load() {
  if (idle()) return;
  give_back();
  if (!context_.gpu.failure().ok()) fail_all();
  while (!round_.empty() && !queue_.full()) {
    Outbound& channel = *round_.pop();
    if (load_next(channel)) continue;
    round_.push(channel);
    return;
  }
}

/// The next frame of the channel; others have their turn before its next. False: no room for it.
bool Loader::load_next(Outbound& channel) {
  const Put* put = channel.window.unsent();
  if (put == nullptr || channel.failed) return true;
  if (!needed(channel, *put)) {
    plain_.push(channel);
    return true;
  }
  if (put->length > 0 && put->source->on_gpu()) {
    bool room = true;
    if (const Status loaded = load_piece(channel, *put, room); !loaded.ok()) {
      fail(channel, loaded);
      return true;
    }
    if (!room) return false;
  } else {
    const std::uint32_t bytes = std::min(kMaxFrameBytes, put->length - channel.framed);
    std::byte* const data = bytes > 0 ? put->source->host(put->source_offset + channel.framed) : nullptr;
    queue_.push({.channel = &channel, .header = next_frame(channel, bytes), .data = data, .length = bytes});
  }
  ++channel.loading;
  if (channel.window.unsent() != nullptr) round_.push(channel);
  return true;
}

Status Loader::load_piece(Outbound& channel, const Put& put, bool& room) {
  auto source = context_.gpu.reach(*put.source);
  if (!source.ok()) return source.status().with_context("source");
  MK_RETURN_IF_ERROR(queue_.open(context_.gpu));
  const auto free = queue_.room();
  room = !free.empty();
  if (!room) return {};
  const auto bytes =
      static_cast<std::uint32_t>(std::min<std::size_t>(free.size(), put.length - channel.framed));
  const std::uint64_t offset = put.source_offset + channel.framed;
  const memory::Region* const region = put.source;
  Piece& piece = queue_[queue_.push({.channel = &channel,
                                     .header = next_frame(channel, bytes),
                                     .copied = true,
                                     .data = free.data(),
                                     .length = bytes,
                                     .source = region,
                                     .bytes = bytes})];
  auto ticket = context_.gpu.start(source.value(), offset, queue_.engine(), piece.at, bytes);
  if (!ticket.ok()) return ticket.status();
  piece.ticket = ticket.value();
  return {};
}

void Loader::fail(Outbound& channel, const Status& why) {
  if (!channel.failed) {
    context_.events.channel_failed(channel.id, why.with_context("channel " + std::to_string(channel.key)));
  }
  channel.failed = true;
  plain_.remove(channel);
  drop(channel);
}

void Loader::fail_all() {
  for (std::uint64_t number = std::max(taken_, queue_.first()); number < queue_.end(); ++number) {
    Outbound* const channel = queue_[number].channel;
    if (channel != nullptr && !queue_[number].dropped) fail(*channel, context_.gpu.failure());
  }
  give_back();
}

void Loader::drop(Outbound& channel) {
  round_.remove(channel);
  channel.loading = 0;
  for (std::uint64_t number = std::max(taken_, queue_.first()); number < queue_.end(); ++number) {
    if (queue_[number].channel == &channel) queue_[number].dropped = true;
  }
}

// Sending

const Loader::Piece* Loader::ready() {
  taken_ = std::max(taken_, queue_.first());
  while (taken_ < queue_.end() && queue_[taken_].dropped) ++taken_;
  return taken_ < queue_.end() && context_.gpu.done(queue_[taken_].ticket) ? &queue_[taken_] : nullptr;
}

std::uint64_t Loader::take() {
  --queue_[taken_].channel->loading;
  return taken_++;
}

void Loader::release(std::uint64_t number) {
  queue_[number].sent = true;
  give_back();
}

void Loader::give_back() {
  while (!queue_.empty()) {
    const Piece& piece = queue_[queue_.first()];
    if (!(piece.sent || piece.dropped) || !over(piece)) return;
    queue_.pop();
  }
}

// Connections and channels that go away

void Loader::reset() {
  while (round_.pop() != nullptr) continue;
  queue_.each([](Piece& piece) {
    piece.dropped = true;
    if (piece.channel != nullptr) piece.channel->loading = 0;
  });
  give_back();
}

void Loader::forget(Outbound& channel) {
  static_cast<void>(context_.gpu.wait([&] {
    return !queue_.any([&](const Piece& piece) { return piece.channel == &channel && !over(piece); });
  }));
  drop(channel);
  queue_.each([&](Piece& piece) {
    if (piece.channel == &channel) piece.channel = nullptr;
  });
}

bool Loader::reads(const memory::Region& region) const {
  return queue_.any([&](const Piece& piece) { return piece.source == &region && !over(piece); });
}

}  // namespace mkernel::transport::tcp
