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

/// A received packet. `bytes` of `data` are valid; the fds are owned by the packet until taken.
struct Packet {
  alignas(8) std::byte data[abi::kMaxMessageBytes];
  std::size_t bytes = 0;
  std::vector<UniqueFd> fds;
  bool truncated = false;      ///< the packet was longer than kMaxMessageBytes
  bool fds_truncated = false;  ///< it carried more than abi::kMaxFds fds; `fds` has the first of them
  bool fds_lost = false;       ///< this process had no room for all its fds; `fds` has those that came
};

/// Sends one packet. Errors: kUnavailable when the other side is gone, kResourceExhausted when the socket is
/// non-blocking and full.
Status send_packet(int socket, std::span<const std::byte> bytes, std::span<const int> fds = {});

/// Sends a message struct of proto/abi/messages.h whose header is filled in.
template <typename Message>
Status send_message(int socket, const Message& message, std::span<const int> fds = {}) {
  return send_packet(socket, std::as_bytes(std::span(&message, 1)), fds);
}

/// Receives one packet. Errors: kUnavailable at end of stream, kNotFound when the socket is non-blocking and
/// empty. Received fds are close-on-exec.
Status receive_packet(int socket, Packet& packet);

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
