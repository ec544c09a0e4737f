// Every key of mkerneld.toml as data: name, place in Config, limits, whether SIGHUP takes it over. Parsing,
// dumping, reloading and the test of the documented file all walk this one table.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "daemon/config/config.h"

namespace mkernel::config {

/// A value as TOML knows it.
using Value = std::variant<bool, std::int64_t, double, std::string, std::vector<std::string>,
                           std::vector<std::int64_t>>;

/// A key of what a `Target` holds.
template <typename Target>
struct BasicKey {
  std::string name;
  bool reloads = false;
  std::string wants;                        ///< "a number from 1 to 8", for messages
  std::function<Value(const Target&)> get;  ///< the effective value
  std::function<void(Target&, Value)> set;  ///< the value has get()'s type and passed check()
  std::function<bool(const Value&)> check;  ///< within the limits that `wants` states
};
using Key = BasicKey<Config>;          ///< name dotted: "transport.tcp.port"
using UserKey = BasicKey<UserLimits>;  ///< name within its table: "max_fds"; all of them reload

/// In the order of the file.
const std::vector<Key>& keys();

/// What a table of [users] may set, in the order of the file. Those of [users.default] are in keys() too.
const std::vector<UserKey>& user_keys();

/// nullptr when there is no such key.
const Key* find_key(const std::string& name);
const UserKey* find_user_key(const std::string& name);

/// The known name nearest to a mistyped one, if one is near enough to suggest.
std::optional<std::string> nearest_key(const std::string& name);

/// The value as TOML text.
std::string to_toml(const Value& value);

}  // namespace mkernel::config
