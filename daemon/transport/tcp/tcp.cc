#include "daemon/transport/tcp/tcp.h"

#include <utility>

#include "daemon/transport/tcp/message.h"
#include "daemon/transport/tcp/socket.h"
#include "daemon/transport/tcp/transport.h"

namespace mkernel::transport {
namespace {

Status check(const TcpOptions& options) {
  if (options.connections_per_peer == 0 || options.connections_per_peer > tcp::kMaxConnections) {
    return {StatusCode::kInvalidArgument, "TCP transport: " + std::to_string(options.connections_per_peer) +
                                              " connections per peer; 1 to " +
                                              std::to_string(tcp::kMaxConnections) + " are possible"};
  }
  if (options.window == 0 || options.window > kMaxWindow) {
    return {StatusCode::kInvalidArgument, "TCP transport: a window of " + std::to_string(options.window) +
                                              " puts; 1 to " + std::to_string(kMaxWindow) + " are possible"};
  }
  return {};
}

/// What peers are told to dial.
Result<std::string> endpoint_of(const TcpOptions& options, int listener) {
  auto bound = tcp::local_address(listener);
  if (!bound.ok()) return bound.status();
  tcp::SocketAddress told = *bound;
  if (!options.advertise.empty()) {
    auto resolved = tcp::resolve(options.advertise);
    if (!resolved.ok()) return resolved.status().with_context("TCP transport: advertise");
    told = *resolved;
  } else if (bound->wildcard()) {
    told = tcp::first_public_address(bound->storage.ss_family);
  }
  told.set_port(bound->port());
  return told.text();
}

}  // namespace

Result<std::unique_ptr<Transport>> make_tcp(const TcpOptions& options) {
  MK_RETURN_IF_ERROR(check(options));
  auto address = tcp::parse_address(options.bind_address, options.port);
  if (!address.ok()) return address.status().with_context("TCP transport: bind");
  auto listener = tcp::listen_at(*address);
  if (!listener.ok()) return listener.status();
  auto endpoint = endpoint_of(options, listener->get());
  if (!endpoint.ok()) return endpoint.status();
  auto made = tcp::TcpTransport::make(options, std::move(*listener), *endpoint);
  if (!made.ok()) return made.status();
  return std::unique_ptr<Transport>(std::move(*made));
}

}  // namespace mkernel::transport
