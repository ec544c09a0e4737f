// What only verbs transports say to each other: queue pairs, and where arrival counts lie. The rest is in
// ../rdma/message.h.
//
// Puts flow from a sender to a receiver over the sender's connections, each one queue pair at either end,
// named by (slot, epoch). Every message is about one connection.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "daemon/transport/rdma/message.h"

namespace mkernel::transport::verbs {

using rdma::bytes_of;
using rdma::ChannelMessage;
using rdma::kMaxChunks;
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

inline constexpr std::size_t kDeviceNameBytes = 32;

/// A port as the other end must know it.
struct Port {
  std::uint8_t gid[16];
  std::uint32_t lid;
  std::uint8_t mtu;         ///< ibv_mtu
  std::uint8_t link_layer;  ///< IBV_LINK_LAYER_*
  std::uint8_t number;
  std::uint8_t reserved;
  char device[kDeviceNameBytes];  ///< for texts
};
static_assert(sizeof(Port) == 56);

struct Open {
  Message head;
  std::uint64_t from_boot_id;
  std::uint64_t to_boot_id;
  Port port;
  std::uint32_t qpn;
  std::uint32_t psn;
  std::uint32_t path;  ///< of the receiver, that the connection is to end at
  std::uint32_t reserved;
};
static_assert(sizeof(Open) == 104);

struct Opened {
  Message head;
  Port port;
  std::uint32_t qpn;
  std::uint32_t psn;
};
static_assert(sizeof(Opened) == 80);

/// The answer to kAttach, which is a ChannelMessage.
struct Held {
  Message head;
  std::uint64_t key;
  std::uint64_t count;  ///< puts of the channel that are in place
  std::uint64_t word;   ///< address of its arrival count
  std::uint32_t rkey;
  std::uint32_t reserved;
};
static_assert(sizeof(Held) == 48);

/// rdma::check_message() for what verbs transports say.
Status check_message(std::span<const std::byte> bytes);

/// A sender says it, to a receiver.
constexpr bool from_sender(MessageType type) {
  return (type >= MessageType::kAttach && type < MessageType::kHeld) ||
         (type >= MessageType::kOpen && type < MessageType::kOpened);
}

/// "mlx5_0 port 1 (GID ::ffff:10.0.0.1)".
std::string text_of(const Port& port);

}  // namespace mkernel::transport::verbs
