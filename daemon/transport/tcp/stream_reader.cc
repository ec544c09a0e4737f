#include "daemon/transport/tcp/stream_reader.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "daemon/memory/touching.h"

namespace mkernel::transport::tcp {
namespace {

constexpr std::size_t kReadAheadBytes = 64 * 1024;

/// Length from which a payload is worth a read of its own. After such a put the next is expected to be like
/// it, so little of what follows is staged: staged payload costs a second copy.
constexpr std::size_t kDirectBytes = 16 * 1024;
constexpr std::size_t kTailBytes = 1024;

/// What a frame costs besides its bytes, in bytes that could be copied meanwhile: a flood of signals takes as
/// long as much payload.
constexpr std::size_t kFrameWork = 512;

template <typename Frame>
Frame load(const std::byte* at) {
  Frame frame;
  std::memcpy(&frame, at, sizeof(frame));
  return frame;
}

}  // namespace

StreamReader::StreamReader(FrameHandler& handler, Unloader& unloader)
    : handler_(handler), unloader_(unloader), staging_(kReadAheadBytes) {}

void StreamReader::reset() {
  begin_ = end_ = left_ = last_length_ = frames_ = 0;
  landing_ = {};
  unloader_.lost();
}

void StreamReader::forget(const Inbound& channel) {
  if (landing_.channel != &channel) return;
  if (landing_.unload) unloader_.abandon();
  landing_ = {};
}

std::size_t StreamReader::prepare(iovec (&parts)[2], int& count) {
  if (left_ > 0 && landing_.unload) {
    const auto room = unloader_.room(left_);
    parts[0] = {room.data(), room.size()};
    count = 1;
    return room.size();
  }
  if (left_ > 0 && landing_.at == nullptr) {  // discarded: staging is empty and serves as the bucket
    parts[0] = {staging_.data(), std::min(left_, staging_.size())};
    count = 1;
    return parts[0].iov_len;
  }
  count = 0;
  if (left_ > 0) parts[count++] = {landing_.at, left_};
  const std::size_t room = staging_.size() - end_;
  parts[count++] = {staging_.data() + end_, last_length_ >= kDirectBytes ? std::min(room, kTailBytes) : room};
  return left_ + parts[count - 1].iov_len;
}

ssize_t StreamReader::read_parts(int socket, const iovec* parts, int count) const {
  const memory::Touching touching(left_ > 0 && landing_.at != nullptr ? landing_.region->session : 0);
  return ::readv(socket, parts, count);
}

Status StreamReader::read(int socket, std::size_t budget, bool to_the_end, ReadProgress& progress) {
  while (progress.work < budget) {
    iovec parts[2];
    int count = 0;
    if (waiting()) {
      MK_RETURN_IF_ERROR(parse());
      if (waiting()) return {};
    }
    const std::size_t asked = prepare(parts, count);
    if (asked == 0) return {};  // until engines have made room
    const ssize_t got = read_parts(socket, parts, count);
    if (got == 0) return {StatusCode::kUnavailable, "the peer closed the connection"};
    if (got < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) {
        progress.drained = true;
        return {};
      }
      return {errno == ETIMEDOUT ? StatusCode::kDeadlineExceeded : StatusCode::kUnavailable,
              std::string("read: ") + std::strerror(errno)};
    }
    const auto bytes = static_cast<std::size_t>(got);
    progress.bytes += bytes;
    MK_RETURN_IF_ERROR(consume(bytes));
    progress.work += bytes + kFrameWork * std::exchange(frames_, 0);
    if (bytes < asked && !to_the_end) {
      progress.drained = true;
      return {};
    }
  }
  return {};
}

Status StreamReader::take(std::span<const std::byte> bytes, ReadProgress& progress) {
  while (progress.bytes < bytes.size()) {
    if (waiting()) {
      MK_RETURN_IF_ERROR(parse());
      if (waiting()) return {};
    }
    iovec parts[2];
    int count = 0;
    if (prepare(parts, count) == 0) return {};
    std::size_t taken = 0;
    for (int i = 0; i < count; ++i) {
      const std::size_t room = std::min(parts[i].iov_len, bytes.size() - progress.bytes - taken);
      std::memcpy(parts[i].iov_base, bytes.data() + progress.bytes + taken, room);
      taken += room;
    }
    progress.bytes += taken;
    MK_RETURN_IF_ERROR(consume(taken));
  }
  return {};
}

Status StreamReader::consume(std::size_t bytes) {
  const std::size_t payload = std::min(bytes, left_);
  if (payload > 0) {
    left_ -= payload;
    if (landing_.at != nullptr) landing_.at += payload;
    if (landing_.unload) unloader_.filled(payload);
    if (left_ == 0) finish_frame();
  }
  end_ += bytes - payload;
  return parse();
}

Status StreamReader::parse() {
  while (staged() > 0) {
    if (left_ > 0) {
      if (!take_staged_payload()) break;
      continue;
    }
    const auto type = static_cast<FrameType>(staging_[begin_]);
    const std::size_t bytes = frame_bytes(type);
    if (bytes == 0) {
      return {StatusCode::kDataLoss,
              "malformed stream: " + std::to_string(static_cast<int>(type)) + " begins no frame"};
    }
    if (staged() < bytes) break;
    MK_RETURN_IF_ERROR(parse_frame(type));
  }
  // At most part of a frame, or what waits.
  std::memmove(staging_.data(), staging_.data() + begin_, staged());
  end_ -= begin_;
  begin_ = 0;
  return {};
}

Status StreamReader::parse_frame(FrameType type) {
  const std::byte* at = staging_.data() + begin_;
  begin_ += frame_bytes(type);
  ++frames_;
  switch (type) {
    case FrameType::kOpen: return handler_.on_open(load<OpenFrame>(at));
    case FrameType::kClosed: return handler_.on_closed(load<ClosedFrame>(at));
    case FrameType::kHeld: return handler_.on_held(load<HeldFrame>(at));
    case FrameType::kRefused: return handler_.on_refused(load<RefusedFrame>(at));
    case FrameType::kPut: break;
  }
  const auto frame = load<PutFrame>(at);
  landing_ = {};
  MK_RETURN_IF_ERROR(handler_.on_put(frame, landing_));
  left_ = last_length_ = frame.length;
  if (left_ == 0) finish_frame();
  return {};
}

/// Moves up to `bytes` of staged payload to where it goes. Returns how much.
std::size_t StreamReader::copy_out(std::size_t bytes) {
  if (landing_.unload) {
    const auto room = unloader_.room(bytes);
    if (!room.empty()) std::memcpy(room.data(), staging_.data() + begin_, room.size());
    return room.size();
  }
  if (landing_.at != nullptr) {
    const memory::Touching touching(landing_.region->session);
    std::memcpy(landing_.at, staging_.data() + begin_, bytes);
    landing_.at += bytes;
  }
  return bytes;
}

/// False: no room for now.
bool StreamReader::take_staged_payload() {
  const std::size_t bytes = copy_out(std::min(left_, staged()));
  if (bytes == 0) return false;
  begin_ += bytes;
  left_ -= bytes;
  if (landing_.unload) unloader_.filled(bytes);
  if (left_ == 0) finish_frame();
  return true;
}

void StreamReader::finish_frame() {
  if (landing_.unload) {
    unloader_.finish(landing_.last);
  } else if (landing_.channel != nullptr && landing_.last) {
    handler_.on_received(landing_);
  }
  landing_ = {};
}

}  // namespace mkernel::transport::tcp
