#include "daemon/transport/tcp/loader.h"

#include <algorithm>
#include <utility>

namespace mkernel::transport::tcp {

Loader::~Loader() {
  const bool clean = context_.gpu.wait([&] { return !queue_.any([&](const Piece& p) { return !over(p); }); });
  queue_.close(context_.gpu, clean && context_.gpu.failure().ok());
}

// Loading

Status Loader::load() {
  if (idle()) return {};
  give_back();
  if (!context_.gpu.failure().ok()) MK_RETURN_IF_ERROR(fail_all());
  while (loading_ != nullptr || !round_.empty()) {
    if (queue_.full()) return {};
    if (loading_ == nullptr) {
      MK_RETURN_IF_ERROR(begin_next(*round_.pop()));
    } else if (queue_.room().empty()) {
      return {};
    } else {
      MK_RETURN_IF_ERROR(load_piece());
    }
  }
  return {};
}

Status Loader::begin_next(Outbound& channel) {
  const Put* put = channel.window.unsent();
  if (put == nullptr || channel.failed) return {};
  if (!needed(channel, *put)) {
    plain_.push(channel);
    return {};
  }
  const bool from_gpu = put->length > 0 && put->source->on_gpu();
  if (from_gpu) {
    if (const Status begun = begin_load(*put); !begun.ok()) return fail(channel, begun);
    loading_ = &channel;
  } else {
    std::byte* const data = put->length > 0 ? put->source->host(put->source_offset) : nullptr;
    queue_.push({.channel = &channel,
                 .header = put_frame(channel.key, *put),
                 .first = true,
                 .last = true,
                 .data = data,
                 .length = put->length});
  }
  channel.window.mark_sent();
  ++channel.loading_puts;
  if (!from_gpu) go_on(channel);
  return {};
}

Status Loader::begin_load(const Put& put) {
  auto source = context_.gpu.reach(*put.source);
  if (!source.ok()) return source.status().with_context("source");
  MK_RETURN_IF_ERROR(queue_.open(context_.gpu));
  source_ = std::move(source).value();
  put_ = put;
  loaded_ = 0;
  return {};
}

Status Loader::load_piece() {
  const auto room = queue_.room();
  const std::size_t bytes = std::min<std::size_t>(room.size(), put_.length - loaded_);
  Piece& piece = queue_[queue_.push({.channel = loading_,
                                     .header = put_frame(loading_->key, put_),
                                     .first = loaded_ == 0,
                                     .last = loaded_ + bytes == put_.length,
                                     .copied = true,
                                     .data = room.data(),
                                     .length = bytes,
                                     .source = put_.source,
                                     .bytes = bytes})];
  auto ticket = context_.gpu.start(source_, put_.source_offset + loaded_, queue_.engine(), piece.at, bytes);
  if (!ticket.ok()) return fail(*loading_, ticket.status());
  piece.ticket = ticket.value();
  loaded_ += bytes;
  if (!piece.last) return {};
  source_.reset();
  go_on(*std::exchange(loading_, nullptr));
  return {};
}

/// One put of the channel is through; others have their turn before its next.
void Loader::go_on(Outbound& channel) {
  if (channel.window.unsent() != nullptr) round_.push(channel);
}

Status Loader::fail(Outbound& channel, const Status& why) {
  if (!channel.failed) {
    context_.events.channel_failed(channel.id, why.with_context("channel " + std::to_string(channel.key)));
  }
  channel.failed = true;
  plain_.remove(channel);
  drop(channel);
  if (mid_put_ != &channel) return {};
  return {StatusCode::kAborted, "a put from GPU memory broke off: " + why.to_string()};
}

Status Loader::fail_all() {
  Status cut;
  for (std::uint64_t number = std::max(taken_, queue_.first()); number < queue_.end(); ++number) {
    Outbound* const channel = queue_[number].channel;
    if (channel == nullptr || queue_[number].dropped) continue;
    if (Status broken = fail(*channel, context_.gpu.failure()); !broken.ok()) cut = std::move(broken);
  }
  if (loading_ != nullptr) {
    if (Status broken = fail(*loading_, context_.gpu.failure()); !broken.ok()) cut = std::move(broken);
  }
  give_back();
  return cut;
}

void Loader::drop(Outbound& channel) {
  round_.remove(channel);
  channel.loading_puts = 0;
  if (loading_ == &channel) {
    loading_ = nullptr;
    source_.reset();
  }
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
  const Piece& piece = queue_[taken_];
  mid_put_ = piece.last ? nullptr : piece.channel;
  if (piece.last) --piece.channel->loading_puts;
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
    if (piece.channel != nullptr) piece.channel->loading_puts = 0;
  });
  if (loading_ != nullptr) loading_->loading_puts = 0;
  loading_ = mid_put_ = nullptr;
  source_.reset();
  give_back();
}

bool Loader::forget(Outbound& channel) {
  static_cast<void>(context_.gpu.wait([&] {
    return !queue_.any([&](const Piece& piece) { return piece.channel == &channel && !over(piece); });
  }));
  drop(channel);
  queue_.each([&](Piece& piece) {
    if (piece.channel == &channel) piece.channel = nullptr;
  });
  return mid_put_ != &channel;
}

bool Loader::reads(const memory::Region& region) const {
  return queue_.any([&](const Piece& piece) { return piece.source == &region && !over(piece); });
}

}  // namespace mkernel::transport::tcp
