// Bytes of a client's packet -> one typed message, or the reason it is none. Pure: no fds, no state, so that
// the fuzz target can feed it anything. What a message asks for is judged later, by the session.
#pragma once

#include <cstddef>
#include <span>
#include <variant>

#include "proto/abi/messages.h"
#include "proto/abi/status.h"

namespace mkernel::session {

/// A packet as it came from the socket, without its fds.
struct PacketView {
  std::span<const std::byte> bytes;
  std::size_t fd_count = 0;
  bool truncated = false;      ///< the packet was longer than any message
  bool fds_truncated = false;  ///< it carried more than abi::kMaxFds fds
};

/// What a client may send.
using Message =
    std::variant<abi::Hello, abi::JoinGroup, abi::LeaveGroup, abi::RegisterRegion, abi::UnregisterRegion,
                 abi::SealRegion, abi::MapRegion, abi::Exchange, abi::FailGroup, abi::RejectLaunch>;

/// The header alone, checked: of a packet whose fds did not all come. Errors: those of decode().
Result<abi::Header> decode_header(const PacketView& packet);

/// The message, complete and well-formed: right magic and version, known type, exact size, the number of fds
/// that belongs to it, texts terminated, reserved bytes zero. Errors: kInvalidArgument that names field,
/// value and what was expected; kFailedPrecondition for another ABI version, naming both. Any thread.
Result<Message> decode(const PacketView& packet);

}  // namespace mkernel::session
