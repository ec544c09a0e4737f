#include "daemon/config/check.h"

#include <sys/un.h>

#include <algorithm>

#include "daemon/config/rules.h"

namespace mkernel::config {
namespace {

/// sun_path with its terminating zero.
constexpr std::size_t kMaxSocketPath = sizeof(sockaddr_un::sun_path) - 1;

int line_of(const Config& config, const std::string& key) {
  const auto found = config.lines.find(key);
  return found == config.lines.end() ? 0 : found->second;
}

void check_socket(const Config& config, const std::string& key, const std::string& path, Mistakes& mistakes) {
  if (path.size() <= kMaxSocketPath) return;
  mistakes.add(line_of(config, key), key + " = \"" + path + "\"",
               std::to_string(path.size()) + " bytes; a Unix socket's path has at most " +
                   std::to_string(kMaxSocketPath));
}

void check_plain_text(const Config& config, Mistakes& mistakes) {
  if (config.peers.tls.enabled() || config.peers.insecure) return;
  const auto check = [&](const std::string& key, const std::string& address) {
    std::string host;
    std::uint16_t port = 0;
    if (address.empty() || !split_host_port(address, host, port) || is_loopback(host)) return;
    mistakes.add(line_of(config, key), key + " = \"" + address + "\"",
                 "plain text outside loopback: set [peers.tls] cert, key and ca, or insecure = true");
  };
  check("peers.listen", config.peers.listen);
  check("peers.dns", config.peers.dns);
  for (const std::string& address : config.peers.list) check("peers.list", address);
}

void check_clear_payload(const Config& config, Mistakes& mistakes) {
  const Tcp& tcp = config.transport.tcp;
  if (config.transport.kind != "tcp" || tcp.insecure || is_loopback(tcp.bind)) return;
  mistakes.add(line_of(config, "transport.tcp.bind"), "transport.tcp.bind = \"" + tcp.bind + "\"",
               "puts would leave loopback in clear text, with or without TLS on the peer links: set "
               "transport.tcp.insecure = true if the network is trusted with them");
}

void check_tls(const Config& config, Mistakes& mistakes) {
  const Tls& tls = config.peers.tls;
  const std::pair<const char*, const std::string*> parts[] = {
      {"peers.tls.cert", &tls.cert}, {"peers.tls.key", &tls.key}, {"peers.tls.ca", &tls.ca}};
  if (tls.enabled() && !tls.server_name.empty() && config.node.name == tls.server_name) {
    mistakes.add(
        line_of(config, "node.name"), "node.name = \"" + config.node.name + "\"",
        "is peers.tls.server_name, which every node's certificate carries: any node could take this name");
  }
  const auto given =
      std::count_if(std::begin(parts), std::end(parts), [](auto& part) { return !part.second->empty(); });
  if (given == 0 || given == 3) return;
  for (const auto& [key, value] : parts) {
    if (value->empty()) mistakes.add(line_of(config, key), key, "missing: cert, key and ca come together");
  }
}

void check_rails(const Config& config, Mistakes& mistakes) {
  const Proxy& proxy = config.proxy;
  if (!proxy.cpus.empty() && proxy.cpus.size() != proxy.threads) {
    mistakes.add(line_of(config, "proxy.cpus"), "proxy.cpus",
                 std::to_string(proxy.cpus.size()) + " CPUs for " + std::to_string(proxy.threads) +
                     " proxy threads: give one each, or none");
  }
  const std::uint32_t port = config.transport.tcp.port;
  if (port != 0 && port + proxy.threads - 1 > 65535) {
    mistakes.add(line_of(config, "transport.tcp.port"), "transport.tcp.port = " + std::to_string(port),
                 "rail " + std::to_string(proxy.threads - 1) + " would listen above port 65535");
  }
}

}  // namespace

void Mistakes::add(int line, const std::string& key, const std::string& what) {
  const std::string place = line == 0 ? path_ : path_ + ":" + std::to_string(line);
  mistakes_.push_back({line, place + ": " + key + ": " + what});
}

Status Mistakes::status() const {
  if (mistakes_.empty()) return {};
  std::vector<Mistake> sorted = mistakes_;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Mistake& a, const Mistake& b) { return a.line < b.line; });
  std::string text;
  for (const Mistake& mistake : sorted) text += (text.empty() ? "" : "\n") + mistake.text;
  return {StatusCode::kInvalidArgument, text};
}

void check_together(const Config& config, Mistakes& mistakes) {
  check_socket(config, "node.socket", config.node.socket, mistakes);
  check_socket(config, "control.socket", config.control.socket, mistakes);
  if (config.node.socket == config.control.socket) {
    mistakes.add(line_of(config, "control.socket"), "control.socket = \"" + config.control.socket + "\"",
                 "is node.socket as well");
  }
  if (!config.peers.list.empty() && !config.peers.dns.empty()) {
    mistakes.add(line_of(config, "peers.dns"), "peers.dns", "peers.list is set too: give one of the two");
  }
  check_tls(config, mistakes);
  check_plain_text(config, mistakes);
  check_clear_payload(config, mistakes);
  check_rails(config, mistakes);
}

}  // namespace mkernel::config
