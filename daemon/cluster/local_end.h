// Whose process holds the other end of a TCP connection that does not leave this host. Plain text on loopback
// proves nothing by itself: every user of a machine can dial a loopback port, or take one that is free.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "proto/abi/status.h"

namespace mkernel::cluster {

/// An established TCP socket of this host (of this network namespace).
struct LocalSocket {
  std::string host;  ///< its own address, numeric; an IPv4 address that is mapped into IPv6 as IPv4
  uid_t uid = 0;
  bool held = false;  ///< by a process; the kernel reports uid 0 for sockets that nobody holds any more
};

/// All established sockets of this host with this port of their own, and with that port on their other side
/// (0: any). Reads the kernel's socket tables: any thread, some milliseconds. kUnavailable when the kernel
/// shows neither.
Result<std::vector<LocalSocket>> local_sockets(std::uint16_t port, std::uint16_t other_port);

/// Which end of a connection asks.
enum class Side { kAccepted, kDialled };

/// OK when the other end, at host:port, belongs to this process's user or to root, or lies on another host.
/// `own_port` is this process's own port of the connection, 0 when unknown. kPermissionDenied names uid and
/// address. On the dialling side there may be sockets that the other daemon has not yet accepted: they are
/// held by nobody and do not count.
Status check_local_end(const std::string& host, std::uint16_t port, std::uint16_t own_port, Side side);

}  // namespace mkernel::cluster
