// The daemon's one typed configuration: every key of mkerneld.toml with its default. Parsed once at start and
// once per SIGHUP; everything else in the daemon gets the part it needs by value.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "daemon/config/users.h"
#include "proto/abi/status.h"
#include "proto/abi/version.h"

namespace mkernel::config {

struct Node {
  std::string name;  ///< what peers and mkctl call this node; host name when the file names none
  std::string runtime_dir = "/run/mkernel";
  std::string socket;  ///< session socket; runtime_dir/mkerneld.sock when the file names none
  std::string socket_mode = "0660";
  std::string socket_group;  ///< empty: the daemon's own group
  /// socket_mode as a number.
  std::uint32_t mode_bits() const;
};

struct Control {
  std::string socket;  ///< gRPC for mkctl; runtime_dir/control.sock when the file names none
};

struct Tls {
  std::string cert, key, ca;  ///< PEM files: all three or none
  std::string server_name;    ///< in every node's certificate; empty: the host that is dialled
  bool enabled() const { return !cert.empty(); }
};

struct Peers {
  std::string listen = "127.0.0.1:7600";
  std::string advertise;  ///< host:port that peers dial; `listen` with its real port when empty
  std::vector<std::string> list;
  std::string dns;
  std::chrono::seconds dns_refresh{10};
  double time_scale =
      1.0;            ///< multiplies the times after which a silent peer is warned about, an error, dead
  bool open = false;  ///< daemons that nobody has configured here may come in, without TLS too
  bool insecure = false;
  Tls tls;
};

struct Tcp {
  std::string bind = "127.0.0.1";
  std::uint16_t port = 0;  ///< of the first rail; rail r listens on port + r. 0: any free ports
  bool insecure = false;   ///< `bind` may be outside loopback although the payload is clear
  std::string advertise;   ///< host that peers dial; `bind` when empty
  std::uint32_t connections_per_peer = 2;
  std::string zero_copy = "auto";
  std::uint64_t zero_copy_bytes = 256 * 1024;
  std::uint64_t socket_buffer_bytes = 0;  ///< 0: the kernel's own tuning
  std::uint32_t window = 1024;            ///< puts of one channel in flight
};

struct Emulated {
  double bandwidth_gbytes = 0;  ///< 0: unlimited
  std::chrono::microseconds latency{0};
  double drop = 0, duplicate = 0, reorder = 0;
  std::uint64_t seed = 1;
  bool operator==(const Emulated&) const = default;
};

/// RDMA over reliable connections. Which ports: topology.nics.
struct Verbs {
  std::string gid_family = "ipv4";
  std::uint32_t paths = 2;         ///< ports of one rail: its own and those that take over
  std::uint32_t qps_per_peer = 2;  ///< for each direction and rail
  std::uint32_t send_queue = 1024;
  std::uint32_t window = 1024;  ///< puts of one channel in flight
  std::uint32_t max_inline = 64;
  std::uint32_t timeout = 14;
  std::uint32_t retry_count = 6;
  std::uint32_t traffic_class = 0;
  std::uint32_t service_level = 0;
};

/// RDMA over AWS EFA. Which devices: topology.nics.
struct Efa {
  std::uint32_t paths = 2;      ///< devices of one rail: its own and those that take over
  std::uint32_t window = 1024;  ///< puts of one channel in flight
  std::uint32_t credit = 4096;  ///< puts of one peer that may arrive and wait
  std::uint32_t send_queue = 0;
  std::uint32_t service_level = 8;
};

struct Transport {
  std::string kind = "tcp";
  bool gpu_memory = false;  ///< move it: by the GPU module, or by the NIC
  std::chrono::milliseconds peer_timeout{10000};
  std::chrono::milliseconds reconnect_interval{50};
  Tcp tcp;
  Emulated emulated;
  Verbs verbs;
  Efa efa;
};

struct Topology {
  std::vector<std::string> nics;  ///< ports that may be rails, "mlx5_0" or "mlx5_0:1", in order; empty: all
};

struct Proxy {
  std::uint32_t threads = 1;
  std::uint32_t ring_slots = 4096;
  std::chrono::microseconds spin{50};
  std::chrono::microseconds nap{50};
  std::chrono::seconds idle_after{120};
  std::uint64_t quantum_bytes = 256 * 1024;
  std::uint32_t quantum_requests = 64;
  std::vector<std::uint32_t> cpus;  ///< CPU of each proxy thread; empty: wherever the kernel puts them
};

/// Ceilings of what clients may ask for. `max_lanes`, world size and region capacity also have the ceilings
/// of proto/abi.
struct Limits {
  std::uint32_t max_sessions = 256;
  std::uint32_t max_groups = 64;  ///< per session
  std::uint32_t max_world_size = abi::kMaxWorldSize;
  std::uint32_t max_lanes = abi::kMaxLanes;
  std::uint64_t max_region_bytes = 0;  ///< 0: half of the machine's memory, for host memory
  // All of one session.
  std::uint32_t max_regions = 1024;
  std::uint64_t max_pinned_bytes = 0;                    ///< host memory; 0: as much as the machine has
  std::uint64_t max_gpu_bytes = std::uint64_t{1} << 42;  ///< GPU memory
  std::uint32_t max_fds = 4096;                          ///< that the daemon keeps open
  std::uint32_t max_channels = 1U << 19;                 ///< world size times lanes, over all groups
  std::uint64_t max_daemon_bytes = 0;                    ///< for rings, groups and channels
  std::uint32_t joins_per_second = 100;                  ///< and what else becomes messages to peers
  std::chrono::milliseconds hello_timeout{10000};
  std::chrono::milliseconds join_timeout{60000};
  std::chrono::milliseconds drain{5000};

  std::uint64_t region_limit() const;
  std::uint64_t pinned_limit() const;
  std::uint64_t daemon_limit() const;
};

struct Log {
  std::string level = "info";
  std::string format = "auto";
};

struct Config {
  Node node;
  Control control;
  Peers peers;
  Transport transport;
  Topology topology;
  Proxy proxy;
  Limits limits;
  Users users;
  Log log;

  std::string file;                  ///< path it came from, as given; empty: built-in defaults only
  std::map<std::string, int> lines;  ///< line of every key that the file sets, by dotted name
};

/// Parses the file. On mistakes: kInvalidArgument whose text holds one line per mistake, all of them, each
/// "FILE:LINE: key = value: what is wrong and the limit"; else the errors of base::read_file(). Looks up the
/// users and groups that it names, which may take as long as the name service wants.
Result<Config> load(const std::string& path);

/// The same from text; `path` is only used in messages.
Result<Config> parse(const std::string& text, const std::string& path);

/// The effective configuration, one "key = value  # default" or "# FILE:LINE" per line, in file order, valid
/// TOML.
std::string dump(const Config& config);

/// What a SIGHUP changes.
struct Reload {
  Config config;                           ///< the running one with every reloadable key taken over
  std::vector<std::string> applied;        ///< "key: old -> new"
  std::vector<std::string> needs_restart;  ///< "key: old -> new", left as it was
};
Reload reload(const Config& running, const Config& fresh);

}  // namespace mkernel::config
