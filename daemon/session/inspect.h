// Snapshots of a daemon's state for mkctl: plain values, taken on the control thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/config/users.h"
#include "daemon/dataplane/ports.h"

namespace mkernel::session {

/// Sum of dataplane::Counters at one moment.
struct CounterSnapshot {
  std::uint64_t requests_total = 0, bytes_total = 0, completed_total = 0, arrivals_total = 0,
                arrived_bytes_total = 0, errors_total = 0, stalls_total = 0, stall_nanoseconds_total = 0,
                ring_depth = 0;
};
CounterSnapshot snapshot(const dataplane::Counters& counters);
CounterSnapshot& operator+=(CounterSnapshot& sum, const CounterSnapshot& more);

struct SessionSnapshot {
  std::uint64_t id = 0;
  std::string client_name;
  std::int64_t pid = 0;
  std::uint32_t uid = 0;
  std::int32_t device = -1;
  std::uint32_t weight = 1;
  // By the client's own word.
  std::uint32_t active = 0;  ///< operations in flight
  std::uint64_t launches_total = 0, fallbacks_total = 0;
  double age_seconds = 0;
  std::uint64_t regions = 0, pinned_bytes = 0, gpu_bytes = 0, groups = 0;
  CounterSnapshot counters;
  /// By RateBook. Bytes per second; unset: not known yet.
  double idle_seconds = 0;
  std::optional<double> sent_per_second, arrived_per_second;
};
/// A user with connections here: what all his sessions hold together, and what they may.
struct UserSnapshot {
  std::uint32_t uid = 0;
  std::uint64_t connections = 0, sessions = 0, groups = 0, fds = 0, regions = 0, pinned_bytes = 0,
                gpu_bytes = 0, daemon_bytes = 0, channels = 0;
  std::uint64_t refusals_total = 0;  ///< requests and connections above a limit of [limits] or [users]
  std::uint64_t waiting = 0;         ///< sessions that are not read until fewer messages to peers are due
  CounterSnapshot counters;          ///< of the sessions that are here now
  config::UserLimits limits;         ///< as for the process that connected last
};
/// What the sessions of a node hold together, and what the kernel leaves for them.
struct NodeUse {
  std::uint64_t fds = 0, fds_limit = 0, mappings = 0, mappings_limit = 0;
  std::uint64_t user_fds = 0, user_regions = 0;  ///< of [users.default]
};
struct GroupSnapshot {
  std::uint64_t session = 0;
  std::uint32_t handle = 0;
  std::string name,
      owner;          ///< owner: "user 1000", or "secret 1f6c9a0233b7d5e8" by the start of the secret's hash
  std::string state;  ///< forming, ready, failed
  std::uint64_t instance = 0;
  std::uint32_t rank = 0, world_size = 0, lanes = 0, nodes = 0;
  std::string rails;    ///< of the rank's puts: "0,8"
  std::string failure;  ///< text when failed
};
struct RegionSnapshot {
  std::uint64_t session = 0;
  std::string group, kind;  ///< kind: host, ipc, vmm
  std::uint32_t index = 0;
  std::uint64_t bytes = 0;
  bool shared = false;
  std::int32_t device = -1;  ///< GPU memory: the GPU as the client counts them
  std::string dma_buf;       ///< GPU memory: "yes", or why the driver gave none
};
struct ChannelSnapshot {
  std::uint64_t session = 0;
  std::string group, peer_node;
  std::uint32_t rank = 0, peer_rank = 0, lane = 0;
  std::uint64_t puts_total = 0, bytes_total = 0, completed_total = 0;  ///< rank -> peer_rank
  std::uint64_t arrivals_total = 0, arrived_bytes_total = 0;           ///< peer_rank -> rank
};

/// Where a list goes on. Lists are taken in parts, so that a long one holds nobody up: what comes or goes
/// between two parts may be in the list or not, everything else is in it once.
struct ListCursor {
  std::uint64_t session = 0, group = 0, row = 0;  ///< the next one to be looked at
  bool end = false;                               ///< nothing is left
};

/// How much there is to list.
struct Counts {
  std::size_t sessions = 0, groups = 0;
};

/// Implemented by the session server. Control thread. A call with a cursor returns the next part of its list,
/// which takes a millisecond or so; one without returns all of it.
class Inspector {
 public:
  virtual ~Inspector() = default;
  virtual Counts counts() const = 0;
  virtual std::vector<SessionSnapshot> sessions(ListCursor& at) const = 0;
  virtual std::vector<UserSnapshot> users() const = 0;
  virtual NodeUse node_use() const = 0;
  virtual std::vector<GroupSnapshot> groups(ListCursor& at) const = 0;
  virtual std::vector<RegionSnapshot> regions(ListCursor& at) const = 0;
  /// Only channels that ever carried a put, unless `all`.
  virtual std::vector<ChannelSnapshot> channels(bool all, ListCursor& at) const = 0;

  std::vector<SessionSnapshot> sessions() const {
    return whole<SessionSnapshot>([this](ListCursor& at) { return sessions(at); });
  }
  std::vector<GroupSnapshot> groups() const {
    return whole<GroupSnapshot>([this](ListCursor& at) { return groups(at); });
  }
  std::vector<RegionSnapshot> regions() const {
    return whole<RegionSnapshot>([this](ListCursor& at) { return regions(at); });
  }

 private:
  template <typename Row, typename Next>
  static std::vector<Row> whole(const Next& next) {
    std::vector<Row> rows;
    for (ListCursor at; !at.end;) {
      for (Row& row : next(at)) rows.push_back(std::move(row));
    }
    return rows;
  }
};

}  // namespace mkernel::session
