// The first packet of either end of a connection: who calls whom, in which of its lives.
#pragma once

#include <cstdint>
#include <string>

#include "daemon/transport/emulated/message.h"
#include "daemon/transport/transport.h"
#include "proto/ipc/packet.h"

namespace mkernel::transport::emulated {

/// What a hello says. `fence` is the caller's page, checked and mapped.
struct Greeting {
  Identity from;
  Identity to;
  ipc::Mapping fence;
  std::uint32_t wire = 0;  ///< unchecked
};

/// Why the other end does not want to talk. `final`: it never will.
struct Refusal {
  Status why;
  bool final = false;
};

/// "node-a (boot 17)".
std::string describe(const Identity& identity);
bool same(const Identity& a, const Identity& b);

Status send_hello(int socket, const Identity& from, const Identity& to, int fence_fd, std::uint32_t wire = 0);
/// Best effort: the caller closes the socket afterwards.
void send_refusal(int socket, const Refusal& refusal);

PacketType type_of(const ipc::Packet& packet);
/// Errors name what is wrong with the hello.
Result<Greeting> read_hello(const ipc::Packet& packet);
/// kUnavailable and not final when the packet is no whole refusal either.
Refusal read_refusal(const ipc::Packet& packet);

}  // namespace mkernel::transport::emulated
