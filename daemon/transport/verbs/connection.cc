#include "daemon/transport/verbs/connection.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <utility>

#include "daemon/transport/rdma/wake.h"
#include "proto/abi/work_request.h"

namespace mkernel::transport::verbs {
namespace {

/// A channel's turn: so much, then its count, then the next channel.
constexpr std::uint32_t kTurnPuts = 16;
constexpr std::uint64_t kTurnBytes = 256 * 1024;
/// Pieces of a put beyond those that its size makes: the borders of its two regions' chunks.
constexpr std::uint32_t kBorderPieces = 3;

}  // namespace

void fail_channel(Context& context, Outbound& channel, const Status& why) {
  if (std::exchange(channel.failed, true)) return;
  context.sink->channel_failed(channel.id, why);
}

Connection::Connection(Context& context, PeerId peer, std::uint32_t slot)
    : context_(context),
      peer_(peer),
      slot_(slot),
      batch_(context.options.send_queue),
      posted_(context.options.send_queue) {}

std::string Connection::text() const {
  std::string text = context_.paths[route_.local]->text();
  if (queue_.valid()) text += " QPN " + std::to_string(queue_.qpn());
  if (remote_qpn_ == 0) return text + " -> path " + std::to_string(route_.remote) + " of the peer";
  return text + " -> " + text_of(remote_port_) + " QPN " + std::to_string(remote_qpn_);
}

// The connection

Status Connection::open(Route route, std::uint64_t from_boot_id, std::uint64_t to_boot_id) {
  lose();
  route_ = route;
  remote_qpn_ = 0;
  ++epoch_;
  Path& path = *context_.paths[route.local];
  const rdma::VerbsLibrary& verbs = context_.options.verbs;
  cq_ = rdma::own(verbs.create_cq(path.context(), static_cast<int>(context_.options.send_queue),
                                  rdma::peer_context(peer_), path.completions(), 0),
                  verbs.destroy_cq);
  if (cq_ == nullptr) return rdma::call_failed(path.text(), "making a completion queue", errno);
  auto queue = QueuePair::make(context_.options, path, cq_.get(), context_.psn());
  if (!queue.ok()) return queue.status();
  queue_ = std::move(*queue);
  if (queue_.inline_bytes() < sizeof(count_)) {
    return {StatusCode::kUnimplemented,
            path.text() + " takes " + std::to_string(queue_.inline_bytes()) + " bytes inline; counts need 8"};
  }
  piece_bytes_ = std::min<std::uint64_t>(path.max_message_bytes(), abi::kMaxPutBytes);
  if (piece_bytes_ == 0 || abi::kMaxPutBytes / piece_bytes_ + kBorderPieces >= context_.options.send_queue) {
    return {StatusCode::kUnimplemented,
            path.text() + " sends messages of at most " + std::to_string(piece_bytes_) +
                " bytes: the largest put does not fit transport.verbs.send_queue = " +
                std::to_string(context_.options.send_queue)};
  }
  state_ = State::kOpening;
  context_.say(peer_, Open{head(MessageType::kOpen), from_boot_id, to_boot_id, path.port(), queue_.qpn(),
                           queue_.psn(), route.remote, 0});
  return {};
}

Status Connection::opened(const Opened& answer) {
  if (state_ != State::kOpening) return {StatusCode::kInternal, "opened twice"};
  remote_port_ = answer.port;
  remote_qpn_ = answer.qpn;
  MK_RETURN_IF_ERROR(queue_.connect({answer.port, answer.qpn, answer.psn}));
  state_ = State::kProving;
  credits_ = context_.options.send_queue;
  batch_.clear();
  batch_.write(0, 0, 0, 0, 0, false);
  return post(nullptr, 0);
}

void Connection::lose() {
  queue_.destroy();
  cq_.reset();
  state_ = State::kClosed;
  armed_ = false;
  posted_first_ = posted_count_ = 0;
  credits_ = 0;
  ready_.clear();
  for (Outbound* channel : channels_) channel->disconnect();
}

void Connection::add(Outbound& channel) {
  channels_.push_back(&channel);
  ready_.reserve(channels_.size());
}

void Connection::remove(Outbound& channel) {
  std::erase(channels_, &channel);
  std::erase(ready_, &channel);
}

// Puts

void Connection::enqueue(Outbound& channel) {
  channel.queued = true;
  ready_.push_back(&channel);
}

void Connection::try_again() {
  if (!std::exchange(source_pending_, false)) return;
  // A channel that waits for its target as well finds that it still does.
  for (Outbound* channel : channels_) {
    channel->waiting = false;
    offer(*channel);
  }
}

Status Connection::flow() {
  if (state_ != State::kUp) return {};
  for (bool full = false; !full && !ready_.empty();) {
    // One turn each; who has more to send stays.
    std::size_t kept = 0;
    std::size_t next = 0;
    while (!full && next < ready_.size()) {
      Outbound& channel = *ready_[next];
      MK_RETURN_IF_ERROR(serve(channel, full));
      if (full) break;
      ++next;
      channel.queued = channel.may_send() && channel.window.unsent() != nullptr;
      if (channel.queued) ready_[kept++] = &channel;
    }
    // Whoever found the queue full is first when there is room again: nobody takes it away from a large put.
    const auto begin = ready_.begin();
    ready_.erase(begin + static_cast<std::ptrdiff_t>(kept), begin + static_cast<std::ptrdiff_t>(next));
    if (full) std::rotate(begin, begin + static_cast<std::ptrdiff_t>(kept), ready_.end());
  }
  return {};
}

/// One turn of a channel: some puts, and their count. `full`: not even one put had room.
Status Connection::serve(Outbound& channel, bool& full) {
  if (!channel.may_send()) return {};
  batch_.clear();
  std::uint64_t bytes = 0;
  std::uint64_t last = 0;
  for (std::uint32_t puts = 0; puts < kTurnPuts && bytes < kTurnBytes; ++puts) {
    const Put* put = channel.window.unsent();
    if (put == nullptr) break;
    const Added added = add_put(channel, *put);
    full = added == Added::kFull && last == 0;
    if (added != Added::kYes) break;
    bytes += put->length;
    last = put->sequence;
    channel.window.mark_sent();
  }
  if (last == 0) return {};
  count_ = last;
  batch_.write(reinterpret_cast<std::uintptr_t>(&count_), 0, sizeof(count_), channel.word, channel.word_rkey,
               true);
  return post(&channel, last);
}

/// Adds the pieces of a put; the count's request has room behind them.
Connection::Added Connection::add_put(Outbound& channel, const Put& put) {
  const std::uint32_t room = std::min(credits_, context_.options.send_queue);
  if (batch_.size() + 1 > room) return Added::kFull;
  if (put.length == 0) return Added::kYes;
  const RemoteRegion* remote = remote_region(channel, put);
  if (remote == nullptr) return channel.failed ? Added::kFailed : Added::kWait;
  const bool in_line = put.length <= queue_.inline_bytes() && !put.source->on_gpu();
  const rdma::Registration* source = in_line ? nullptr : source_of(channel, *put.source);
  if (!in_line && source == nullptr) return channel.failed ? Added::kFailed : Added::kWait;

  // Powers of two, both: divisions would cost more than all the rest.
  const std::uint64_t chunk_bytes = queue_.path().registrations().chunk_bytes();
  const std::uint64_t here_within = chunk_bytes - 1;
  const std::uint64_t there_within = remote->chunk_bytes - 1;
  const int here_shift = std::countr_zero(chunk_bytes);
  const int there_shift = std::countr_zero(remote->chunk_bytes);
  const std::uint32_t begin = batch_.size();
  for (std::uint64_t at = 0; at < put.length;) {
    if (batch_.size() + 2 > room) {
      batch_.truncate(begin);
      return Added::kFull;
    }
    const std::uint64_t from = put.source_offset + at;
    const std::uint64_t to = put.remote_offset + at;
    std::uint64_t length = std::min(put.length - at, piece_bytes_);
    length = std::min(length, remote->chunk_bytes - (to & there_within));
    const RemoteChunk& there = remote->chunks[to >> there_shift];
    std::uint64_t address = 0;
    std::uint32_t lkey = 0;
    if (in_line) {
      address = reinterpret_cast<std::uintptr_t>(put.source->host(from));
    } else {
      length = std::min(length, chunk_bytes - (from & here_within));
      const rdma::Chunk& here = source->chunks[from >> here_shift];
      address = here.address + (from & here_within);
      lkey = here.lkey;
    }
    batch_.write(address, lkey, static_cast<std::uint32_t>(length), there.address + (to & there_within),
                 there.rkey, in_line);
    at += length;
  }
  return Added::kYes;
}

/// Null: it was asked for, or the put failed its channel.
const RemoteRegion* Connection::remote_region(Outbound& channel, const Put& put) {
  if (put.remote_region >= channel.regions.size()) channel.regions.resize(put.remote_region + 1U);
  RemoteRegion& region = channel.regions.data()[put.remote_region];
  if (region.state != RemoteRegion::State::kKnown) {
    ask_for(channel, put.remote_region);
    return nullptr;
  }
  if (memory::in_bounds(put.remote_offset, put.length, region.bytes)) return &region;
  refuse(channel, put);
  return nullptr;
}

void Connection::ask_for(Outbound& channel, std::uint32_t index) {
  channel.waiting = true;
  RemoteRegion& region = channel.regions[index];
  if (region.state != RemoteRegion::State::kUnknown) return;
  region.state = RemoteRegion::State::kAsked;
  context_.say(peer_, RegionMessage{head(MessageType::kResolve), channel.key, index, 0});
}

void Connection::refuse(Outbound& channel, const Put& put) {
  fail_channel(
      context_, channel,
      {StatusCode::kOutOfRange, "put into region " + std::to_string(put.remote_region) + " [" +
                                    std::to_string(put.remote_offset) + ", +" + std::to_string(put.length) +
                                    ") of " + text_of(remote_port_) + ": it exceeds its " +
                                    std::to_string(channel.regions[put.remote_region].bytes) + " bytes"});
}

const rdma::Registration* Connection::source_of(Outbound& channel, const memory::Region& region) {
  const auto* const known = channel.last_source.find(queue_.path().registrations(), region);
  return known != nullptr ? known : look_up(channel, region);
}

const rdma::Registration* Connection::look_up(Outbound& channel, const memory::Region& region) {
  const auto made = channel.last_source.look_up(queue_.path().registrations(), region);
  if (!made.ok()) {
    fail_channel(context_, channel, made.status().with_context("the source of a put"));
    return nullptr;
  }
  if (made.value() == nullptr) channel.waiting = source_pending_ = true;
  return made.value();
}

Status Connection::post(Outbound* channel, std::uint64_t count) {
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(queue_.get(), batch_.chain(), &bad);
  if (error != 0) return rdma::call_failed(text(), "posting to the send queue", error);
  posted_[posted_at(posted_count_++)] = {channel, count, batch_.size()};
  credits_ -= batch_.size();
  return {};
}

Connection::Progress Connection::poll() {
  Progress progress;
  std::array<ibv_wc, 16> completions;
  while (posted_count_ > 0) {
    const int found = ibv_poll_cq(cq_.get(), static_cast<int>(completions.size()), completions.data());
    if (found == 0) break;
    armed_ = false;
    if (found < 0) {
      progress.status = {StatusCode::kUnavailable, text() + ": its completion queue cannot be polled"};
      return progress;
    }
    for (int i = 0; i < found; ++i) {
      ++progress.events;
      if (completions[i].status != IBV_WC_SUCCESS) {
        progress.status = explain(completions[i]);
        // Requests complete in order, whether they are signalled or not: it is one of the oldest channel's.
        progress.refused = completions[i].status == IBV_WC_REM_ACCESS_ERR;
        progress.culprit = posted_[posted_first_].channel;
        return progress;
      }
      const Posted done = posted_[posted_first_];
      posted_first_ = posted_at(1);
      --posted_count_;
      credits_ += done.requests;
      if (done.channel == nullptr) {
        state_ = State::kUp;
        progress.proved = true;
      } else {
        complete(done);
        progress.delivered = true;
      }
    }
  }
  return progress;
}

void Connection::complete(const Posted& done) {
  Outbound& channel = *done.channel;
  const bool grew = channel.window.acknowledge(done.count);
  if (grew && !channel.failed) context_.sink->completed(channel.id, done.count);
  channel.refused = 0;
  if (!channel.revocations.empty()) answer_revocations(channel);
  if (channel.stopped) answer_stop(channel);
}

void Connection::answer_revocations(Outbound& channel) {
  std::erase_if(channel.revocations, [&](const Revocation& revocation) {
    if (channel.window.acknowledged() < revocation.last) return false;
    context_.say(
        peer_, RegionMessage{head(MessageType::kRevoked), channel.key, revocation.region, revocation.grant});
    return true;
  });
}

void Connection::attach(const Outbound& channel) {
  context_.say(peer_, ChannelMessage{head(MessageType::kAttach), channel.key});
}

void Connection::answer_stop(Outbound& channel) {
  if (channel.in_flight()) return;
  context_.say(peer_, ChannelMessage{head(MessageType::kStopped), channel.key});
  std::erase(ready_, &channel);
  channel.disconnect();
  attach(channel);
}

bool Connection::arm() {
  if (armed_ || posted_count_ == 0) return true;
  armed_ = true;
  return ibv_req_notify_cq(cq_.get(), 0) != 0;
}

/// What a status means for whoever must find the cause.
Status Connection::explain(const ibv_wc& completion) const {
  std::string cause;
  switch (completion.status) {
    case IBV_WC_RETRY_EXC_ERR:
      cause = "no answer from the other port after " + std::to_string(context_.options.retry_count) +
              " retries: connection or switch down, wrong GID, or the peer is gone";
      break;
    case IBV_WC_REM_ACCESS_ERR: cause = "the peer has taken the memory back, or keys do not match"; break;
    case IBV_WC_LOC_PROT_ERR: cause = "the source is not registered any more"; break;
    case IBV_WC_REM_INV_REQ_ERR: cause = "the ends do not agree, often on the MTU"; break;
    case IBV_WC_WR_FLUSH_ERR: cause = "the queue pair was in error before"; break;
    default: cause = "see the device's counters"; break;
  }
  return {StatusCode::kUnavailable, text() + ": " + context_.options.verbs.wc_status_str(completion.status) +
                                        " (vendor error " + std::to_string(completion.vendor_err) +
                                        "): " + cause};
}

}  // namespace mkernel::transport::verbs
