// Rules that a key's value must satisfy: the check and the words for the message, together.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/config/keys.h"

namespace mkernel::config {

struct Rule {
  std::string wants;
  std::function<bool(const Value&)> check;
};

Rule boolean();
Rule integer(std::int64_t low, std::int64_t high);
Rule power_of_two(std::int64_t low, std::int64_t high);
Rule real(double low, double high);
Rule any_text();
/// A path that begins with '/' and has no zero byte; empty is allowed when `optional`.
Rule absolute_path(bool optional);
/// A numeric IPv4 or IPv6 address, without a port; no name.
Rule ip_address();
Rule one_of(std::vector<std::string> words);
/// Letters, digits and . _ - , short enough for abi::Member; empty is allowed.
Rule node_name();
/// Permission bits in octal, "0660".
Rule file_mode();
/// "host:port", "[v6]:port", to listen on: port 0 is one that the kernel chooses.
Rule host_port();
/// The same of others, to be dialled: the port is not 0. Empty is allowed.
Rule peer_address();
Rule peer_address_list();
Rule cpu_list();
/// Ports of RDMA devices: "mlx5_0", "mlx5_0:1".
Rule port_list();

/// "host:port" taken apart (brackets of an IPv6 address removed); false when it is not that.
bool split_host_port(std::string_view text, std::string& host, std::uint16_t& port);

/// An address of 127.0.0.0/8, ::1 or one of these mapped into IPv6; and "localhost", which pinned() makes
/// 127.0.0.1. Any other name is none, whatever it resolves to and however it begins.
bool is_loopback(std::string_view host);

/// "localhost:PORT" as "127.0.0.1:PORT", every other address as it is: what is taken for loopback is never
/// left to a name server.
std::string pinned(const std::string& address);

}  // namespace mkernel::config
