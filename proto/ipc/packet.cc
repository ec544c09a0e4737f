#include "proto/ipc/packet.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

namespace mkernel::ipc {

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
  const bool full = errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS;
  return {full ? StatusCode::kResourceExhausted : StatusCode::kUnavailable,
          std::string("send on the session socket: ") + std::strerror(errno)};
}

Status receive_packet(int socket, Packet& packet) {
  packet.fds.clear();
  iovec piece{packet.data, sizeof(packet.data)};
  // Room for one fd more than is allowed, so that "too many" is seen rather than silently cut.
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * (abi::kMaxFds + 1))];
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t got = 0;
  do {
    got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
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
  // The kernel cuts the list where the buffer ends, which has room for one too many, or where this process
  // may open no more.
  packet.fds_truncated = packet.fds.size() > abi::kMaxFds;
  packet.fds_lost = (message.msg_flags & MSG_CTRUNC) != 0 && !packet.fds_truncated;
  if (got == 0 && packet.fds.empty() && !packet.fds_lost) {
    return {StatusCode::kUnavailable, "the other side closed the session socket"};
  }
  return {};
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
