// Packets over a Unix SOCK_SEQPACKET socket: bytes plus fds. One call is one packet.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "proto/abi/messages.h"
#include "proto/abi/status.h"
#include "proto/ipc/fd.h"

namespace mkernel::ipc {

/// The most fds that the kernel lets one packet carry (SCM_MAX_FD).
inline constexpr std::size_t kMaxPacketFds = 253;

/// A received packet. `bytes` of `data` are valid; the fds are owned by the packet until taken.
struct Packet {
  alignas(8) std::byte data[abi::kMaxMessageBytes];
  std::size_t bytes = 0;
  std::vector<UniqueFd> fds;
  bool truncated = false;      ///< the packet was longer than kMaxMessageBytes
  bool fds_truncated = false;  ///< it carried more than abi::kMaxFds fds; `fds` has them all
  bool fds_lost = false;       ///< this process had no room for all its fds; `fds` has those that came
};

/// Sends one packet. Errors: kUnavailable when the other side reads no more (what it has sent before can
/// still be received), kResourceExhausted when the socket is non-blocking and full, kAborted when the kernel
/// takes no more fds of this user into flight (ETOOMANYREFS).
Status send_packet(int socket, std::span<const std::byte> bytes, std::span<const int> fds = {});

/// Sends a message struct of proto/abi/messages.h whose header is filled in.
template <typename Message>
Status send_message(int socket, const Message& message, std::span<const int> fds = {}) {
  return send_packet(socket, std::as_bytes(std::span(&message, 1)), fds);
}

/// Receives one packet. Errors: kUnavailable at end of stream, kNotFound when the socket is non-blocking and
/// empty. What the other side sent before it reset the connection is received first. Received fds are
/// close-on-exec. The kernel closes none of them on this thread as long as this process may open
/// kMaxPacketFds more.
Status receive_packet(int socket, Packet& packet);

/// Takes packets without fds out of a socket that is shut down for reading or whose other side is gone. True
/// when nothing is left in it: then close() closes no fd that somebody sent. Closes none itself.
bool discard_packets(int socket);

/// A header for a message of type Message.
template <typename Message>
abi::Header header_of(abi::MessageType type, std::uint32_t sequence) {
  return {abi::kMagic, abi::kVersion, static_cast<std::uint16_t>(type), sizeof(Message), sequence};
}

/// Copies `text` into a fixed field, cut to fit between two characters, always zero-terminated.
void copy_text(std::span<char> field, std::string_view text);

/// The text of a fixed field, up to its first zero or its end.
std::string_view text_of(std::span<const char> field);

abi::ReplyStatus to_reply(const Status& status);
Status from_reply(const abi::ReplyStatus& reply);

}  // namespace mkernel::ipc
