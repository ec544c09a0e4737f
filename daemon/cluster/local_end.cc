// NOTES: the tables are asked through netlink (sock_diag), where the kernel filters by port; a kernel or
// container without it has /proc/self/net/tcp. Of a socket whose process has closed it the kernel reports uid
// 0 and no inode: without the question for the inode a caller would become root by hanging up.
#include "daemon/cluster/local_end.h"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>

#include "daemon/base/id_map.h"
#include "daemon/config/rules.h"
#include "proto/ipc/fd.h"

namespace mkernel::cluster {
namespace {

constexpr unsigned kEstablished = 1;  // TCP_ESTABLISHED of the kernel, which no header of C brings

/// Of an address in network order: 4 bytes, or 16 of which some are mapped IPv4 addresses.
std::string numeric(int family, const void* address) {
  const auto* bytes = static_cast<const unsigned char*>(address);
  if (family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(static_cast<const in6_addr*>(address))) {
    return numeric(AF_INET, bytes + 12);
  }
  char text[INET6_ADDRSTRLEN] = "";
  ::inet_ntop(family, address, text, sizeof(text));
  return text;
}

// ---- netlink

bool ask(int fd, int family, std::uint16_t port, std::uint16_t other_port) {
  struct {
    nlmsghdr header;
    inet_diag_req_v2 request;
  } message{};
  message.header.nlmsg_len = sizeof(message);
  message.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  message.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  message.request.sdiag_family = static_cast<std::uint8_t>(family);
  message.request.sdiag_protocol = IPPROTO_TCP;
  message.request.idiag_states = 1U << kEstablished;
  message.request.id.idiag_sport = htons(port);
  message.request.id.idiag_dport = htons(other_port);
  return ::send(fd, &message, sizeof(message), 0) == static_cast<ssize_t>(sizeof(message));
}

/// Appends what one answer holds. True at the end of the dump; nothing when it is an error.
std::optional<bool> take(const char* data, std::size_t size, std::vector<LocalSocket>& sockets) {
  const auto* header = reinterpret_cast<const nlmsghdr*>(data);
  for (; NLMSG_OK(header, size); header = NLMSG_NEXT(header, size)) {
    if (header->nlmsg_type == NLMSG_DONE) return true;
    if (header->nlmsg_type != SOCK_DIAG_BY_FAMILY || header->nlmsg_len < NLMSG_LENGTH(sizeof(inet_diag_msg)))
      return std::nullopt;
    const auto* row = static_cast<const inet_diag_msg*>(NLMSG_DATA(header));
    sockets.push_back({numeric(row->idiag_family, row->id.idiag_src), row->idiag_uid, row->idiag_inode != 0});
  }
  return false;
}

bool from_netlink(int family, std::uint16_t port, std::uint16_t other_port,
                  std::vector<LocalSocket>& sockets) {
  const ipc::UniqueFd fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!fd.valid() || !ask(fd.get(), family, port, other_port)) return false;
  alignas(nlmsghdr) std::array<char, 32768> buffer;
  for (;;) {
    const ssize_t got = ::recv(fd.get(), buffer.data(), buffer.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    const auto end = take(buffer.data(), static_cast<std::size_t>(got), sockets);
    if (!end) return false;
    if (*end) return true;
  }
}

// ---- /proc

/// "0100007F:1DB0": the words of the address in the byte order of the machine, and the port.
bool parse_end(const std::string& text, int family, std::string& host, std::uint16_t& port) {
  const std::size_t digits = family == AF_INET ? 8 : 32;
  if (text.size() != digits + 5 || text[digits] != ':') return false;
  std::array<std::uint32_t, 4> words{};
  for (std::size_t i = 0; i < digits / 8; ++i) {
    words[i] = static_cast<std::uint32_t>(std::strtoul(text.substr(8 * i, 8).c_str(), nullptr, 16));
  }
  host = numeric(family, words.data());
  port = static_cast<std::uint16_t>(std::strtoul(text.c_str() + digits + 1, nullptr, 16));
  return true;
}

bool from_proc(int family, std::uint16_t port, std::uint16_t other_port, std::vector<LocalSocket>& sockets) {
  std::ifstream table(family == AF_INET ? "/proc/self/net/tcp" : "/proc/self/net/tcp6");
  std::string line, number, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
  if (!std::getline(table, line)) return false;  // heading
  while (std::getline(table, line)) {
    std::istringstream words(line);
    words >> number >> local >> remote >> state >> queues >> timer >> retransmits >> uid >> timeout >> inode;
    std::string host, other_host;
    std::uint16_t from = 0, to = 0;
    if (state != "01" || !parse_end(local, family, host, from) || !parse_end(remote, family, other_host, to))
      continue;
    if (from != port || (other_port != 0 && to != other_port)) continue;
    sockets.push_back({host, static_cast<uid_t>(std::strtoul(uid.c_str(), nullptr, 10)), inode != "0"});
  }
  return true;
}

/// "::ffff:127.0.0.1" as "127.0.0.1"; every other address as the kernel's tables are read above.
std::string normal(const std::string& host) {
  std::string plain = host.size() > 2 && host.front() == '[' ? host.substr(1, host.size() - 2) : host;
  plain = plain.substr(0, plain.find('%'));
  in6_addr address{};
  if (::inet_pton(AF_INET6, plain.c_str(), &address) == 1) return numeric(AF_INET6, &address);
  return plain;
}

}  // namespace

Result<std::vector<LocalSocket>> local_sockets(std::uint16_t port, std::uint16_t other_port) {
  std::vector<LocalSocket> all;
  bool known = false;
  for (const int family : {AF_INET, AF_INET6}) {
    std::vector<LocalSocket> some;
    if (!from_netlink(family, port, other_port, some)) {
      some.clear();
      if (!from_proc(family, port, other_port, some)) continue;  // a host without IPv6
    }
    known = true;
    all.insert(all.end(), some.begin(), some.end());
  }
  if (known) return all;
  return Status(StatusCode::kUnavailable,
                "the kernel shows its sockets neither through sock_diag nor in /proc");
}

Status check_local_end(const std::string& host, std::uint16_t port, std::uint16_t own_port, Side side) {
  const std::string address = normal(host), where = host + ":" + std::to_string(port);
  auto found = local_sockets(port, own_port);
  if (!found.ok()) return found.status();
  std::vector<LocalSocket>& ends = found.value();
  std::erase_if(ends, [&](const LocalSocket& end) {
    return end.host != address || (side == Side::kDialled && !end.held);
  });
  if (ends.empty() && !config::is_loopback(address)) return {};  // of another host
  const bool known =
      !ends.empty() && std::all_of(ends.begin(), ends.end(), [](auto& end) { return end.held; });
  if (!known) {
    return {StatusCode::kPermissionDenied, "nobody is known to hold the connection from " + where};
  }
  for (const LocalSocket& end : ends) {
    if (end.uid == 0 || (end.uid == ::geteuid() && base::check_known_user(end.uid).ok())) continue;
    return {StatusCode::kPermissionDenied,
            "uid " + std::to_string(end.uid) + " holds the connection from " + where +
                ": without TLS, daemons of one host belong to one user (here uid " +
                std::to_string(::geteuid()) + ") or to root"};
  }
  return {};
}

}  // namespace mkernel::cluster
