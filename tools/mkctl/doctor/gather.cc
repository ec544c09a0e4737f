// The daemon's part: what it says over its control socket.
#include "tools/mkctl/doctor/gather.h"

#include <sys/timex.h>

namespace mkernel::mkctl::doctor {
namespace {

using Json = nlohmann::ordered_json;
using Stub = v1::Control::Stub;

/// `transport.kind` of the effective configuration; the status names the transports, one today.
void read_status(const Json& reply, Daemon& daemon) {
  daemon.node = reply["daemon"]["node"];
  daemon.version = reply["daemon"]["version"];
  daemon.pid = reply["daemon"]["pid"];
  daemon.healthy = reply["status"]["healthy"];
  daemon.reasons = reply["status"]["reasons"].get<std::vector<std::string>>();
  if (!reply["status"]["transports"].empty()) daemon.transport = reply["status"]["transports"][0];
}

std::vector<Peer> peers_of(const Json& rows) {
  std::vector<Peer> peers;
  for (const Json& row : rows) {
    const std::string node = row["node"], address = row["address"];
    peers.push_back({node.empty() ? address : node, row["version"], row["state"], row["reason"]});
  }
  return peers;
}

}  // namespace

std::vector<Port> ports_of(const Json& devices) {
  std::vector<Port> ports;
  for (const Json& row : devices)
    ports.push_back({row["device"].get<std::string>() + ":" + row["port"].dump(), row["driver"],
                     row["link_layer"], row["gid"], row["gid_type"], row["not_usable"]});
  return ports;
}

Facts gather(Connection& connection) {
  Facts facts;
  facts.mkctl_version = MKERNEL_VERSION;
  facts.daemon.socket = connection.socket();
  auto status = connection.call(&Stub::GetStatus, v1::StatusRequest());
  if (status.ok()) {
    read_status(status.value(), facts.daemon);
    if (auto peers = connection.call(&Stub::ListPeers, v1::PeersRequest()); peers.ok())
      facts.peers = peers_of(peers.value()["peers"]);
    if (auto devices = connection.call(&Stub::ListDevices, v1::DevicesRequest()); devices.ok())
      facts.ports = ports_of(devices.value()["devices"]);
    if (auto topology = connection.call(&Stub::GetTopology, v1::TopologyRequest()); topology.ok())
      facts.daemon.absent_nics = topology.value()["topology"]["absent"].get<std::vector<std::string>>();
  } else {
    facts.daemon.unreachable = status.status().text();
  }
  gather_machine("/", facts);
  timex clock{};
  const int state = ::adjtimex(&clock);
  if (state >= 0) facts.clock_synchronised = state != TIME_ERROR;
  return facts;
}

}  // namespace mkernel::mkctl::doctor
