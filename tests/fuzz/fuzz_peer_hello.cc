// The hello of a daemon that nobody knows yet. What is accepted can go into texts, tables and messages as it
// is, and names a node that the other end may speak for; what is refused is refused in one bounded line that
// is true.
//
// Three bytes choose this node's rails, the other end of the stream, and how far the hello is brought near
// what passes; the rest is a serialised v1::Hello.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "daemon/base/printable.h"
#include "daemon/cluster/peer.h"
#include "daemon/cluster/peer_hello.h"
#include "daemon/cluster/peer_snapshot.h"
#include "daemon/config/rules.h"
#include "proto/abi/version.h"

namespace {

using namespace mkernel;
using namespace mkernel::cluster;

constexpr const char* kAddress = "10.0.0.1:7600";  // where this node is dialled
constexpr std::size_t kMostText = 1024;            // bytes of a refusal, with what it quotes of the hello
constexpr std::size_t kMostHello = 32 * 1024;      // bytes of what is kept of a hello, three rails among it
constexpr std::size_t kMostToken = 64;             // sixteen of them travel in one Start

void require(bool condition) {
  if (!condition) std::abort();
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void require_text(const std::string& text, std::size_t most) {
  require(!text.empty() && text.size() <= most && base::is_printable(text));
}

PeerLinksOptions options_of(std::uint8_t chosen) {
  PeerLinksOptions options;
  options.node = "a";
  options.boot_id = 1;
  options.transport = "tcp";
  options.endpoints.resize(1 + chosen % 3, "a:1");
  options.rail_version = chosen >> 4;
  return options;
}

/// A certificate may have the node's name, or names that are nearly it.
RemoteEnd end_of(std::uint8_t chosen, const std::string& node) {
  RemoteEnd end;
  const char* hosts[] = {"", "10.0.0.7", "[fd00::7]", "127.0.0.1"};
  end.host = hosts[chosen & 3];
  end.certified = (chosen & 4) != 0;
  if ((chosen & 8) != 0) end.names.insert(end.names.end(), {node + "x", "x" + node, "host\x1b[2J\n"});
  if ((chosen & 16) != 0 && !node.empty()) end.names.push_back(node.substr(1));
  if ((chosen & 32) != 0) end.names.push_back(node);
  if ((chosen & 64) != 0) end.trust = {StatusCode::kPermissionDenied, "user 1001 holds the other end"};
  return end;
}

/// The first fields that are looked at made right, so that the deeper checks are reached often.
void steer(v1::Hello& hello, std::uint8_t chosen, const PeerLinksOptions& options) {
  if ((chosen & 1) != 0) hello.set_abi_version(abi::kVersion), hello.set_groups_version(kGroupsVersion);
  if ((chosen & 2) != 0 && hello.boot_id() == 0) hello.set_boot_id(2);
  if ((chosen & 4) != 0) {
    while (hello.endpoints_size() > static_cast<int>(options.endpoints.size()))
      hello.mutable_endpoints()->RemoveLast();
    while (hello.endpoints_size() < static_cast<int>(options.endpoints.size())) hello.add_endpoints();
  }
  for (v1::Endpoint& endpoint : *hello.mutable_endpoints()) {
    if ((chosen & 8) != 0) endpoint.set_kind(options.transport);
    if ((chosen & 16) != 0) endpoint.set_version(options.rail_version);
  }
}

/// Of two sides that a refusal compares the texts differ.
void check_differing(const v1::Hello& hello, const PeerLinksOptions& options, const Status& refused) {
  const auto same_kind = [&](const auto& endpoint) { return endpoint.kind() == options.transport; };
  const auto& theirs = hello.endpoints();
  const bool same = static_cast<std::size_t>(theirs.size()) == options.endpoints.size() &&
                    std::all_of(theirs.begin(), theirs.end(), same_kind);
  require(same == (rails_of(hello) == rails_text(options.endpoints.size(), options.transport)));
  if (!same || hello.abi_version() != abi::kVersion || hello.groups_version() != kGroupsVersion) return;
  require(std::any_of(theirs.begin(), theirs.end(), [&](const auto& endpoint) {
    return endpoint.version() != options.rail_version &&
           contains(refused.text(), "speaks version " + std::to_string(endpoint.version()) + " between");
  }));
}

void check_refused(const v1::Hello& hello, const PeerLinksOptions& options, const Status& refused) {
  require_text(refused.text(), kMostText);
  if (refused.code() == StatusCode::kInvalidArgument) return;
  require(contains(refused.text(), "node " + hello.node() + " at " + hello.address()));
  if (refused.code() == StatusCode::kFailedPrecondition) {
    check_differing(hello, options, refused);
    require_text(rails_of(hello), kMostText);  // mkctl shows it
  } else {
    require(refused.code() == StatusCode::kAlreadyExists && hello.node() == options.node);
  }
}

void check_accepted(const v1::Hello& hello, const PeerLinksOptions& options, const std::string& address) {
  require_text(hello.node(), abi::kNameBytes - 1);
  require(hello.node() != options.node && hello.boot_id() != 0 && hello.abi_version() == abi::kVersion);
  require(hello.groups_version() == kGroupsVersion);
  require_text(address, kMostText);
  require(base::is_printable(hello.software_version()) && hello.token().size() <= kMostToken);
  require(rails_of(hello) == rails_text(options.endpoints.size(), options.transport));
  PeerRecord record(1, hello, address, 1, {});
  record.set_rails(hello);
  require_text(record.describe(), kMostText);
  require(record.info().rails.size() == options.endpoints.size());
  std::size_t kept = hello.node().size() + address.size() + hello.software_version().size();
  for (const transport::PeerAddress& rail : record.info().rails) {
    require(base::is_printable(rail.endpoint) && rail.identity.node == hello.node());
    kept += rail.endpoint.size();
  }
  require(kept <= kMostHello);
}

void check_end(const v1::Hello& hello, const RemoteEnd& end, bool fits) {
  const bool named = std::find(end.names.begin(), end.names.end(), hello.node()) != end.names.end();
  const Status identity = check_identity(hello, end);
  require(identity.ok() == (end.trust.ok() && (!end.certified || named)));
  if (identity.ok() || !fits) return;
  require(identity.code() == StatusCode::kPermissionDenied && contains(identity.text(), hello.node()));
  require_text(identity.text(), kMostText);
}

/// The address as it was said, or the seen host in place of one that stands for all.
void check_dialable(const std::string& said, const std::string& seen, const std::string& address) {
  const auto colon = said.rfind(':');
  const std::string host = said.substr(0, colon);
  if (host == "0.0.0.0" || host == "[::]" || host.empty()) {
    require(address == said || (colon != std::string::npos && address == seen + said.substr(colon)));
  } else {
    require(address == said);
  }
  std::string name;
  std::uint16_t port = 0;
  if (!config::split_host_port(address, name, port)) return;
  require(!name.empty() && contains(address, name) && address.back() != ':');
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kChoices = 3;
  v1::Hello hello;
  if (size < kChoices ||
      !hello.ParseFromString(std::string(reinterpret_cast<const char*>(data) + kChoices, size - kChoices)))
    return 0;
  const PeerLinksOptions options = options_of(data[0]);
  steer(hello, data[2], options);
  const RemoteEnd end = end_of(data[1], hello.node());
  const std::string address = dialable(hello.address(), end.host);
  check_dialable(hello.address(), end.host, address);
  const Status fits = check_hello(hello, options, kAddress);
  fits.ok() ? check_accepted(hello, options, address) : check_refused(hello, options, fits);
  check_end(hello, end, fits.ok());
  return 0;
}
