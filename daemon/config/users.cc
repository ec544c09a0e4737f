#include "daemon/config/users.h"

#include <algorithm>
#include <limits>

#include "daemon/base/physical_memory.h"
#include "daemon/config/keys.h"

namespace mkernel::config {
namespace {

/// For comparison alone: 0 stands for no limit of its own.
std::int64_t generosity(const Value& value) {
  if (const bool* flag = std::get_if<bool>(&value)) return *flag ? 1 : 0;
  const std::int64_t number = std::get<std::int64_t>(value);
  return number == 0 ? std::numeric_limits<std::int64_t>::max() : number;
}

/// `into` takes over the key from an entry that sets it.
void take(const UserKey& key, const std::string& name, const UserEntry& entry, UserRights& into) {
  key.set(into.limits, key.get(entry.limits));
  into.tables[key.name] = "users." + name;
}

}  // namespace

std::uint64_t UserLimits::pinned_limit() const {
  return max_pinned_bytes != 0 ? max_pinned_bytes : base::physical_memory_bytes();
}

std::uint64_t UserLimits::daemon_limit() const {
  return max_daemon_bytes != 0 ? max_daemon_bytes : base::physical_memory_bytes() / 4;
}

std::string UserRights::key(const std::string& name) const {
  const auto table = tables.find(name);
  return (table == tables.end() ? "users.default" : table->second) + "." + name;
}

UserRights rights_of(const Users& users, std::uint32_t uid, const std::vector<std::uint32_t>& gids) {
  UserRights rights{users.standard, {}};
  const auto is_in = [&](const UserEntry& entry) {
    return entry.group && std::find(gids.begin(), gids.end(), entry.id) != gids.end();
  };
  for (const UserKey& key : user_keys()) {
    bool from_group = false;
    for (const auto& [name, entry] : users.named) {
      if (!is_in(entry) || entry.lines.count(key.name) == 0) continue;
      const bool better = generosity(key.get(entry.limits)) > generosity(key.get(rights.limits));
      if (!from_group || better) take(key, name, entry, rights);
      from_group = true;
    }
    for (const auto& [name, entry] : users.named) {
      if (!entry.group && entry.id == uid && entry.lines.count(key.name) != 0) take(key, name, entry, rights);
    }
  }
  return rights;
}

}  // namespace mkernel::config
