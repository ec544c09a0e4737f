// The daemon's part: what it says over its control socket.
#include "tools/mkctl/doctor/gather.h"

#include <sys/timex.h>

#include <fstream>

namespace mkernel::mkctl::doctor {
namespace {

using Json = nlohmann::ordered_json;

/// `transport.kind` of the effective configuration; the status names the transports, one today.
void read_status(const Json& reply, Daemon& daemon) {
  daemon.node = reply.at("daemon").at("node");
  daemon.version = reply.at("daemon").at("version");
  daemon.pid = reply.at("daemon").at("pid");
  daemon.healthy = reply.at("status").at("healthy");
  daemon.reasons = reply.at("status").at("reasons").get<std::vector<std::string>>();
  if (!reply.at("status").at("transports").empty())
    daemon.transport = reply.at("status").at("transports").at(0);
}

std::vector<RailPort> rail_ports_of(const Json& rows) {
  std::vector<RailPort> ports;
  for (const Json& row : rows)
    ports.push_back({row.at("rail"), row.at("name"), row.at("state"), row.at("link_layer"),
                     row.at("gid_type"), row.at("mtu"), row.at("gbps"), row.at("gid")});
  return ports;
}

Peer peer_of(const Json& row) {
  const std::string node = row.at("node"), address = row.at("address");
  Peer peer{node.empty() ? address : node, row.at("version"), row.at("state"), row.at("reason")};
  peer.transport = row.at("transport");
  peer.rail_ports = rail_ports_of(row.at("ports"));
  for (const Json& rail : row.at("rails"))
    if (!rail.at("connected")) peer.unanswered.emplace_back(rail.at("rail"), rail.at("waiting_seconds"));
  if (!row.at("clock_offset_ms").is_null())
    peer.clock = ClockOffset{row.at("clock_offset_ms"), row.at("round_trip_ms")};
  return peer;
}

}  // namespace

void read_peers(const Json& reply, Facts& facts) {
  facts.rails = reply.at("transport");
  facts.rail_ports = rail_ports_of(reply.at("ports"));
  for (const Json& row : reply.at("peers")) facts.peers.push_back(peer_of(row));
}

void read_topology(const Json& topology, Daemon& daemon) {
  daemon.absent_nics = topology.at("absent").get<std::vector<std::string>>();
  daemon.nic_rails = topology.at("rails");
  for (const Json& port : topology.at("ports")) {
    const bool idle = daemon.nic_rails > 0 && port.at("rail").get<std::int64_t>() >= daemon.nic_rails;
    if (idle) daemon.idle_ports.push_back(port.at("name"));
  }
}

std::vector<Port> ports_of(const Json& devices) {
  std::vector<Port> ports;
  for (const Json& row : devices)
    ports.push_back({row.at("device").get<std::string>() + ":" + row.at("port").dump(), row.at("driver"),
                     row.at("link_layer"), row.at("gid"), row.at("gid_type"), row.at("not_usable"),
                     row.at("mtu"), row.at("dma_buf")});
  return ports;
}

Result<std::vector<Port>> read_ports(const std::string& file) {
  std::ifstream in(file);
  const Json reply = Json::parse(in, nullptr, false);
  if (reply.is_object() && reply.contains("devices")) {
    try {
      return ports_of(reply.at("devices"));
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
    if (auto peers = connection.peers(); peers.ok()) read_peers(peers.value(), facts);
    if (auto users = connection.users(); users.ok()) {
      const Json& node = users.value().at("node");
      facts.budget = SessionBudget{node.at("fds_limit"), node.at("mappings_limit"), node.at("user_fds"),
                                   node.at("user_regions")};
    }
    if (auto devices = connection.devices(); devices.ok())
      facts.ports = ports_of(devices.value().at("devices"));
    if (auto topology = connection.topology(); topology.ok())
      read_topology(topology.value().at("topology"), facts.daemon);
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
