// What `mkctl doctor` knows of a node before it judges. Gathered by gather.h, judged by checks.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/base/id_map.h"

namespace mkernel::mkctl::doctor {

inline constexpr std::uint64_t kUnlimited = UINT64_MAX;

struct Daemon {
  std::string socket;
  std::string
      unreachable;  ///< why nobody answered, with the socket; empty: what follows is the daemon's word
  std::string node;
  std::string version;
  std::int64_t pid = 0;
  bool healthy = true;
  std::vector<std::string> reasons;      ///< why it is not
  std::string transport;                 ///< "tcp", "emulated", "verbs", "efa"
  std::vector<std::string> absent_nics;  ///< of topology.nics
  std::uint32_t nic_rails = 0;           ///< that it runs over ports of this node
  std::vector<std::string> idle_ports;   ///< that would be rails if it ran more

  bool reached() const { return unreachable.empty(); }
  bool rdma() const { return transport == "verbs" || transport == "efa"; }
};

/// Of the daemon's process; nothing where its /proc cannot be read (another PID namespace, no such process).
struct Limits {
  std::uint64_t locked_bytes = 0;  ///< soft limit
  std::uint64_t open_files = 0;
  bool may_lock_anyway = false;  ///< CAP_IPC_LOCK
};

/// What the daemon has for all sessions together, and what it allows one user.
struct SessionBudget {
  std::uint64_t fds = 0, mappings = 0;
  std::uint64_t user_fds = 0, user_regions = 0;
};

/// The port that a rail uses first, as the daemon of its node says.
struct RailPort {
  std::uint32_t rail = 0;
  std::string name;   ///< "mlx5_0:1"
  std::string state;  ///< ACTIVE, DOWN, ..., absent
  std::string link_layer;
  std::string gid_type;
  std::uint32_t mtu = 0;  ///< bytes; 0 = unknown
  double gbps = 0;        ///< 0 = unknown
  std::string gid = {};   ///< the one that the rail uses
};

/// What a peer's clock is ahead by, to within half of the round trip.
struct ClockOffset {
  double offset_ms = 0;
  double round_trip_ms = 0;
};

struct Peer {
  std::string name;  ///< node, or its address while that is all there is
  std::string version;
  std::string state;  ///< connecting, alive, warn, error, dead
  std::string reason;
  std::string transport = {};             ///< "2 x tcp"; empty: it has not said
  std::vector<RailPort> rail_ports = {};  ///< none without NICs, or of an older daemon
  std::vector<std::pair<std::uint32_t, double>> unanswered = {};  ///< rails, for so many seconds
  std::optional<ClockOffset> clock = {};
};

/// A port of an RDMA device, as the daemon sees it, or as this process does when there is no daemon.
struct Port {
  std::string name;  ///< "mlx5_0:1"
  std::string driver;
  std::string link_layer;
  std::string gid;       ///< the one to use
  std::string gid_type;  ///< "RoCE v2", ...
  std::string not_usable;
  std::uint32_t mtu = 0;  ///< bytes; 0 = unknown
  std::string dma_buf;    ///< "yes", "no", "unknown: why"
};

struct Bridge {
  std::string address;
  std::optional<bool> redirects;  ///< by ACS; nothing when its configuration space cannot be read that far
};

struct HugePages {
  std::uint64_t total = 0;
  std::uint64_t free = 0;
};

/// How many ids the user namespace of the daemon's process maps.
struct MappedIds {
  base::IdMap users, groups;
};

struct Facts {
  std::string mkctl_version;
  Daemon daemon;
  std::optional<Limits> limits;
  std::optional<MappedIds> ids;
  std::optional<SessionBudget> budget;  ///< nothing of a daemon that does not say
  std::vector<Peer> peers;
  std::vector<std::string> daemons;  ///< "pid 4711: mkerneld --config a.toml", every one that runs here
  std::string rails;                 ///< of this node, as Peer::transport
  std::vector<RailPort> rail_ports;  ///< of this node, as its peers are told
  std::vector<Port> ports;
  std::vector<Port> other_ports;        ///< of another node, to compare with; empty: none given
  bool infiniband_folder = false;       ///< /dev/infiniband is there
  std::uint32_t gpus = 0;               ///< NVIDIA, on PCI
  std::string gpu_driver;               ///< first line of /proc/driver/nvidia/version; empty: not loaded
  bool peermem = false;                 ///< module nvidia_peermem
  std::string kernel;                   ///< "6.1.0-18-amd64"
  std::vector<Bridge> bridges;          ///< PCI bridges above GPUs and RDMA devices
  std::optional<HugePages> huge_pages;  ///< of 2 MiB
  std::optional<bool> clock_synchronised;

  /// EFA is used here, or could be.
  bool efa() const {
    return daemon.transport == "efa" ||
           std::any_of(ports.begin(), ports.end(), [](const Port& port) { return port.driver == "efa"; });
  }
};

}  // namespace mkernel::mkctl::doctor
