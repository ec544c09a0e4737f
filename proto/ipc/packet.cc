#include "proto/ipc/packet.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace mkernel::ipc {
namespace {

/// Packets that discard_packets() takes out at most: nobody who is honest leaves more.
constexpr int kMostDiscarded = 64;

StatusCode send_error(int error) {
  if (error == EAGAIN || error == EWOULDBLOCK || error == ENOBUFS) return StatusCode::kResourceExhausted;
  return error == ETOOMANYREFS ? StatusCode::kAborted : StatusCode::kUnavailable;
}

}  // namespace

Status send_packet(int socket, std::span<const std::byte> bytes, std::span<const int> fds) {
  iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * abi::kMaxFds)] = {};
  if (!fds.empty()) {
    if (fds.size() > abi::kMaxFds) return {StatusCode::kInternal, "too many fds for one packet"};
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(head), fds.data(), sizeof(int) * fds.size());
  }
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(socket, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return {};
  return {send_error(errno), std::string("send on the session socket: ") + std::strerror(errno)};
}

Status receive_packet(int socket, Packet& packet) {
  packet.fds.clear();
  iovec piece{packet.data, sizeof(packet.data)};
  // Room for all that a packet can carry: what has no room the kernel closes on this thread, and close() of
  // somebody else's fd takes as long as he likes.
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxPacketFds)];
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t got = 0;
  bool reset = false;
  do {
    got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    // A reset is reported once, before the packets that the other side sent earlier.
  } while (got < 0 && (errno == EINTR || (errno == ECONNRESET && !std::exchange(reset, true))));
  if (got < 0) {
    const bool empty = errno == EAGAIN || errno == EWOULDBLOCK;
    return {empty ? StatusCode::kNotFound : StatusCode::kUnavailable,
            std::string("receive on the session socket: ") + std::strerror(errno)};
  }
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr; head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(head) + i * sizeof(int), sizeof(int));
      packet.fds.push_back(above_standard(UniqueFd(fd)));
    }
  }
  packet.bytes = static_cast<std::size_t>(got);
  packet.truncated = (message.msg_flags & MSG_TRUNC) != 0;
  packet.fds_truncated = packet.fds.size() > abi::kMaxFds;
  // The kernel cuts the list where this process may open no more.
  packet.fds_lost = (message.msg_flags & MSG_CTRUNC) != 0 && !packet.fds_truncated;
  if (got == 0 && packet.fds.empty() && !packet.fds_lost) {
    return {StatusCode::kUnavailable, "the other side closed the session socket"};
  }
  return {};
}

bool discard_packets(int socket) {
  // With credentials a packet can be told from the end of the stream even when it has no bytes. Its fds have
  // no room beside them, which MSG_CTRUNC says; a look ahead closes none of them.
  const int on = 1;
  if (::setsockopt(socket, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) != 0) return false;
  for (int i = 0; i < kMostDiscarded; ++i) {
    char scrap = 0;
    iovec piece{&scrap, sizeof(scrap)};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(ucred))];
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t got = ::recvmsg(socket, &message, MSG_PEEK | MSG_DONTWAIT);
    if (got < 0 && (errno == EINTR || errno == ECONNRESET)) continue;
    if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    if (got == 0 && CMSG_FIRSTHDR(&message) == nullptr) return true;
    if ((message.msg_flags & MSG_CTRUNC) != 0) return false;
    if (::recv(socket, &scrap, sizeof(scrap), MSG_DONTWAIT) < 0) return false;
  }
  return false;
}

void copy_text(std::span<char> field, std::string_view text) {
  std::size_t length = std::min(text.size(), field.size() - 1);
  if (length < text.size()) {  // not in the middle of a character: readers refuse what is no UTF-8
    const auto continues = [&] { return (static_cast<unsigned char>(text[length]) & 0xc0U) == 0x80U; };
    for (int bytes = 0; bytes < 3 && length > 0 && continues(); ++bytes) --length;
  }
  std::memcpy(field.data(), text.data(), length);
  std::memset(field.data() + length, 0, field.size() - length);
}

std::string_view text_of(std::span<const char> field) {
  return {field.data(),
          static_cast<std::size_t>(std::find(field.begin(), field.end(), '\0') - field.begin())};
}

abi::ReplyStatus to_reply(const Status& status) {
  abi::ReplyStatus reply{};
  reply.code = static_cast<std::uint32_t>(status.code());
  copy_text(reply.text, status.text());
  return reply;
}

Status from_reply(const abi::ReplyStatus& reply) {
  if (reply.code == 0) return {};
  return {static_cast<StatusCode>(reply.code), std::string(text_of(reply.text))};
}

}  // namespace mkernel::ipc
