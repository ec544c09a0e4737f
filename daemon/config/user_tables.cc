#include "daemon/config/user_tables.h"

#include <grp.h>
#include <pwd.h>

#include <charconv>
#include <optional>
#include <set>

namespace mkernel::config {
namespace {

constexpr std::size_t kDatabaseLine = 1 << 16;

std::optional<std::uint32_t> number_of(const std::string& text) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<std::uint32_t> uid_of(const std::string& name) {
  if (const auto number = number_of(name)) return number;
  std::vector<char> storage(kDatabaseLine);
  passwd entry{};
  passwd* found = nullptr;
  ::getpwnam_r(name.c_str(), &entry, storage.data(), storage.size(), &found);
  return found == nullptr ? std::nullopt : std::optional<std::uint32_t>(found->pw_uid);
}

std::optional<std::uint32_t> gid_of(const std::string& name) {
  if (const auto number = number_of(name)) return number;
  std::vector<char> storage(kDatabaseLine);
  group entry{};
  group* found = nullptr;
  ::getgrnam_r(name.c_str(), &entry, storage.data(), storage.size(), &found);
  return found == nullptr ? std::nullopt : std::optional<std::uint32_t>(found->gr_gid);
}

/// The value that a table sets for a key, as TOML.
std::string value_text(const Users& users, const std::string& name, const UserKey& key) {
  const auto entry = users.named.find(name);
  if (entry == users.named.end() || entry->second.lines.count(key.name) == 0) return "(not set)";
  return to_toml(key.get(entry->second.limits));
}

}  // namespace

UserEntry& add_user_entry(const std::string& name, int line, Config& config, Mistakes& mistakes) {
  UserEntry& entry = config.users.named[name];
  entry.group = name.starts_with('@');
  const auto id = entry.group ? gid_of(name.substr(1)) : uid_of(name);
  if (!id) {
    mistakes.add(line, "[users." + to_toml(Value(name)) + "]",
                 std::string("is no ") + (entry.group ? "group" : "user") +
                     " of this machine, no number and not \"default\"");
  }
  entry.id = id.value_or(0);
  return entry;
}

std::string dump_users(const Config& config) {
  std::string out;
  for (const auto& [name, entry] : config.users.named) {
    out += "\n[users." + to_toml(Value(name)) + "]\n";
    for (const UserKey& key : user_keys()) {
      const auto line = entry.lines.find(key.name);
      if (line == entry.lines.end()) continue;
      out += key.name + " = " + to_toml(key.get(entry.limits)) + "  # " + config.file + ":" +
             std::to_string(line->second) + "\n";
    }
  }
  return out;
}

std::vector<std::string> reload_users(Users& running, const Users& fresh) {
  std::set<std::string> names;
  for (const Users* users : {static_cast<const Users*>(&running), &fresh}) {
    for (const auto& [name, entry] : users->named) names.insert(name);
  }
  std::vector<std::string> changes;
  for (const std::string& name : names) {
    for (const UserKey& key : user_keys()) {
      const std::string before = value_text(running, name, key), after = value_text(fresh, name, key);
      if (before != after)
        changes.push_back("users." + name + "." + key.name + ": " + before + " -> " + after);
    }
  }
  running.named = fresh.named;
  return changes;
}

}  // namespace mkernel::config
