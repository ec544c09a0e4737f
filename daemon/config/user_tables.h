// Reading, writing and comparing the tables of [users] that are named after a user or a group.
#pragma once

#include <string>
#include <vector>

#include "daemon/config/check.h"
#include "daemon/config/config.h"
#include "daemon/config/keys.h"

namespace mkernel::config {

/// The entry for a table of [users] called `name`: a user of this machine, a uid, or "@" and a group or gid.
/// Where there is no such user or group it is a mistake at `line`: to leave it out would give or deny rights
/// that the operator meant otherwise.
UserEntry& add_user_entry(const std::string& name, int line, Config& config, Mistakes& mistakes);

/// The tables as TOML, in the order of their names.
std::string dump_users(const Config& config);

/// Takes the tables over; one line "users.alice.max_fds: 5 -> 6" for each value that changes.
std::vector<std::string> reload_users(Users& running, const Users& fresh);

}  // namespace mkernel::config
