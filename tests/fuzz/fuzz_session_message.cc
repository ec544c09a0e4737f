// Session messages from a hostile client: whatever bytes and however many fds come, the decoder answers with
// a message or a named reason, and reads nothing outside the packet.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "daemon/session/message_decoder.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  // The first byte plays what recvmsg reports beside the bytes: fd count and the two truncation flags.
  mkernel::session::PacketView packet;
  packet.fd_count = data[0] & 0x0f;
  packet.truncated = (data[0] & 0x40) != 0;
  packet.fds_truncated = (data[0] & 0x80) != 0;
  packet.bytes = std::as_bytes(std::span(data + 1, size - 1));
  const auto message = mkernel::session::decode(packet);
  if (!message.ok() && message.status().text().empty()) std::abort();  // a refusal must say why
  return 0;
}
