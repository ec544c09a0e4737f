#include "daemon/cluster/peer_hello.h"

#include <sys/random.h>

#include <algorithm>

#include "daemon/base/printable.h"
#include "daemon/cluster/peer_bus.h"
#include "daemon/cluster/peer_snapshot.h"
#include "proto/abi/version.h"

namespace mkernel::cluster {
namespace {

constexpr std::size_t kTokenBytes = 16;
/// Of a version, and of a host with its port: host names have at most 253 bytes.
constexpr std::size_t kMaxVersionBytes = 64, kMaxAddressBytes = 280;
/// Of a rail: RDMA transports list their ports there, 64 of them at most.
constexpr std::size_t kMaxEndpointBytes = std::size_t{64} * 72;
/// A Start, which has to fit one message, carries the tokens of several hellos.
constexpr std::size_t kMaxTokenBytes = 64;
static_assert(kTokenBytes <= kMaxTokenBytes);

/// The kind of all rails, or two of the kinds.
std::string kind_of(const v1::Hello& hello) {
  if (hello.endpoints_size() == 0) return "none";
  const std::string& first = hello.endpoints(0).kind();
  for (const v1::Endpoint& endpoint : hello.endpoints()) {
    if (endpoint.kind() != first) return first + " and " + endpoint.kind();
  }
  return first;
}

Status check_texts(const v1::Hello& hello) {
  const auto check = [](const char* what, const std::string& text, std::size_t limit) -> Status {
    if (base::is_printable(text) && text.size() <= limit) return {};
    return violation(std::string("hello with a ") + what + " of " + std::to_string(text.size()) +
                     " bytes, allowed are " + std::to_string(limit) + " of printable ASCII");
  };
  MK_RETURN_IF_ERROR(check("node name", hello.node(), abi::kNameBytes - 1));
  MK_RETURN_IF_ERROR(check("address", hello.address(), kMaxAddressBytes));
  MK_RETURN_IF_ERROR(check("software version", hello.software_version(), kMaxVersionBytes));
  for (const v1::Endpoint& endpoint : hello.endpoints()) {
    MK_RETURN_IF_ERROR(check("kind of rail", endpoint.kind(), kMaxVersionBytes));
    MK_RETURN_IF_ERROR(check("address of a rail", endpoint.address(), kMaxEndpointBytes));
  }
  if (const std::size_t bytes = hello.token().size(); bytes > kMaxTokenBytes) {
    return violation("hello with a token of " + std::to_string(bytes) + " bytes, allowed are " +
                     std::to_string(kMaxTokenBytes));
  }
  if (!hello.node().empty() && hello.boot_id() != 0 && !hello.address().empty()) return {};
  return violation("hello of node \"" + hello.node() + "\" without a name, boot id or address");
}

Status check_rails(const v1::Hello& hello, const PeerLinksOptions& options, const std::string& who) {
  const auto count = static_cast<std::size_t>(hello.endpoints_size());
  const auto& rails = hello.endpoints();
  const auto find_other = [&](auto is_other) { return std::find_if(rails.begin(), rails.end(), is_other); };
  const auto kind =
      find_other([&](const v1::Endpoint& endpoint) { return endpoint.kind() != options.transport; });
  if (count != options.endpoints.size() || kind != rails.end()) {
    return {StatusCode::kFailedPrecondition,
            who + " has rails " + rails_of(hello) + ", node " + options.node + " has " +
                rails_text(options.endpoints.size(), options.transport) + ": all nodes need the same"};
  }
  const auto version =
      find_other([&](const v1::Endpoint& endpoint) { return endpoint.version() != options.rail_version; });
  if (version == rails.end()) return {};
  return {StatusCode::kFailedPrecondition,
          who + " speaks version " + std::to_string(version->version()) + " between its " +
              options.transport + " rails, node " + options.node + " version " +
              std::to_string(options.rail_version) + ": all nodes need the same"};
}

}  // namespace

std::string random_token() {
  std::string token(kTokenBytes, 0);
  // Up to 256 bytes come at once and whole.
  while (::getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size())) {
  }
  return token;
}

v1::Hello answering_hello(const PeerLinksOptions& options, const std::string& address) {
  v1::Hello hello;
  hello.set_node(options.node);
  hello.set_boot_id(options.boot_id);
  hello.set_abi_version(abi::kVersion);
  hello.set_groups_version(kGroupsVersion);
  hello.set_software_version(options.software_version);
  hello.set_address(address);
  for (std::size_t rail = 0; rail < options.endpoints.size(); ++rail) {
    v1::Endpoint& endpoint = *hello.add_endpoints();
    endpoint.set_kind(options.transport);
    endpoint.set_version(options.rail_version);
  }
  return hello;
}

v1::Hello dialling_hello(const PeerLinksOptions& options, const std::string& address,
                         const std::string& token) {
  v1::Hello hello = answering_hello(options, address);
  for (int rail = 0; rail < hello.endpoints_size(); ++rail) {
    hello.mutable_endpoints(rail)->set_address(options.endpoints[static_cast<std::size_t>(rail)]);
  }
  hello.set_token(token);
  return hello;
}

Status check_hello(const v1::Hello& hello, const PeerLinksOptions& options, const std::string& address) {
  MK_RETURN_IF_ERROR(check_texts(hello));
  const std::string who = "node " + hello.node() + " at " + hello.address();
  if (hello.abi_version() != abi::kVersion) {
    return {StatusCode::kFailedPrecondition, who + " has ABI version " + std::to_string(hello.abi_version()) +
                                                 ", node " + options.node + " has " +
                                                 std::to_string(abi::kVersion)};
  }
  if (hello.groups_version() != kGroupsVersion) {
    return {StatusCode::kFailedPrecondition,
            who + " speaks version " + std::to_string(hello.groups_version()) + " about groups, node " +
                options.node + " version " + std::to_string(kGroupsVersion) + ": all nodes need the same"};
  }
  if (hello.node() == options.node) {
    return {StatusCode::kAlreadyExists,
            who + " has the name of the node at " + address + ": names must differ"};
  }
  if (options.certified && hello.node() == options.shared_name) {
    return {StatusCode::kPermissionDenied, who +
                                               " has the name that every node's certificate carries "
                                               "(peers.tls.server_name): it could be any node"};
  }
  return check_rails(hello, options, who);
}

Status check_identity(const v1::Hello& hello, const RemoteEnd& end) {
  const std::string who = "node " + hello.node() + " at " + hello.address();
  if (!end.trust.ok()) return end.trust.with_context(who);
  if (!end.certified || std::find(end.names.begin(), end.names.end(), hello.node()) != end.names.end())
    return {};
  std::string names;
  for (const std::string& name : end.names) names += (names.empty() ? "" : ", ") + base::one_line(name);
  return {StatusCode::kPermissionDenied,
          who + " shows the certificate of " + names +
              ": the node's name must be its common name or one of its alternative names"};
}

std::string dialable(const std::string& address, const std::string& seen_host) {
  const auto colon = address.rfind(':');
  const std::string host = address.substr(0, colon);
  const bool wildcard = host == "0.0.0.0" || host == "[::]" || host.empty();
  return wildcard && !seen_host.empty() && colon != std::string::npos ? seen_host + address.substr(colon)
                                                                      : address;
}

std::string rails_of(const v1::Hello& hello) {
  return rails_text(static_cast<std::size_t>(hello.endpoints_size()), kind_of(hello));
}

}  // namespace mkernel::cluster
