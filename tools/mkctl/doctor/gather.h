// Gathers the facts that `mkctl doctor` judges.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "tools/mkctl/connection.h"
#include "tools/mkctl/doctor/facts.h"

namespace mkernel::mkctl::doctor {

/// Of the daemon behind the connection, or that there is none, and of this machine. Never fails: what cannot
/// be read is missing from the facts.
Facts gather(Connection& connection);

/// The machine's part. `root` is "/" but for tests; facts.daemon says whose process to look at.
void gather_machine(const std::filesystem::path& root, Facts& facts);

/// Limits of a process, if it is a mkerneld.
std::optional<Limits> limits_of(const std::filesystem::path& root, std::int64_t pid);

/// The ids that the namespace of a process maps, if it is a mkerneld and has a map.
std::optional<MappedIds> ids_of(const std::filesystem::path& root, std::int64_t pid);

/// Peers, and what peers are told of this node, as ListPeers replies them.
void read_peers(const nlohmann::ordered_json& reply, Facts& facts);

/// What the daemon makes of the node's ports, as GetTopology replies it.
void read_topology(const nlohmann::ordered_json& topology, Daemon& daemon);

/// Ports as ListDevices replies them.
std::vector<Port> ports_of(const nlohmann::ordered_json& devices);

/// The same from a file that `mkctl devices --json` wrote. Errors: kInvalidArgument naming the file.
Result<std::vector<Port>> read_ports(const std::string& file);

}  // namespace mkernel::mkctl::doctor
