// Sockets as this transport wants them: addresses in text, listening, dialling without blocking, tuning.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "proto/abi/status.h"
#include "proto/ipc/fd.h"

namespace mkernel::transport::tcp {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  std::uint16_t port() const;
  void set_port(std::uint16_t port);
  bool wildcard() const;     ///< 0.0.0.0 or ::
  std::string host() const;  ///< numeric
  std::string text() const;  ///< "127.0.0.1:7600", "[::1]:7600"
};

/// "127.0.0.1" or "::1" and a port. No names are looked up.
Result<SocketAddress> parse_address(const std::string& host, std::uint16_t port);
/// "127.0.0.1:7600" or "[::1]:7600".
Result<SocketAddress> parse_endpoint(const std::string& endpoint);
/// The first address of a name or numeric host; may block, for start-up only.
Result<SocketAddress> resolve(const std::string& host);
/// An address of this machine that is not loopback, of the wanted family; loopback when there is none.
SocketAddress first_public_address(int family);

/// A listening socket, non-blocking. An occupied port is kAlreadyExists and says by whom.
Result<ipc::UniqueFd> listen_at(const SocketAddress& address);
Result<SocketAddress> local_address(int socket);
/// Of a connected socket: "10.0.0.1:41234 -> 10.0.0.2:7600"; "?" for an end that the system does not name.
std::string ends_of(int socket);

struct Tuning {
  std::chrono::milliseconds silence{0};  ///< unacknowledged data or no answer to keepalives: connection lost
  std::uint64_t buffer_bytes = 0;        ///< 0: the kernel's own
  bool zero_copy = false;
};

/// Options that every connection gets. Returns whether zero-copy sends are possible on it.
bool tune(int socket, const Tuning& tuning);
/// The connection will be cut, not finished, by the coming close: what is queued in it must not reach the
/// peer.
void cut_on_close(int socket);

/// Starts to connect; writable (or in error) when decided.
Result<ipc::UniqueFd> dial(const SocketAddress& address);
enum class Filled : std::uint8_t { kNotYet, kWhole, kEnded };
/// Reads on until `have` of the `bytes` at `at` are all there, or the socket has no more for now. kEnded:
/// they will never be.
Filled fill(int socket, void* at, std::size_t bytes, std::size_t& have);
/// Sends it all or fails: for the first bytes of a connection, which always fit into its buffer.
bool send_whole(int socket, const void* bytes, std::size_t count);

/// Outcome of a dial() that has become writable; also any error that the socket has pending.
Status socket_error(int socket, const std::string& who);

}  // namespace mkernel::transport::tcp
