// [users]: what each user may hold and how fast he may go. The values for everybody are [users.default];
// tables named after a user, a uid or a group ("@hpc") change single values for those.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace mkernel::config {

/// Of one user, all his sessions together.
struct UserLimits {
  bool may_connect = true;
  std::uint32_t weight = 1;  ///< share of the proxies among the users
  std::uint32_t max_connections = 160;
  std::uint32_t max_sessions = 128;
  std::uint32_t max_fds = 16384;
  std::uint32_t max_regions = 8192;
  std::uint64_t max_pinned_bytes = 0;  ///< host memory; 0: as much as the machine has
  std::uint64_t max_gpu_bytes = std::uint64_t{1} << 44;
  std::uint64_t max_daemon_bytes = 0;  ///< for rings, groups and channels; 0: a quarter of the memory
  std::uint32_t max_channels = 1U << 21;
  std::uint32_t joins_per_second = 400;
  std::uint64_t bytes_per_second = 0;  ///< on one rail; 0: no limit
  std::uint64_t requests_per_second = 0;

  std::uint64_t pinned_limit() const;
  std::uint64_t daemon_limit() const;
};

/// One table of [users] but the default.
struct UserEntry {
  bool group = false;                ///< "@name"
  std::uint32_t id = 0;              ///< uid or gid
  UserLimits limits;                 ///< of which only what is in `lines` counts
  std::map<std::string, int> lines;  ///< line of every key that the table sets, by its name in the table
};

struct Users {
  UserLimits standard;
  std::map<std::string, UserEntry> named;  ///< by the name of the table
};

/// What holds for one user, and which table each value comes from.
struct UserRights {
  UserLimits limits;
  std::map<std::string, std::string> tables;  ///< key -> "users.alice"; absent: users.default
  /// "users.alice.max_fds".
  std::string key(const std::string& name) const;
};

/// A user's own table, by name or uid, counts before those of his groups, and these before the default; each
/// value by itself. Of several groups the most generous value counts.
UserRights rights_of(const Users& users, std::uint32_t uid, const std::vector<std::uint32_t>& gids);

}  // namespace mkernel::config
