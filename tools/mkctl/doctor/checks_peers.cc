// The other end: what peers say of their rails, ports and clocks, beside this node's.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>

#include "tools/mkctl/doctor/checks.h"
#include "tools/mkctl/doctor/joined.h"

namespace mkernel::mkctl::doctor {
namespace {

/// A rail that has no connection for longer than this is not just starting.
constexpr double kPatienceSeconds = 3;
/// Clocks that are kept by NTP are closer than this, in milliseconds.
constexpr double kClockLimitMs = 10;

std::string decimal(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f", value);
  return text;
}

/// A property of ports that both ends of a rail must share. `value`: empty when it is unknown.
struct Shared {
  const char* name;
  Severity severity;
  std::function<std::string(const RailPort&)> value;
  const char* why;
  const char* todo;
};

/// Of a RoCE address.
std::string family_of(const RailPort& port) {
  if (port.link_layer != "Ethernet" || port.gid.empty()) return "";
  return port.gid.rfind("::ffff:", 0) == 0 ? "IPv4" : "IPv6";
}

const std::vector<Shared>& shared() {
  static const std::vector<Shared> all = {
      {"link layer", Severity::kError, [](const RailPort& p) { return p.link_layer; },
       "no connection joins InfiniBand and Ethernet",
       "choose ports of one network on both nodes, in the same order, with topology.nics"},
      {"type of address", Severity::kError, [](const RailPort& p) { return p.gid_type; },
       "both ends of a connection need the same: RoCE v1 and v2 do not meet",
       "give every RoCE interface an IP address: RoCE v2 then is on both"},
      {"family of the address", Severity::kError, family_of,
       "packets of a connection are all IPv4 or all IPv6",
       "set the same transport.verbs.gid_family on both nodes, and give their RoCE interfaces such "
       "addresses"},
      {"MTU", Severity::kWarning,
       [](const RailPort& p) { return p.mtu == 0 ? "" : std::to_string(p.mtu) + " bytes"; },
       "a connection uses the smaller one, and large packets are lost where a switch carries less",
       "set the same MTU on both nodes and on the switches between (ip link set IFACE mtu 9000 gives RoCE "
       "4096)"},
      {"speed", Severity::kWarning,
       [](const RailPort& p) { return p.gbps == 0 ? "" : decimal(p.gbps) + " Gbit/s"; },
       "the rail is as fast as its slower end, and an operation as fast as its slowest rail",
       "ibstat or ethtool IFACE on both: a cable, a lane or a switch port that came up slower, or rails in "
       "another order"},
  };
  return all;
}

/// One finding for all rails that differ in it.
void compare(const Facts& facts, const Peer& peer, const Shared& property, Findings& findings) {
  std::vector<std::uint32_t> rails;
  std::string first;
  for (const RailPort& here : facts.rail_ports) {
    for (const RailPort& there : peer.rail_ports) {
      if (here.rail != there.rail) continue;
      const std::string ours = property.value(here), theirs = property.value(there);
      if (ours == theirs || ours.empty() || theirs.empty()) continue;
      if (first.empty()) first = here.name + " here has " + ours + ", " + there.name + " there " + theirs;
      rails.push_back(here.rail);
    }
  }
  if (rails.empty()) return;
  findings.push_back({property.severity,
                      std::string(property.name) + " of rail " + joined(rails) + " differs at peer " +
                          peer.name + ": " + first,
                      property.why, property.todo});
}

void find_down(const Peer& peer, Findings& findings) {
  for (const RailPort& port : peer.rail_ports) {
    if (port.state == "ACTIVE" || port.state.empty()) continue;
    findings.push_back({Severity::kWarning,
                        "port " + port.name + " of peer " + peer.name + ", its rail " +
                            std::to_string(port.rail) + ", is " + port.state,
                        "what goes over that rail takes another path, or waits",
                        "mkctl devices on " + peer.name + " says more; look at its cable and switch port"});
  }
}

/// Rails of an alive peer that have never connected, and how long that lasts.
std::vector<std::uint32_t> unanswered(const Peer& peer, double& seconds) {
  std::vector<std::uint32_t> rails;
  if (peer.state != "alive") return rails;
  for (const auto& [rail, waiting] : peer.unanswered) {
    if (waiting < kPatienceSeconds) continue;
    rails.push_back(rail);
    seconds = std::max(seconds, waiting);
  }
  return rails;
}

}  // namespace

Findings check_rails(const Facts& facts) {
  Findings findings;
  for (const Peer& peer : facts.peers) {
    if (!peer.transport.empty() && !facts.rails.empty() && peer.transport != facts.rails) {
      findings.push_back({Severity::kError,
                          "peer " + peer.name + " has rails " + peer.transport + ", this node " + facts.rails,
                          "nodes whose rails differ in number or kind refuse each other",
                          "set the same transport.kind and proxy.threads on both, and restart the daemons"});
      continue;
    }
    for (const Shared& property : shared()) compare(facts, peer, property, findings);
    find_down(peer, findings);
    if (facts.daemon.transport == "efa") continue;  // check_security_group()
    double seconds = 0;
    const auto rails = unanswered(peer, seconds);
    if (rails.empty()) continue;
    findings.push_back(
        {Severity::kError,
         "peer " + peer.name + " is alive, but its " + facts.daemon.transport +
             " transport has not been reached over rail " + joined(rails) + " for " + decimal(seconds) + " s",
         "the daemons hear each other over gRPC; the way of the data is another one",
         "look for a firewall between (TCP: transport.tcp.port and up; RoCE: UDP 4791), a VLAN or a "
         "cable; mkctl devices on both nodes"});
  }
  return findings;
}

Findings check_clock(const Facts& facts) {
  Findings findings;
  if (!facts.clock_synchronised) {
    findings.push_back({Severity::kInfo, "the kernel does not say whether the clock is synchronised",
                        "logs and timelines of several nodes are compared by it",
                        "look at the host: timedatectl"});
  } else if (!*facts.clock_synchronised) {
    findings.push_back(
        {Severity::kWarning, "the clock is not synchronised",
         "logs and timelines of several nodes cannot be compared, and TLS certificates may look expired",
         "run chrony or systemd-timesyncd; timedatectl shows the state"});
  }
  std::string apart;
  for (const Peer& peer : facts.peers) {
    if (!peer.clock || std::abs(peer.clock->offset_ms) <= peer.clock->round_trip_ms / 2 + kClockLimitMs)
      continue;
    apart += (apart.empty() ? "" : "; ") + peer.name + " is " + decimal(std::abs(peer.clock->offset_ms)) +
             " ms " + (peer.clock->offset_ms > 0 ? "ahead" : "behind") + " (within " +
             decimal(peer.clock->round_trip_ms / 2) + " ms, half the round trip)";
  }
  if (!apart.empty())
    findings.push_back(
        {Severity::kWarning,
         "clocks of peers differ from this node's by more than " + decimal(kClockLimitMs) + " ms: " + apart,
         "what happened first on which node cannot be told from their logs and timelines",
         "chronyc tracking on both; where every peer differs alike, this node's clock is the wrong one"});
  return findings;
}

Findings check_security_group(const Facts& facts) {
  if (!facts.efa()) return {};
  Findings findings;
  constexpr const char* kWhy =
      "a security group that does not allow its own members drops EFA's traffic without a word";
  constexpr const char* kTodo =
      "give the group a rule for all traffic to itself and one from itself, and put both nodes into it";
  for (const Peer& peer : facts.peers) {
    double seconds = 0;
    const auto rails = unanswered(peer, seconds);
    if (!rails.empty() && facts.daemon.transport == "efa") {
      findings.push_back({Severity::kError,
                          "peer " + peer.name +
                              " is alive over gRPC, but no EFA write to it has got through on rail " +
                              joined(rails) + " for " + decimal(seconds) +
                              " s: its security group is closed, or this node's",
                          kWhy, kTodo});
    } else if (peer.state != "alive") {
      findings.push_back({Severity::kWarning,
                          "peer " + peer.name + " is " + peer.state + " on a node with EFA" +
                              (peer.reason.empty() ? "" : ": " + peer.reason),
                          kWhy, kTodo});
    }
  }
  return findings;
}

}  // namespace mkernel::mkctl::doctor
