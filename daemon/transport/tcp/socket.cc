#include "daemon/transport/tcp/socket.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

#include "daemon/base/port_holder.h"

namespace mkernel::transport::tcp {
namespace {

std::string error_text(int error) {
  return std::strerror(error);
}

template <typename T>
bool set_option(int socket, int level, int name, T value) {
  return ::setsockopt(socket, level, name, &value, sizeof(value)) == 0;
}

SocketAddress from(const sockaddr* address, socklen_t bytes) {
  SocketAddress copy;
  std::memcpy(&copy.storage, address, bytes);
  copy.bytes = bytes;
  return copy;
}

Result<SocketAddress> look_up(const std::string& host, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error != 0) {
    return Status(StatusCode::kInvalidArgument, "address '" + host + "': " + ::gai_strerror(error));
  }
  SocketAddress address = from(found->ai_addr, found->ai_addrlen);
  ::freeaddrinfo(found);
  return address;
}

bool is_loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET6) {
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
  }
  return (ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 24) == 127;
}

bool is_link_local(const sockaddr* address) {
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

}  // namespace

std::uint16_t SocketAddress::port() const {
  return ntohs(storage.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(storage).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(storage).sin_port);
}

void SocketAddress::set_port(std::uint16_t port) {
  (storage.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(storage).sin6_port
                                 : reinterpret_cast<sockaddr_in&>(storage).sin_port) = htons(port);
}

bool SocketAddress::wildcard() const {
  if (storage.ss_family == AF_INET6) {
    return IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr);
  }
  return reinterpret_cast<const sockaddr_in&>(storage).sin_addr.s_addr == htonl(INADDR_ANY);
}

std::string SocketAddress::host() const {
  char text[NI_MAXHOST] = "";
  if (::getnameinfo(get(), bytes, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) return "?";
  return text;
}

std::string SocketAddress::text() const {
  const std::string name = storage.ss_family == AF_INET6 ? "[" + host() + "]" : host();
  return name + ":" + std::to_string(port());
}

Result<SocketAddress> parse_address(const std::string& host, std::uint16_t port) {
  auto address = look_up(host, AI_NUMERICHOST);
  if (address.ok()) address->set_port(port);
  return address;
}

Result<SocketAddress> parse_endpoint(const std::string& endpoint) {
  const auto colon = endpoint.rfind(':');
  std::uint16_t port = 0;
  const char* end = endpoint.data() + endpoint.size();
  if (colon == std::string::npos || colon == 0 ||
      std::from_chars(endpoint.data() + colon + 1, end, port).ptr != end || port == 0) {
    return Status(StatusCode::kInvalidArgument, "endpoint '" + endpoint + "' is not ADDRESS:PORT");
  }
  std::string host = endpoint.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return parse_address(host, port);
}

Result<SocketAddress> resolve(const std::string& host) {
  return look_up(host, 0);
}

SocketAddress first_public_address(int family) {
  SocketAddress found;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) == 0) {
    for (const ifaddrs* at = all; at != nullptr && found.bytes == 0; at = at->ifa_next) {
      if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != family) continue;
      if ((at->ifa_flags & IFF_UP) == 0 || is_loopback(at->ifa_addr) || is_link_local(at->ifa_addr)) continue;
      found = from(at->ifa_addr, family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
    }
    ::freeifaddrs(all);
  }
  if (found.bytes == 0) return std::move(parse_address(family == AF_INET6 ? "::1" : "127.0.0.1", 0)).value();
  return found;
}

Result<ipc::UniqueFd> listen_at(const SocketAddress& address) {
  const std::string where = "TCP transport at " + address.text();
  ipc::UniqueFd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return Status(StatusCode::kResourceExhausted, where + ": socket: " + error_text(errno));
  set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (::bind(fd.get(), address.get(), address.bytes) != 0 || ::listen(fd.get(), SOMAXCONN) != 0) {
    const int error = errno;
    if (error == EADDRINUSE) {
      return Status(StatusCode::kAlreadyExists,
                    where + ": the port is in use" + base::port_holder(address.port()));
    }
    return Status(StatusCode::kInvalidArgument, where + ": cannot listen: " + error_text(error));
  }
  return fd;
}

Result<SocketAddress> local_address(int socket) {
  SocketAddress address;
  address.bytes = sizeof(address.storage);
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address.storage), &address.bytes) != 0) {
    return Status(StatusCode::kInternal, "getsockname: " + error_text(errno));
  }
  return address;
}

std::string ends_of(int socket) {
  const auto local = local_address(socket);
  SocketAddress remote;
  remote.bytes = sizeof(remote.storage);
  const bool known = ::getpeername(socket, reinterpret_cast<sockaddr*>(&remote.storage), &remote.bytes) == 0;
  return (local.ok() ? local.value().text() : "?") + " -> " + (known ? remote.text() : "?");
}

bool tune(int socket, const Tuning& tuning) {
  using std::chrono::duration_cast;
  using std::chrono::seconds;
  const auto silence = static_cast<unsigned>(tuning.silence.count());
  const auto idle =
      static_cast<int>(std::max<std::int64_t>(1, duration_cast<seconds>(tuning.silence).count() / 2));
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, idle);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, silence);
  if (tuning.buffer_bytes > 0) {
    const int bytes = static_cast<int>(std::min<std::uint64_t>(tuning.buffer_bytes, 1U << 30));
    set_option(socket, SOL_SOCKET, SO_SNDBUF, bytes);
    set_option(socket, SOL_SOCKET, SO_RCVBUF, bytes);
  }
  return tuning.zero_copy && set_option(socket, SOL_SOCKET, SO_ZEROCOPY, 1);
}

void cut_on_close(int socket) {
  set_option(socket, SOL_SOCKET, SO_LINGER, linger{1, 0});
}

Result<ipc::UniqueFd> dial(const SocketAddress& address) {
  ipc::UniqueFd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return Status(StatusCode::kResourceExhausted, "socket: " + error_text(errno));
  if (::connect(fd.get(), address.get(), address.bytes) != 0 && errno != EINPROGRESS) {
    return Status(StatusCode::kUnavailable, "connect to " + address.text() + ": " + error_text(errno));
  }
  return fd;
}

Filled fill(int socket, void* at, std::size_t bytes, std::size_t& have) {
  while (have < bytes) {
    const ssize_t got = ::read(socket, static_cast<std::byte*>(at) + have, bytes - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return Filled::kNotYet;
    if (got <= 0) return Filled::kEnded;
    have += static_cast<std::size_t>(got);
  }
  return Filled::kWhole;
}

bool send_whole(int socket, const void* bytes, std::size_t count) {
  return ::send(socket, bytes, count, MSG_NOSIGNAL) == static_cast<ssize_t>(count);
}

Status socket_error(int socket, const std::string& who) {
  int error = 0;
  socklen_t bytes = sizeof(error);
  if (::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
  if (error == 0) return {};
  return {error == ETIMEDOUT ? StatusCode::kDeadlineExceeded : StatusCode::kUnavailable,
          who + ": " + error_text(error)};
}

}  // namespace mkernel::transport::tcp
