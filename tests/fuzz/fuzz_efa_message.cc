// Messages from a hostile peer's EFA transport: whatever bytes come, the check answers yes or a named reason,
// and what passed holds to the limits that its readers rely on.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "daemon/transport/efa/immediate.h"
#include "daemon/transport/efa/message.h"
#include "daemon/transport/rdma/routes.h"

namespace {

using namespace mkernel::transport;
using namespace mkernel::transport::efa;

void require(bool condition) {
  if (!condition) std::abort();
}

void check_hello(const Hello& hello) {
  require(hello.qpn <= 0xffffff && hello.credit > 0 && hello.path < rdma::kMaxPaths);
  require(hello.window > 0 && hello.window <= kMaxWindow);
  for (const char c : text_of(hello)) require(static_cast<unsigned char>(c) >= 0x20);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const mkernel::Status status = check_message(bytes);
  if (!status.ok()) {
    require(!status.text().empty());  // a refusal must say why
    return 0;
  }
  switch (read_as<Message>(bytes).type) {
    case MessageType::kHello:
    case MessageType::kWelcome:
    case MessageType::kTry:
    case MessageType::kTried: check_hello(read_as<Hello>(bytes)); break;
    case MessageType::kHeld: require(read_as<Held>(bytes).index < kMaxChannels); break;
    case MessageType::kReleased:
    case MessageType::kTaken: require(read_as<NumberMessage>(bytes).number < kMaxChannels); break;
    case MessageType::kResolve:
    case MessageType::kRevoke:
    case MessageType::kRevoked:
      require(read_as<RegionMessage>(bytes).region < mkernel::abi::kMaxRegions);
      break;
    case MessageType::kResolved:
      require(read_as<Resolved>(bytes).region < mkernel::abi::kMaxRegions);
      require(rdma::chunks_of(bytes).size() == 1);
      break;
    case MessageType::kLost:
    case MessageType::kGivenUp:
    case MessageType::kTryLost:
    case MessageType::kRefused: {
      const mkernel::Status why = status_of(read_as<Refusal>(bytes));
      require(!why.ok());
      for (const char c : why.text()) require(static_cast<unsigned char>(c) >= 0x20);
      break;
    }
    default: break;
  }
  return 0;
}
