#include "daemon/transport/tcp/stream_writer.h"

#include <linux/errqueue.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "daemon/memory/touching.h"
#include "proto/ipc/packet.h"

namespace mkernel::transport::tcp {
namespace {

constexpr std::size_t kBatchBytes =
    1024 * 1024;  ///< a batch is closed when it has this much, or one larger put
constexpr std::size_t kTurnBytes = 256 * 1024;  ///< of one channel before the next has its turn
constexpr std::size_t kTurnPuts = 16;

/// What a call of the kernel costs besides its bytes, in bytes that could be copied meanwhile; over loopback
/// it delivers to the receiver as well.
constexpr std::size_t kSendWork = 16 * 1024;

RefusedFrame refused_frame(const Inbound& channel) {
  RefusedFrame frame{
      FrameType::kRefused, {}, static_cast<std::uint32_t>(channel.refusal.code()), channel.key, {}};
  ipc::copy_text(frame.text, channel.refusal.text());
  return frame;
}

}  // namespace

StreamWriter::StreamWriter(Context& context)
    : mode_(context.options.zero_copy),
      zero_copy_bytes_(context.options.zero_copy_bytes),
      loader_(context, round_) {}

void StreamWriter::start(bool zero_copy) {
  zero_copy_ = zero_copy;
  zero_copy_sent_ = zero_copy_done_ = 0;
}

void StreamWriter::reset() {
  while (asking_.pop() != nullptr) continue;
  while (answering_.pop() != nullptr) continue;
  while (round_.pop() != nullptr) continue;
  closed_.clear();
  next_ = count_ = 0;
  begun_ = false;
  orphan_.clear();
  loader_.reset();
}

// The batch

void StreamWriter::add_piece(void* data, std::size_t bytes, const Note& note) {
  piece_[count_] = {data, bytes};
  note_[count_] = note;
  ++count_;
}

template <typename Frame>
void StreamWriter::append_control(const Frame& frame) {
  std::memcpy(control_.data() + control_bytes_, &frame, sizeof(frame));
  control_bytes_ += sizeof(frame);
}

void StreamWriter::add_control() {
  control_bytes_ = 0;
  const auto room = [&] { return control_.size() - control_bytes_ >= sizeof(RefusedFrame); };
  while (room() && !answering_.empty()) {
    const Inbound& channel = *answering_.pop();
    if (channel.refusal.ok()) {
      append_control(HeldFrame{FrameType::kHeld, {}, channel.key, channel.window.prefix()});
    } else {
      append_control(refused_frame(channel));
    }
  }
  while (room() && !closed_.empty()) {
    append_control(ClosedFrame{FrameType::kClosed, {}, closed_.back()});
    closed_.pop_back();
  }
  while (room() && !asking_.empty()) append_control(OpenFrame{FrameType::kOpen, {}, asking_.pop()->key});
  if (control_bytes_ > 0) add_piece(control_.data(), control_bytes_, {});
}

/// The next frame of a put. Returns its bytes.
std::size_t StreamWriter::add_frame(Outbound& channel, const Put& put) {
  const std::uint32_t bytes = std::min(kMaxFrameBytes, put.length - channel.framed);
  std::byte* const data = bytes > 0 ? put.source->host(put.source_offset + channel.framed) : nullptr;
  const bool zero_copy = zero_copy_ && bytes >= std::min<std::uint64_t>(zero_copy_bytes_, kMaxFrameBytes);
  PutFrame& header = header_[puts_++];
  header = next_frame(channel, bytes);
  add_piece(&header, sizeof(header), {.owner = &channel});
  if (bytes > 0)
    add_piece(data, bytes,
              {.owner = &channel, .payload = true, .zero_copy = zero_copy, .session = put.source->session});
  return sizeof(header) + bytes;
}

std::size_t StreamWriter::add_turn(Outbound& channel, std::size_t room) {
  std::size_t bytes = 0;
  for (std::size_t puts = 0; puts < kTurnPuts && puts_ < kBatchPuts && bytes < std::min(room, kTurnBytes);
       ++puts) {
    const Put* put = channel.window.unsent();
    if (put == nullptr) break;
    if (Loader::needed(channel, *put)) {
      loader_.offer(channel);
      return bytes;
    }
    bytes += add_frame(channel, *put);
  }
  if (channel.window.unsent() != nullptr) round_.push(channel);
  return bytes;
}

std::size_t StreamWriter::add_loaded(const Loader::Piece& piece) {
  PutFrame& header = header_[puts_++];
  header = piece.header;
  add_piece(&header, sizeof(header), {.owner = piece.channel});
  Note note{.owner = piece.channel, .payload = true};
  const std::uint64_t number = loader_.take();
  if (piece.copied) {
    note.loaded = number;
  } else {
    note.zero_copy = zero_copy_ && piece.length >= std::min<std::uint64_t>(zero_copy_bytes_, kMaxFrameBytes);
  }
  const std::size_t bytes = sizeof(header) + piece.length;
  if (piece.length > 0) add_piece(piece.data, piece.length, note);
  if (!piece.copied) loader_.release(number);
  return bytes;
}

void StreamWriter::fill() {
  next_ = count_ = puts_ = 0;
  orphan_.clear();
  add_control();
  std::size_t bytes = 0;
  while (bytes < kBatchBytes && puts_ < kBatchPuts) {
    const std::size_t before = bytes;
    if (!round_.empty()) bytes += add_turn(*round_.pop(), kBatchBytes - bytes);
    const Loader::Piece* loaded = puts_ < kBatchPuts ? loader_.ready() : nullptr;
    if (loaded != nullptr) bytes += add_loaded(*loaded);
    if (bytes == before && round_.empty()) return;
  }
}

// The socket

/// The pieces [next_, end). Memory of a single session is named, see memory::Touching.
ssize_t StreamWriter::send_pieces(int socket, const msghdr& message, std::size_t end, int flags) const {
  std::uint64_t session = 0;
  bool several = false;
  for (std::size_t at = next_; at < end; ++at) {
    const std::uint64_t other = note_[at].session;
    several = several || (other != 0 && session != 0 && other != session);
    session = other != 0 ? other : session;
  }
  const memory::Touching touching(several ? 0 : session);
  return ::sendmsg(socket, &message, flags);
}

ssize_t StreamWriter::send_run(int socket, std::size_t& asked) {
  // A zero-copy payload goes in a call of its own: the headers around it are reused long before the kernel
  // has done with its pages.
  std::size_t end = next_ + 1;
  const bool zero_copy = note_[next_].zero_copy;
  while (!zero_copy && end < count_ && !note_[end].zero_copy) ++end;
  asked = 0;
  for (std::size_t at = next_; at < end; ++at) asked += piece_[at].iov_len;

  msghdr message{};
  message.msg_iov = &piece_[next_];
  message.msg_iovlen = end - next_;
  const int flags = MSG_DONTWAIT | MSG_NOSIGNAL | (end < count_ ? MSG_MORE : 0);
  if (!zero_copy) return send_pieces(socket, message, end, flags);

  const ssize_t sent = send_pieces(socket, message, end, flags | MSG_ZEROCOPY);
  if (sent > 0) {
    ++zero_copy_sent_;
    if (note_[next_].owner != nullptr) note_[next_].owner->zero_copy_end = zero_copy_sent_;
    return sent;
  }
  // ENOBUFS: too much memory is pinned already (net.core.optmem_max); this one is copied.
  return sent < 0 && errno == ENOBUFS ? send_pieces(socket, message, end, flags) : sent;
}

void StreamWriter::advance(std::size_t bytes) {
  while (next_ < count_ && bytes >= piece_[next_].iov_len) {
    bytes -= piece_[next_].iov_len;
    if (note_[next_].loaded != kNotLoaded) loader_.release(note_[next_].loaded);
    ++next_;
    begun_ = false;
  }
  if (bytes == 0) return;
  piece_[next_].iov_base = static_cast<std::byte*>(piece_[next_].iov_base) + bytes;
  piece_[next_].iov_len -= bytes;
  begun_ = true;
}

Status StreamWriter::flush(int socket, std::size_t budget, WriteProgress& progress) {
  MK_RETURN_IF_ERROR(write_out(socket, budget, progress));
  loader_.load();
  return {};
}

Status StreamWriter::write_out(int socket, std::size_t budget, WriteProgress& progress) {
  while (progress.work < budget) {
    if (next_ == count_) fill();
    if (next_ == count_) return {};
    std::size_t asked = 0;
    const ssize_t sent = send_run(socket, asked);
    if (sent < 0) {
      if (errno == EINTR) continue;
      progress.blocked = errno == EAGAIN;
      if (progress.blocked) return {};
      return {errno == ETIMEDOUT ? StatusCode::kDeadlineExceeded : StatusCode::kUnavailable,
              std::string("send: ") + std::strerror(errno)};
    }
    const auto bytes = static_cast<std::size_t>(sent);
    progress.work += bytes + kSendWork;
    advance(bytes);
    if (bytes < asked) {  // the socket's buffer is full: it will say when there is room
      progress.blocked = true;
      return {};
    }
  }
  return {};
}

void StreamWriter::reap_zero_copy(int socket) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(sock_extended_err) + sizeof(sockaddr_in6))];
  for (;;) {
    msghdr message{};
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    if (::recvmsg(socket, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) return;
    for (cmsghdr* at = CMSG_FIRSTHDR(&message); at != nullptr; at = CMSG_NXTHDR(&message, at)) {
      const bool error = (at->cmsg_level == SOL_IP && at->cmsg_type == IP_RECVERR) ||
                         (at->cmsg_level == SOL_IPV6 && at->cmsg_type == IPV6_RECVERR);
      if (!error) continue;
      sock_extended_err report{};
      std::memcpy(&report, CMSG_DATA(at), sizeof(report));
      if (report.ee_origin != SO_EE_ORIGIN_ZEROCOPY || report.ee_errno != 0) continue;
      // Sends ee_info..ee_data are done; the kernel counts in 32 bits.
      const std::uint32_t step = report.ee_data + 1 - static_cast<std::uint32_t>(zero_copy_done_);
      if (step < (1U << 31)) zero_copy_done_ += step;
      if ((report.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) != 0 && mode_ == ZeroCopy::kAuto) zero_copy_ = false;
    }
  }
}

// Channels that go away

/// The peer has part of the frame at next_: the rest of its payload will come from a copy. Returns the piece
/// after it.
std::size_t StreamWriter::orphan_begun_frame() {
  const Outbound* const owner = note_[next_].owner;
  std::size_t at = next_;
  if (!note_[at].payload) note_[at++] = {};
  if (at == count_ || !note_[at].payload || note_[at].owner != owner) return at;  // a frame without payload
  note_[at].owner = nullptr;
  if (note_[at].loaded == kNotLoaded) {  // what was loaded is a copy already
    const auto* rest = static_cast<const std::byte*>(piece_[at].iov_base);
    orphan_.assign(rest, rest + piece_[at].iov_len);
    piece_[at].iov_base = orphan_.data();
    note_[at] = {};
  }
  return at + 1;
}

bool StreamWriter::forget(Outbound& channel) {
  asking_.remove(channel);
  round_.remove(channel);
  loader_.forget(channel);
  const bool begun = next_ < count_ && note_[next_].owner == &channel && (begun_ || note_[next_].payload);
  std::size_t end = begun ? orphan_begun_frame() : next_;
  for (std::size_t at = end; at < count_; ++at) {
    if (note_[at].owner == &channel) {
      if (note_[at].loaded != kNotLoaded) loader_.release(note_[at].loaded);
      continue;
    }
    piece_[end] = piece_[at];
    note_[end] = note_[at];
    ++end;
  }
  count_ = end;
  // Of a put that was begun the peer may hold part, and waits for the rest.
  if (channel.granted && !channel.window.empty()) closed_.push_back(channel.key);
  return channel.zero_copy_end <= zero_copy_done_;
}

}  // namespace mkernel::transport::tcp
