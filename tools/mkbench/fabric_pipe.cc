#include "tools/mkbench/fabric_pipe.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

namespace mkernel::bench {
namespace {

constexpr std::uint32_t kMessage = 0, kWord = 1;
constexpr std::uint32_t kLargest = 1U << 20;
constexpr std::chrono::seconds kDialPatience{10};

struct Head {
  std::uint32_t kind;
  std::uint32_t bytes;
};

Status system_error(const std::string& what) {
  return {StatusCode::kUnavailable, what + ": " + std::strerror(errno)};
}

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Result<ipc::UniqueFd> connect_once(const addrinfo& address) {
  ipc::UniqueFd socket(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return system_error("socket");
  if (::connect(socket.get(), address.ai_addr, address.ai_addrlen) != 0) return system_error("connect");
  return socket;
}

}  // namespace

Result<std::pair<Pipe, Pipe>> Pipe::pair() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) return system_error("socketpair");
  return std::pair(Pipe(ipc::UniqueFd(fds[0])), Pipe(ipc::UniqueFd(fds[1])));
}

Result<Pipe> Pipe::accept_on(std::uint16_t port) {
  const ipc::UniqueFd listener(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener.valid()) return system_error("socket");
  const int on = 1;
  ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(port);
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      ::listen(listener.get(), 1) != 0) {
    return system_error("listening on port " + std::to_string(port));
  }
  ipc::UniqueFd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!socket.valid()) return system_error("accept");
  return Pipe(std::move(socket));
}

Result<Pipe> Pipe::dial(const std::string& host_port) {
  const std::size_t colon = host_port.rfind(':');
  const std::string host = host_port.substr(0, colon);
  const std::string port = colon == std::string::npos ? "" : host_port.substr(colon + 1);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
      port.empty() || error != 0) {
    return Status(StatusCode::kInvalidArgument,
                  host_port + ": " + (port.empty() ? "no port" : ::gai_strerror(error)));
  }
  const Addresses addresses(found, &::freeaddrinfo);
  const auto end = std::chrono::steady_clock::now() + kDialPatience;
  for (;;) {
    auto socket = connect_once(*addresses);
    if (socket.ok()) return Pipe(std::move(*socket));
    if (std::chrono::steady_clock::now() > end) return socket.status().with_context(host_port);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

Status Pipe::send(std::uint32_t kind, const void* bytes, std::size_t count) {
  const Head head{kind, static_cast<std::uint32_t>(count)};
  std::string frame(reinterpret_cast<const char*>(&head), sizeof(head));
  frame.append(static_cast<const char*>(bytes), count);
  for (std::size_t sent = 0; sent < frame.size();) {
    const ssize_t more = ::send(socket_.get(), frame.data() + sent, frame.size() - sent, MSG_NOSIGNAL);
    if (more < 0 && errno == EINTR) continue;
    if (more < 0) return system_error("the other end");
    sent += static_cast<std::size_t>(more);
  }
  return {};
}

Status Pipe::send_message(std::span<const std::byte> message) {
  return send(kMessage, message.data(), message.size());
}

Status Pipe::send_word(const nlohmann::json& word) {
  const std::string text = word.dump();
  return send(kWord, text.data(), text.size());
}

Result<std::optional<Pipe::Received>> Pipe::receive() {
  Head head{};
  const auto whole = [&] {
    if (unread_.size() < sizeof(head)) return false;
    std::memcpy(&head, unread_.data(), sizeof(head));
    return head.bytes <= kLargest && unread_.size() >= sizeof(head) + head.bytes;
  };
  while (!whole()) {
    if (head.bytes > kLargest) return Status(StatusCode::kInvalidArgument, "the other end talks nonsense");
    char more[4096];
    const ssize_t got = ::recv(socket_.get(), more, sizeof(more), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::optional<Received>();
    if (got < 0) return system_error("the other end");
    if (got == 0) return Status(StatusCode::kCancelled, "the other end has hung up");
    unread_.append(more, static_cast<std::size_t>(got));
  }
  Received received;
  received.message = unread_.substr(sizeof(head), head.bytes);
  unread_.erase(0, sizeof(head) + head.bytes);
  if (head.kind != kWord) return std::optional(std::move(received));
  received.word = nlohmann::json::parse(received.message, nullptr, false);
  if (!received.word->is_object())
    return Status(StatusCode::kInvalidArgument, "the other end talks nonsense");
  return std::optional(std::move(received));
}

Result<nlohmann::json> Pipe::ask(const nlohmann::json& word) {
  MK_RETURN_IF_ERROR(send_word(word));
  for (;;) {
    pollfd wanted{socket_.get(), POLLIN, 0};
    ::poll(&wanted, 1, 1000);
    auto received = receive();
    if (!received.ok()) return received.status();
    if (received->has_value() && (*received)->word.has_value()) return *(*received)->word;
  }
}

std::string Pipe::other_host() const {
  sockaddr_storage address{};
  socklen_t bytes = sizeof(address);
  char host[NI_MAXHOST] = "";
  if (::getpeername(socket_.get(), reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return "";
  if (address.ss_family != AF_INET && address.ss_family != AF_INET6) return "";
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&address), bytes, host, sizeof(host), nullptr, 0,
                    NI_NUMERICHOST) != 0) {
    return "";
  }
  return host;
}

}  // namespace mkernel::bench
