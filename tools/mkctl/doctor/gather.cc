// The daemon's part: what it says over its control socket.
#include "tools/mkctl/doctor/gather.h"

#include <sys/timex.h>

#include <fstream>

namespace mkernel::mkctl::doctor {
namespace {

using Json = nlohmann::ordered_json;

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
                     row["link_layer"], row["gid"], row["gid_type"], row["not_usable"], row["mtu"],
                     row["dma_buf"]});
  return ports;
}

Result<std::vector<Port>> read_ports(const std::string& file) {
  std::ifstream in(file);
  const Json reply = Json::parse(in, nullptr, false);
  if (reply.is_object() && reply.contains("devices")) {
    try {
      return ports_of(reply["devices"]);
    } catch (const Json::exception&) {  // fields missing, or of another type
    }
  }
  return Status(StatusCode::kInvalidArgument, file + " is not what `mkctl devices --json` writes");
}

Facts gather(Connection& connection) {
  Facts facts;
  facts.mkctl_version = MKERNEL_VERSION;
  facts.daemon.socket = connection.socket();
  auto status = connection.status();
  if (status.ok()) {
    read_status(status.value(), facts.daemon);
    if (auto peers = connection.peers(); peers.ok()) facts.peers = peers_of(peers.value()["peers"]);
    if (auto devices = connection.devices(); devices.ok()) facts.ports = ports_of(devices.value()["devices"]);
    if (auto topology = connection.topology(); topology.ok())
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
