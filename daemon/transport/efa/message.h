// What only EFA transports say to each other: addresses, and numbers of channels. The rest is in
// ../rdma/message.h.
//
// A connection is one queue pair at either end, for puts both ways. The end with the smaller (node, boot id)
// opens it and counts up its epoch each time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "daemon/transport/rdma/message.h"

namespace mkernel::transport::efa {

using rdma::bytes_of;
using rdma::ChannelMessage;
using rdma::kMessageVersion;
using rdma::Message;
using rdma::MessageType;
using rdma::read_as;
using rdma::Refusal;
using rdma::refusal;
using rdma::RegionMessage;
using rdma::RemoteChunk;
using rdma::Resolved;
using rdma::status_of;

inline constexpr std::size_t kDeviceNameBytes = 64;

struct Hello {
  Message head;
  std::uint64_t from_boot_id;
  std::uint64_t to_boot_id;
  std::uint8_t gid[16];
  std::uint32_t qpn;
  std::uint32_t qkey;
  std::uint32_t credit;  ///< puts that may be on their way to this end, of all channels
  std::uint32_t window;  ///< and of one channel
  std::uint32_t path;    ///< of who answers, by its own order: where the queue pairs are to end
  std::uint32_t reserved;
  char device[kDeviceNameBytes];  ///< for texts
};
static_assert(sizeof(Hello) == 136);

struct Attach {
  Message head;
  std::uint64_t key;
  std::uint32_t serial;  ///< the sender's, another each time it attaches the channel anew
  std::uint32_t reserved;
};
static_assert(sizeof(Attach) == 32);

/// The answer to Attach.
struct Held {
  Message head;
  std::uint64_t key;
  std::uint64_t count;   ///< puts of the channel that are published
  std::uint32_t index;   ///< what the immediate data calls the channel
  std::uint32_t serial;  ///< of the Attach that is answered
};
static_assert(sizeof(Held) == 40);

struct NumberMessage {
  Message head;
  std::uint32_t number;  ///< as the immediate data of the puts has it
  std::uint32_t reserved;
};
static_assert(sizeof(NumberMessage) == 24);

/// rdma::check_message() for what EFA transports say. A region has one chunk.
Status check_message(std::span<const std::byte> bytes);

/// "rdmap79s0 port 1 (GID fe80::1, QPN 17)".
std::string text_of(const Hello& end);

}  // namespace mkernel::transport::efa
