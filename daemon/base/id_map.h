// User and group ids as the kernel shows them to a process in a user namespace (user_namespaces(7)). Every id
// that the namespace does not map is shown as one and the same number, the overflow id: who has it may be
// anybody.
#pragma once

#include <cstdint>
#include <string>

#include "proto/abi/status.h"

namespace mkernel::base {

enum class IdKind { kUser, kGroup };

/// What one user namespace maps, of users or of groups.
class IdMap {
 public:
  /// The namespace of this process, read from /proc with the first call: it stays the same as long as the
  /// process lives. Any thread.
  static const IdMap& of_this_process(IdKind kind);
  /// `map`: the text of /proc/PID/uid_map or gid_map; `overflow`: that of /proc/sys/kernel/overflowuid or
  /// overflowgid. Where /proc cannot be read they are empty: then no id is known to be mapped, and the
  /// overflow id is the kernel's default.
  IdMap(IdKind kind, const std::string& map, const std::string& overflow);

  /// False when the number stands for every id that the namespace does not map. No two owners of it can be
  /// told apart.
  bool known(std::uint32_t id) const { return complete_ || id != overflow_; }
  /// Whether there is no id that the namespace does not map: then the overflow id is an id like any other.
  bool complete() const { return complete_; }
  std::uint32_t overflow() const { return overflow_; }
  /// Whether id 0 of the namespace around this one, root as a rule, is mapped, to whatever id.
  bool maps_root() const { return maps_root_; }
  static constexpr std::uint64_t kIds = 4294967295;  ///< that there are; -1 is none
  std::uint64_t mapped() const { return mapped_; }
  /// "/proc/self/uid_map maps 65536 of 4294967295 user ids".
  std::string describe() const;

 private:
  IdKind kind_;
  std::uint64_t mapped_ = 0;
  bool complete_ = false, maps_root_ = false;
  std::uint32_t overflow_ = 65534;
};

/// OK when a uid that the kernel reported is that of one user. kPermissionDenied names the map that does not
/// tell.
Status check_known_user(std::uint32_t uid);

}  // namespace mkernel::base
