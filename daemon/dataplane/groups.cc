#include "daemon/dataplane/groups.h"

#include <string>
#include <utility>

namespace mkernel::dataplane {

Group* GroupTable::find(const GroupKey& key) {
  const auto found = groups_.find(key);
  return found == groups_.end() ? nullptr : found->second.get();
}

Group& GroupTable::add(std::unique_ptr<Group> group) {
  return *groups_.emplace(group->port->key, std::move(group)).first->second;
}

void GroupTable::erase(Group& group) {
  for (auto& [key, other] : groups_) {
    for (Outbound& channel : other->outbound) {
      if (channel.neighbour == &group) channel.neighbour = nullptr;
    }
  }
  groups_.erase(GroupKey(group.port->key));
}

void FailureLog::note(Group& group, std::int32_t culprit, Status why) {
  if (std::exchange(group.failed, true)) return;
  failures_.push_back({group.port->key, culprit, std::move(why)});
}

Status place_put(const Group& group, std::uint32_t source, bool host_only, std::uint16_t region,
                 std::uint64_t offset, std::uint32_t length, transport::Target& target) {
  const memory::Region* place = region < group.regions.size() ? group.regions[region].get() : nullptr;
  const bool inside = place != nullptr && memory::in_bounds(offset, length, place->bytes);
  if (inside && !(host_only && place->kind != abi::RegionKind::kHostMemory)) {
    target = {place, offset};
    return {};
  }
  const std::string what = "group " + group.port->name + ": put from rank " + std::to_string(source) +
                           " into region " + std::to_string(region) + " of rank " +
                           std::to_string(group.port->rank) + " [" + std::to_string(offset) + ", +" +
                           std::to_string(length) + "): ";
  if (place == nullptr) return {StatusCode::kNotFound, what + "nothing is registered there"};
  if (!inside) {
    return {StatusCode::kOutOfRange, what + "it exceeds its " + std::to_string(place->bytes) + " bytes"};
  }
  return {StatusCode::kFailedPrecondition, what + "it is GPU memory; this path writes host memory only"};
}

}  // namespace mkernel::dataplane
