#include "daemon/config/rules.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "proto/abi/region_map.h"

namespace mkernel::config {
namespace {

constexpr std::size_t kMaxNodeName = sizeof(abi::Member::node_name) - 1;

constexpr const char *kLocalhost = "localhost", *kLoopback = "127.0.0.1";

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", value);
  return text;
}

bool is_host_port(const std::string& text) {
  std::string host;
  std::uint16_t port = 0;
  return split_host_port(text, host, port);
}

bool is_peer_address(const std::string& text) {
  std::string host;
  std::uint16_t port = 0;
  return split_host_port(text, host, port) && port != 0;
}

}  // namespace

bool split_host_port(std::string_view text, std::string& host, std::uint16_t& port) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return false;
  std::string_view name = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  if (name.front() == '[' && name.back() == ']') {
    name = name.substr(1, name.size() - 2);
  } else if (name.find(':') != std::string_view::npos) {
    return false;
  }
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc{} || end != digits.data() + digits.size() || name.empty()) return false;
  if (name.find_first_of(" \t/[]") != std::string_view::npos) return false;
  host = name;
  return true;
}

bool is_loopback(std::string_view host) {
  if (host == kLocalhost) return true;
  const std::string text(host);
  in_addr ipv4{};
  if (::inet_pton(AF_INET, text.c_str(), &ipv4) == 1) return ntohl(ipv4.s_addr) >> 24 == 127;
  in6_addr ipv6{};
  if (::inet_pton(AF_INET6, text.c_str(), &ipv6) != 1) return false;
  return IN6_IS_ADDR_LOOPBACK(&ipv6) || (IN6_IS_ADDR_V4MAPPED(&ipv6) && ipv6.s6_addr[12] == 127);
}

std::string pinned(const std::string& address) {
  std::string host;
  std::uint16_t port = 0;
  if (!split_host_port(address, host, port) || host != kLocalhost) return address;
  return kLoopback + std::string(":") + std::to_string(port);
}

Rule boolean() {
  return {"true or false", [](const Value& value) { return std::holds_alternative<bool>(value); }};
}

Rule integer(std::int64_t low, std::int64_t high) {
  return {"a whole number from " + std::to_string(low) + " to " + std::to_string(high),
          [low, high](const Value& value) {
            const auto* found = std::get_if<std::int64_t>(&value);
            return found != nullptr && *found >= low && *found <= high;
          }};
}

Rule power_of_two(std::int64_t low, std::int64_t high) {
  return {"a power of two from " + std::to_string(low) + " to " + std::to_string(high),
          [low, high](const Value& value) {
            const auto* found = std::get_if<std::int64_t>(&value);
            return found != nullptr && *found >= low && *found <= high &&
                   std::has_single_bit(static_cast<std::uint64_t>(*found));
          }};
}

Rule real(double low, double high) {
  return {"a number from " + number(low) + " to " + number(high), [low, high](const Value& value) {
            const auto* found = std::get_if<double>(&value);
            return found != nullptr && std::isfinite(*found) && *found >= low && *found <= high;
          }};
}

Rule any_text() {
  return {"a text", [](const Value& value) { return std::holds_alternative<std::string>(value); }};
}

Rule absolute_path(bool optional) {
  return {"an absolute path (\"/...\"; ~ and variables are not expanded)", [optional](const Value& value) {
            const auto* found = std::get_if<std::string>(&value);
            if (found == nullptr || found->find('\0') != std::string::npos) return false;
            return found->empty() ? optional : found->front() == '/';
          }};
}

Rule ip_address() {
  return {"a numeric IPv4 or IPv6 address", [](const Value& value) {
            const auto* text = std::get_if<std::string>(&value);
            if (text == nullptr) return false;
            in6_addr room{};
            const std::string without_scope = text->substr(0, text->find('%'));
            return ::inet_pton(AF_INET, text->c_str(), &room) == 1 ||
                   ::inet_pton(AF_INET6, without_scope.c_str(), &room) == 1;
          }};
}

Rule one_of(std::vector<std::string> words) {
  std::string wants = "one of";
  for (const std::string& word : words) wants += " \"" + word + "\"";
  return {wants, [words = std::move(words)](const Value& value) {
            const auto* found = std::get_if<std::string>(&value);
            return found != nullptr && std::find(words.begin(), words.end(), *found) != words.end();
          }};
}

Rule node_name() {
  return {"at most " + std::to_string(kMaxNodeName) + " letters, digits and . _ -", [](const Value& value) {
            const auto* found = std::get_if<std::string>(&value);
            return found != nullptr && found->size() <= kMaxNodeName &&
                   std::all_of(found->begin(), found->end(), [](unsigned char c) {
                     return (c < 128 && std::isalnum(c) != 0) || c == '.' || c == '_' || c == '-';
                   });
          }};
}

Rule file_mode() {
  return {"permission bits in octal, from \"0600\" to \"0777\"", [](const Value& value) {
            const auto* found = std::get_if<std::string>(&value);
            if (found == nullptr || found->size() < 3 || found->size() > 4) return false;
            if (found->size() == 4 && found->front() != '0') return false;
            return found->find_first_not_of("01234567") == std::string::npos &&
                   found->substr(found->size() - 3).front() >= '6';
          }};
}

Rule host_port() {
  return {"\"host:port\"", [](const Value& value) {
            const auto* found = std::get_if<std::string>(&value);
            return found != nullptr && is_host_port(*found);
          }};
}

Rule peer_address() {
  return {"\"host:port\" with a port from 1 to 65535", [](const Value& value) {
            const auto* found = std::get_if<std::string>(&value);
            return found != nullptr && (found->empty() || is_peer_address(*found));
          }};
}

Rule peer_address_list() {
  return {"a list of \"host:port\" with ports from 1 to 65535", [](const Value& value) {
            const auto* found = std::get_if<std::vector<std::string>>(&value);
            return found != nullptr && std::all_of(found->begin(), found->end(), is_peer_address);
          }};
}

Rule cpu_list() {
  return {"a list of CPU numbers from 0 to 4095", [](const Value& value) {
            const auto* found = std::get_if<std::vector<std::int64_t>>(&value);
            return found != nullptr && std::all_of(found->begin(), found->end(),
                                                   [](std::int64_t cpu) { return cpu >= 0 && cpu <= 4095; });
          }};
}

Rule port_list() {
  const auto is_port = [](const std::string& text) {
    const std::size_t colon = text.find(':');
    const std::string device = text.substr(0, colon);
    const std::string port = colon == std::string::npos ? "1" : text.substr(colon + 1);
    return !device.empty() && device.find_first_of(" ,/") == std::string::npos && !port.empty() &&
           port.size() <= 3 && port.find_first_not_of("0123456789") == std::string::npos;
  };
  return {"a list of \"device\" or \"device:port\"", [is_port](const Value& value) {
            const auto* found = std::get_if<std::vector<std::string>>(&value);
            return found != nullptr && std::all_of(found->begin(), found->end(), is_port);
          }};
}

}  // namespace mkernel::config
