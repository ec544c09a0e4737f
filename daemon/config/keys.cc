#include "daemon/config/keys.h"

#include <algorithm>
#include <cstdio>
#include <type_traits>
#include <utility>

#include "daemon/config/rules.h"

namespace mkernel::config {
namespace {

template <typename T>
inline constexpr bool kIsDuration = false;
template <typename Rep, typename Period>
inline constexpr bool kIsDuration<std::chrono::duration<Rep, Period>> = true;

template <typename T>
Value to_value(const T& field) {
  if constexpr (kIsDuration<T>) {
    return static_cast<std::int64_t>(field.count());
  } else if constexpr (std::is_same_v<T, std::vector<std::uint32_t>>) {
    return std::vector<std::int64_t>(field.begin(), field.end());
  } else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    return static_cast<std::int64_t>(field);
  } else {
    return field;
  }
}

template <typename T>
void assign(T& field, Value value) {
  if constexpr (kIsDuration<T>) {
    field = T(std::get<std::int64_t>(value));
  } else if constexpr (std::is_same_v<T, std::vector<std::uint32_t>>) {
    const auto& numbers = std::get<std::vector<std::int64_t>>(value);
    field.assign(numbers.begin(), numbers.end());
  } else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    field = static_cast<T>(std::get<std::int64_t>(value));
  } else {
    field = std::get<T>(std::move(value));
  }
}

constexpr std::int64_t kMaxUserWeight = 1024;

enum Change { kRestart, kReloads };

/// `access` names the field in a Target, const or not.
template <typename Target = Config, typename Access>
BasicKey<Target> key(std::string name, Access access, Rule rule, Change change = kRestart) {
  return {std::move(name),
          change == kReloads,
          std::move(rule.wants),
          [access](const Target& target) { return to_value(access(target)); },
          [access](Target& target, Value value) { assign(access(target), std::move(value)); },
          std::move(rule.check)};
}

// The only way to hand a member path to key(): a lambda that serves const and non-const configs alike.
// NOLINTBEGIN(bugprone-macro-parentheses): `path` follows a dot
#define MK_FIELD(path)        \
  [](auto& config) -> auto& { \
    return config.path;       \
  }
// NOLINTEND(bugprone-macro-parentheses)

void node_and_peer_keys(std::vector<Key>& table) {
  table.push_back(key("node.name", MK_FIELD(node.name), node_name()));
  table.push_back(key("node.runtime_dir", MK_FIELD(node.runtime_dir), absolute_path(false)));
  table.push_back(key("node.socket", MK_FIELD(node.socket), absolute_path(true)));
  table.push_back(key("node.socket_mode", MK_FIELD(node.socket_mode), file_mode()));
  table.push_back(key("node.socket_group", MK_FIELD(node.socket_group), any_text()));
  table.push_back(key("control.socket", MK_FIELD(control.socket), absolute_path(true)));
  table.push_back(key("peers.listen", MK_FIELD(peers.listen), host_port()));
  table.push_back(key("peers.advertise", MK_FIELD(peers.advertise), peer_address()));
  table.push_back(key("peers.list", MK_FIELD(peers.list), peer_address_list(), kReloads));
  table.push_back(key("peers.dns", MK_FIELD(peers.dns), peer_address()));
  table.push_back(key("peers.dns_refresh_s", MK_FIELD(peers.dns_refresh), integer(1, 86400)));
  table.push_back(key("peers.time_scale", MK_FIELD(peers.time_scale), real(0.001, 1000)));
  table.push_back(key("peers.open", MK_FIELD(peers.open), boolean()));
  table.push_back(key("peers.insecure", MK_FIELD(peers.insecure), boolean()));
  table.push_back(key("peers.tls.cert", MK_FIELD(peers.tls.cert), absolute_path(true)));
  table.push_back(key("peers.tls.key", MK_FIELD(peers.tls.key), absolute_path(true)));
  table.push_back(key("peers.tls.ca", MK_FIELD(peers.tls.ca), absolute_path(true)));
  table.push_back(key("peers.tls.server_name", MK_FIELD(peers.tls.server_name), any_text()));
}

void transport_keys(std::vector<Key>& table) {
  table.push_back(
      key("transport.kind", MK_FIELD(transport.kind), one_of({"tcp", "emulated", "verbs", "efa"})));
  table.push_back(key("transport.gpu_memory", MK_FIELD(transport.gpu_memory), boolean()));
  table.push_back(key("transport.peer_timeout_ms", MK_FIELD(transport.peer_timeout), integer(1, 3600000)));
  table.push_back(key("transport.reconnect_ms", MK_FIELD(transport.reconnect_interval), integer(1, 1000)));
  table.push_back(key("transport.tcp.bind", MK_FIELD(transport.tcp.bind), ip_address()));
  table.push_back(key("transport.tcp.insecure", MK_FIELD(transport.tcp.insecure), boolean()));
  table.push_back(key("transport.tcp.port", MK_FIELD(transport.tcp.port), integer(0, 65535)));
  table.push_back(key("transport.tcp.advertise", MK_FIELD(transport.tcp.advertise), any_text()));
  table.push_back(key("transport.tcp.connections_per_peer", MK_FIELD(transport.tcp.connections_per_peer),
                      integer(1, 64)));
  table.push_back(
      key("transport.tcp.zero_copy", MK_FIELD(transport.tcp.zero_copy), one_of({"auto", "never", "always"})));
  table.push_back(key("transport.tcp.zero_copy_bytes", MK_FIELD(transport.tcp.zero_copy_bytes),
                      integer(4096, std::int64_t{1} << 30)));
  table.push_back(key("transport.tcp.socket_buffer_bytes", MK_FIELD(transport.tcp.socket_buffer_bytes),
                      integer(0, std::int64_t{1} << 30)));
  table.push_back(key("transport.tcp.window", MK_FIELD(transport.tcp.window), integer(1, 32767)));
  table.push_back(key("transport.emulated.bandwidth_gbytes", MK_FIELD(transport.emulated.bandwidth_gbytes),
                      real(0, 10000), kReloads));
  table.push_back(key("transport.emulated.latency_us", MK_FIELD(transport.emulated.latency),
                      integer(0, 10000000), kReloads));
  table.push_back(key("transport.emulated.drop", MK_FIELD(transport.emulated.drop), real(0, 0.9), kReloads));
  table.push_back(
      key("transport.emulated.duplicate", MK_FIELD(transport.emulated.duplicate), real(0, 1), kReloads));
  table.push_back(
      key("transport.emulated.reorder", MK_FIELD(transport.emulated.reorder), real(0, 1), kReloads));
  table.push_back(key("transport.emulated.seed", MK_FIELD(transport.emulated.seed), integer(0, INT64_MAX)));
}

void topology_keys(std::vector<Key>& table) {
  table.push_back(key("topology.nics", MK_FIELD(topology.nics), port_list()));
}

void verbs_keys(std::vector<Key>& table) {
  table.push_back(
      key("transport.verbs.gid_family", MK_FIELD(transport.verbs.gid_family), one_of({"ipv4", "ipv6"})));
  table.push_back(key("transport.verbs.paths", MK_FIELD(transport.verbs.paths), integer(1, 16)));
  table.push_back(
      key("transport.verbs.qps_per_peer", MK_FIELD(transport.verbs.qps_per_peer), integer(1, 64)));
  table.push_back(
      key("transport.verbs.send_queue", MK_FIELD(transport.verbs.send_queue), integer(256, 32768)));
  table.push_back(key("transport.verbs.window", MK_FIELD(transport.verbs.window), integer(1, 32767)));
  table.push_back(key("transport.verbs.max_inline", MK_FIELD(transport.verbs.max_inline), integer(8, 1024)));
  table.push_back(key("transport.verbs.timeout", MK_FIELD(transport.verbs.timeout), integer(1, 31)));
  table.push_back(key("transport.verbs.retry_count", MK_FIELD(transport.verbs.retry_count), integer(0, 7)));
  table.push_back(
      key("transport.verbs.traffic_class", MK_FIELD(transport.verbs.traffic_class), integer(0, 255)));
  table.push_back(
      key("transport.verbs.service_level", MK_FIELD(transport.verbs.service_level), integer(0, 15)));
}

void efa_keys(std::vector<Key>& table) {
  table.push_back(key("transport.efa.paths", MK_FIELD(transport.efa.paths), integer(1, 16)));
  table.push_back(key("transport.efa.window", MK_FIELD(transport.efa.window), integer(1, 32767)));
  table.push_back(key("transport.efa.credit", MK_FIELD(transport.efa.credit), integer(1, 65536)));
  table.push_back(key("transport.efa.send_queue", MK_FIELD(transport.efa.send_queue), integer(0, 32768)));
  table.push_back(key("transport.efa.service_level", MK_FIELD(transport.efa.service_level), integer(0, 15)));
}

void proxy_keys(std::vector<Key>& table) {
  table.push_back(key("proxy.threads", MK_FIELD(proxy.threads), integer(1, abi::kMaxRings)));
  table.push_back(key("proxy.ring_slots", MK_FIELD(proxy.ring_slots), power_of_two(64, 1 << 20)));
  table.push_back(key("proxy.spin_us", MK_FIELD(proxy.spin), integer(0, 1000000)));
  table.push_back(key("proxy.nap_us", MK_FIELD(proxy.nap), integer(1, 100000)));
  table.push_back(key("proxy.idle_after_s", MK_FIELD(proxy.idle_after), integer(1, 86400)));
  table.push_back(
      key("proxy.quantum_bytes", MK_FIELD(proxy.quantum_bytes), integer(4096, std::int64_t{1} << 30)));
  table.push_back(key("proxy.quantum_requests", MK_FIELD(proxy.quantum_requests), integer(1, 65536)));
  table.push_back(key("proxy.cpus", MK_FIELD(proxy.cpus), cpu_list()));
}

void limit_keys(std::vector<Key>& table) {
  const std::int64_t tib = std::int64_t{1} << 40;
  table.push_back(key("limits.max_sessions", MK_FIELD(limits.max_sessions), integer(1, 65536), kReloads));
  table.push_back(key("limits.max_groups", MK_FIELD(limits.max_groups), integer(1, 4096), kReloads));
  table.push_back(key("limits.max_world_size", MK_FIELD(limits.max_world_size),
                      integer(1, abi::kMaxWorldSize), kReloads));
  table.push_back(key("limits.max_lanes", MK_FIELD(limits.max_lanes), integer(1, abi::kMaxLanes), kReloads));
  table.push_back(
      key("limits.max_region_bytes", MK_FIELD(limits.max_region_bytes), integer(0, 256 * tib), kReloads));
  table.push_back(key("limits.max_regions", MK_FIELD(limits.max_regions), integer(1, 1 << 20), kReloads));
  table.push_back(
      key("limits.max_pinned_bytes", MK_FIELD(limits.max_pinned_bytes), integer(0, 4096 * tib), kReloads));
  table.push_back(
      key("limits.max_gpu_bytes", MK_FIELD(limits.max_gpu_bytes), integer(4096, 4096 * tib), kReloads));
  table.push_back(key("limits.max_fds", MK_FIELD(limits.max_fds), integer(8, 1 << 24), kReloads));
  table.push_back(key("limits.max_channels", MK_FIELD(limits.max_channels), integer(1, 1 << 24), kReloads));
  table.push_back(
      key("limits.max_daemon_bytes", MK_FIELD(limits.max_daemon_bytes), integer(0, 256 * tib), kReloads));
  table.push_back(
      key("limits.joins_per_second", MK_FIELD(limits.joins_per_second), integer(1, 1000000), kReloads));
  table.push_back(
      key("limits.hello_timeout_ms", MK_FIELD(limits.hello_timeout), integer(1, 600000), kReloads));
  table.push_back(
      key("limits.join_timeout_ms", MK_FIELD(limits.join_timeout), integer(1, 86400000), kReloads));
  table.push_back(key("limits.drain_ms", MK_FIELD(limits.drain), integer(0, 600000), kReloads));
}

void log_keys(std::vector<Key>& table) {
  table.push_back(key("log.level", MK_FIELD(log.level),
                      one_of({"trace", "debug", "info", "warn", "error", "off"}), kReloads));
  table.push_back(key("log.format", MK_FIELD(log.format), one_of({"auto", "text", "journal", "json"})));
}

std::vector<UserKey> built_user_keys() {
  const std::int64_t many = 1 << 24, bytes = std::int64_t{4096} << 40;
  const auto user_key = [](const char* name, auto access, Rule rule) {
    return key<UserLimits>(name, access, std::move(rule), kReloads);
  };
  return {user_key("may_connect", MK_FIELD(may_connect), boolean()),
          user_key("weight", MK_FIELD(weight), integer(1, kMaxUserWeight)),
          user_key("max_connections", MK_FIELD(max_connections), integer(1, many)),
          user_key("max_sessions", MK_FIELD(max_sessions), integer(1, many)),
          user_key("max_fds", MK_FIELD(max_fds), integer(8, many)),
          user_key("max_regions", MK_FIELD(max_regions), integer(1, many)),
          user_key("max_pinned_bytes", MK_FIELD(max_pinned_bytes), integer(0, bytes)),
          user_key("max_gpu_bytes", MK_FIELD(max_gpu_bytes), integer(4096, bytes)),
          user_key("max_daemon_bytes", MK_FIELD(max_daemon_bytes), integer(0, bytes)),
          user_key("max_channels", MK_FIELD(max_channels), integer(1, std::int64_t{1} << 31)),
          user_key("joins_per_second", MK_FIELD(joins_per_second), integer(1, 1000000)),
          user_key("bytes_per_second", MK_FIELD(bytes_per_second), integer(0, INT64_MAX)),
          user_key("requests_per_second", MK_FIELD(requests_per_second), integer(0, INT64_MAX))};
}

#undef MK_FIELD

void default_user_keys(std::vector<Key>& table) {
  for (const UserKey& user : user_keys()) {
    table.push_back(
        {"users.default." + user.name, true, user.wants,
         [&user](const Config& config) { return user.get(config.users.standard); },
         [&user](Config& config, Value value) { user.set(config.users.standard, std::move(value)); },
         user.check});
  }
}

/// Edit distance of two names.
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({replaced, row[j] + 1, row[j - 1] + 1}));
    }
  }
  return row.back();
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    char escaped[8];
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", static_cast<unsigned>(c));
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

template <typename Item, typename Format>
std::string listed(const std::vector<Item>& items, Format format) {
  std::string out = "[";
  for (std::size_t i = 0; i < items.size(); ++i) out += (i == 0 ? "" : ", ") + format(items[i]);
  return out + "]";
}

std::string real_text(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.15g", value);
  std::string out = text;
  // 1 would be read back as a whole number; that is allowed, but the reader should see what kind of key it
  // is.
  return out.find_first_of(".en") == std::string::npos ? out + ".0" : out;
}

}  // namespace

const std::vector<Key>& keys() {
  static const std::vector<Key> table = [] {
    std::vector<Key> built;
    node_and_peer_keys(built);
    transport_keys(built);
    verbs_keys(built);
    efa_keys(built);
    topology_keys(built);
    proxy_keys(built);
    limit_keys(built);
    default_user_keys(built);
    log_keys(built);
    return built;
  }();
  return table;
}

const std::vector<UserKey>& user_keys() {
  static const std::vector<UserKey> table = built_user_keys();
  return table;
}

const UserKey* find_user_key(const std::string& name) {
  const auto found = std::find_if(user_keys().begin(), user_keys().end(),
                                  [&](const UserKey& known) { return known.name == name; });
  return found == user_keys().end() ? nullptr : &*found;
}

const Key* find_key(const std::string& name) {
  const auto found =
      std::find_if(keys().begin(), keys().end(), [&](const Key& known) { return known.name == name; });
  return found == keys().end() ? nullptr : &*found;
}

std::optional<std::string> nearest_key(const std::string& name) {
  const Key* best = nullptr;
  std::size_t least = 5;
  for (const Key& known : keys()) {
    const std::size_t edits = distance(name, known.name);
    if (edits >= least) continue;
    least = edits;
    best = &known;
  }
  return best == nullptr ? std::nullopt : std::optional(best->name);
}

std::string to_toml(const Value& value) {
  struct Format {
    std::string operator()(bool flag) const { return flag ? "true" : "false"; }
    std::string operator()(std::int64_t number) const { return std::to_string(number); }
    std::string operator()(double number) const { return real_text(number); }
    std::string operator()(const std::string& text) const { return quoted(text); }
    std::string operator()(const std::vector<std::string>& texts) const { return listed(texts, quoted); }
    std::string operator()(const std::vector<std::int64_t>& numbers) const {
      return listed(numbers, [](std::int64_t number) { return std::to_string(number); });
    }
  };
  return std::visit(Format{}, value);
}

}  // namespace mkernel::config
