#include "daemon/config/config.h"

#include <unistd.h>

#include <optional>
#include <string_view>

#include "daemon/base/physical_memory.h"
#include "daemon/base/read_file.h"
#include "daemon/config/check.h"
#include "daemon/config/keys.h"
#include "daemon/config/user_tables.h"
#include "proto/abi/region_map.h"

#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

namespace mkernel::config {
namespace {

int line_of(const toml::node& node) {
  return static_cast<int>(node.source().begin.line);
}

template <typename T>
std::optional<Value> list_of(const toml::array& array) {
  std::vector<T> items;
  for (const toml::node& item : array) {
    const auto value = item.value_exact<T>();
    if (!value) return std::nullopt;
    items.push_back(*value);
  }
  return items;
}

/// The node as a Value of the same kind as `like`; nothing when it is of another kind.
std::optional<Value> read_value(const toml::node& node, const Value& like) {
  if (std::holds_alternative<bool>(like)) {
    if (const auto found = node.value_exact<bool>()) return *found;
  } else if (std::holds_alternative<std::int64_t>(like)) {
    if (const auto found = node.value_exact<std::int64_t>()) return *found;
  } else if (std::holds_alternative<double>(like)) {
    if (node.is_number()) return node.value<double>();
  } else if (std::holds_alternative<std::string>(like)) {
    if (const auto found = node.value_exact<std::string>()) return *found;
  } else if (const toml::array* array = node.as_array()) {
    if (std::holds_alternative<std::vector<std::string>>(like)) return list_of<std::string>(*array);
    return list_of<std::int64_t>(*array);
  }
  return std::nullopt;
}

/// The node for a message, on one line.
std::string as_written(const toml::node& node) {
  if (const toml::array* array = node.as_array()) {
    std::string out;
    for (const toml::node& item : *array) out += (out.empty() ? "" : ", ") + as_written(item);
    return "[" + out + "]";
  }
  if (node.is_boolean()) return to_toml(*node.value<bool>());
  if (node.is_integer()) return to_toml(*node.value<std::int64_t>());
  if (node.is_floating_point()) return to_toml(*node.value<double>());
  if (node.is_string()) return to_toml(*node.value<std::string>());
  return node.is_table() ? "{...}" : "a date or time";
}

bool is_section(const std::string& name) {
  const std::string prefix = name + ".";
  for (const Key& key : keys()) {
    if (key.name.starts_with(prefix)) return true;
  }
  return false;
}

void read_key(const std::string& name, const toml::node& node, Config& config, Mistakes& mistakes) {
  const Key* key = find_key(name);
  if (key == nullptr) {
    const auto nearest = nearest_key(name);
    mistakes.add(line_of(node), name,
                 is_section(name) ? std::string("is a section, not a key")
                                  : "unknown key" + (nearest ? " (did you mean " + *nearest + "?)" : ""));
    return;
  }
  const auto value = read_value(node, key->get(config));
  if (!value || !key->check(*value)) {
    mistakes.add(line_of(node), name + " = " + as_written(node), "must be " + key->wants);
    return;
  }
  key->set(config, *value);
  config.lines[name] = line_of(node);
}

/// One table of [users] but the default. Its name may hold dots, so its keys have no dotted names.
void read_user(const std::string& name, const toml::table& table, Config& config, Mistakes& mistakes) {
  UserEntry& entry = add_user_entry(name, line_of(table), config, mistakes);
  for (const auto& [part, node] : table) {
    const std::string key_name(part.str());
    const std::string full = "users." + name + "." + key_name;
    const UserKey* key = find_user_key(key_name);
    if (key == nullptr) {
      const auto nearest = nearest_key("users.default." + key_name);
      mistakes.add(line_of(node), full,
                   "unknown key" + (nearest ? " (did you mean the key of " + *nearest + "?)" : ""));
      continue;
    }
    const auto value = read_value(node, key->get(entry.limits));
    if (!value || !key->check(*value)) {
      mistakes.add(line_of(node), full + " = " + as_written(node), "must be " + key->wants);
      continue;
    }
    key->set(entry.limits, *value);
    entry.lines[key_name] = line_of(node);
  }
}

void read_table(const std::string& prefix, const toml::table& table, Config& config, Mistakes& mistakes) {
  for (const auto& [part, node] : table) {
    const std::string name = prefix + std::string(part.str());
    const toml::table* section = node.as_table();
    if (section == nullptr) {
      read_key(name, node, config, mistakes);
    } else if (prefix == "users." && name != "users.default") {
      read_user(std::string(part.str()), *section, config, mistakes);
    } else if (is_section(name)) {
      read_table(name + ".", *section, config, mistakes);
    } else if (find_key(name) != nullptr) {
      mistakes.add(line_of(node), name, "is a key, not a section");
    } else {
      mistakes.add(line_of(node), "[" + name + "]", "unknown section");
    }
  }
}

/// Defaults that depend on other keys or on the machine.
void derive(Config& config) {
  if (config.node.name.empty()) {
    char host[256] = {};
    const bool known = ::gethostname(host, sizeof(host) - 1) == 0 && host[0] != 0;
    config.node.name = std::string(known ? host : "node").substr(0, sizeof(abi::Member::node_name) - 1);
  }
  if (config.node.socket.empty()) config.node.socket = config.node.runtime_dir + "/mkerneld.sock";
  if (config.control.socket.empty()) config.control.socket = config.node.runtime_dir + "/control.sock";
}

}  // namespace

std::uint32_t Node::mode_bits() const {
  return static_cast<std::uint32_t>(std::stoul(socket_mode, nullptr, 8));
}

std::uint64_t Limits::region_limit() const {
  return max_region_bytes != 0 ? max_region_bytes : base::physical_memory_bytes() / 2;
}

std::uint64_t Limits::pinned_limit() const {
  return max_pinned_bytes != 0 ? max_pinned_bytes : base::physical_memory_bytes();
}

std::uint64_t Limits::daemon_limit() const {
  return max_daemon_bytes != 0 ? max_daemon_bytes : base::physical_memory_bytes() / 16;
}

Result<Config> parse(const std::string& text, const std::string& path) {
  Config config;
  config.file = path;
  Mistakes mistakes(path);
  const toml::parse_result parsed = toml::parse(std::string_view(text), path);
  if (!parsed) {
    const toml::parse_error& error = parsed.error();
    mistakes.add(static_cast<int>(error.source().begin.line), "not TOML", std::string(error.description()));
    return mistakes.status();
  }
  read_table("", parsed.table(), config, mistakes);
  derive(config);
  check_together(config, mistakes);
  MK_RETURN_IF_ERROR(mistakes.status());
  return config;
}

Result<Config> load(const std::string& path) {
  const auto text = base::read_file(path);
  return text.ok() ? parse(text.value(), path) : Result<Config>(text.status());
}

std::string dump(const Config& config) {
  std::string out, section;
  for (const Key& key : keys()) {
    const std::size_t dot = key.name.rfind('.');
    if (key.name.compare(0, dot, section) != 0) {
      out += (section.empty() ? "[" : "\n[") + key.name.substr(0, dot) + "]\n";
      section = key.name.substr(0, dot);
    }
    out += key.name.substr(dot + 1) + " = " + to_toml(key.get(config));
    const auto line = config.lines.find(key.name);
    out += line == config.lines.end() ? "  # default\n"
                                      : "  # " + config.file + ":" + std::to_string(line->second) + "\n";
  }
  return out + dump_users(config);
}

Reload reload(const Config& running, const Config& fresh) {
  Reload result{running, {}, {}};
  for (const Key& key : keys()) {
    const Value before = key.get(running), after = key.get(fresh);
    if (before == after) continue;
    const std::string change = key.name + ": " + to_toml(before) + " -> " + to_toml(after);
    (key.reloads ? result.applied : result.needs_restart).push_back(change);
    if (!key.reloads) continue;
    key.set(result.config, after);
    result.config.lines.erase(key.name);
    if (const auto line = fresh.lines.find(key.name); line != fresh.lines.end()) {
      result.config.lines.insert(*line);
    }
  }
  for (std::string& change : reload_users(result.config.users, fresh.users)) {
    result.applied.push_back(std::move(change));
  }
  return result;
}

}  // namespace mkernel::config
