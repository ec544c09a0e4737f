#include "daemon/base/id_map.h"

#include <fstream>
#include <iterator>
#include <sstream>

namespace mkernel::base {
namespace {

std::string text_of(const std::string& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string map_file(IdKind kind) {
  return kind == IdKind::kUser ? "/proc/self/uid_map" : "/proc/self/gid_map";
}

}  // namespace

const IdMap& IdMap::of_this_process(IdKind kind) {
  static const IdMap users(IdKind::kUser, text_of(map_file(IdKind::kUser)),
                           text_of("/proc/sys/kernel/overflowuid"));
  static const IdMap groups(IdKind::kGroup, text_of(map_file(IdKind::kGroup)),
                            text_of("/proc/sys/kernel/overflowgid"));
  return kind == IdKind::kUser ? users : groups;
}

IdMap::IdMap(IdKind kind, const std::string& map, const std::string& overflow) : kind_(kind) {
  std::istringstream lines(map);
  std::uint64_t inside = 0, outside = 0, count = 0;
  while (lines >> inside >> outside >> count) {
    mapped_ += count;  // the kernel takes no lines that overlap
    maps_root_ = maps_root_ || outside == 0;
  }
  complete_ = mapped_ >= kIds;
  std::istringstream(overflow) >> overflow_;
}

std::string IdMap::describe() const {
  return map_file(kind_) + " maps " + std::to_string(mapped_) + " of " + std::to_string(kIds) +
         (kind_ == IdKind::kUser ? " user ids" : " group ids");
}

Status check_known_user(std::uint32_t uid) {
  const IdMap& users = IdMap::of_this_process(IdKind::kUser);
  if (users.known(uid)) return {};
  return {
      StatusCode::kPermissionDenied,
      "uid " + std::to_string(uid) +
          " stands for every user that the user namespace of this daemon does not map: " + users.describe()};
}

}  // namespace mkernel::base
