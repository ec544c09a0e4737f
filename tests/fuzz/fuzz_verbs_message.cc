// Messages from a hostile peer's verbs transport: whatever bytes come, the check answers yes or a named
// reason, and what passed can be read without leaving the message.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "daemon/transport/verbs/message.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace mkernel::transport::verbs;
  const auto bytes = std::as_bytes(std::span(data, size));
  const mkernel::Status status = check_message(bytes);
  if (!status.ok()) {
    if (status.text().empty()) std::abort();  // a refusal must say why
    return 0;
  }
  switch (read_as<Message>(bytes).type) {
    case MessageType::kOpen:
      if (text_of(read_as<Open>(bytes).port).empty()) std::abort();
      break;
    case MessageType::kResolved: {
      const auto resolved = read_as<Resolved>(bytes);
      const auto chunks = mkernel::transport::rdma::chunks_of(bytes);
      // Every byte of the region has a chunk.
      if (chunks.size() <= (resolved.bytes - 1) / resolved.chunk_bytes) std::abort();
      break;
    }
    case MessageType::kGivenUp:
    case MessageType::kNotOpened:
    case MessageType::kBroken:
    case MessageType::kRefused:
    case MessageType::kWriteRefused:
      if (status_of(read_as<Refusal>(bytes)).ok()) std::abort();
      break;
    default: break;
  }
  return 0;
}
