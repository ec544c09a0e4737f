// A session that says what it likes, one message at a time: what clients of the library cannot do.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "proto/abi/messages.h"
#include "proto/abi/status.h"
#include "proto/ipc/fd.h"
#include "proto/ipc/packet.h"

namespace mkernel::bench {

struct RawJoin {
  std::string name;
  std::uint32_t world_size = 1, rank = 0, lanes = 1, region_capacity = 8, timeout_ms = 5000;
};

/// Blocking; a reply that does not come within 30 s is kDeadlineExceeded. One thread.
class RawSession {
 public:
  /// The session of a client that has said hello.
  static Result<RawSession> connect(const std::string& daemon, const std::string& name);

  template <typename Message>
  Status send(abi::MessageType type, Message message, std::span<const int> fds = {}) {
    message.header = ipc::header_of<Message>(type, ++sequence_);
    return ipc::send_message(socket_.get(), message, fds);
  }
  /// What the next reply says.
  Status receive();

  Status start_join(const RawJoin& join);
  /// The handle of the group of the next reply, which is a join's.
  Result<std::uint32_t> finish_join();
  Result<std::uint32_t> join(const RawJoin& join);

  /// Asks for what the control thread answers at once: to unregister a region that is none. Errors: of the
  /// session alone.
  Status ask(std::uint32_t group);

  int socket() const { return socket_.get(); }

 private:
  Status next(ipc::Packet& packet);

  ipc::UniqueFd socket_;
  std::uint32_t sequence_ = 0;
};

/// A RegisterRegion of `bytes` of host memory at `offset` of the descriptor that goes with it.
abi::RegisterRegion host_region(std::uint32_t group, std::uint32_t index, std::uint64_t offset,
                                std::uint64_t bytes, bool shared);

}  // namespace mkernel::bench
