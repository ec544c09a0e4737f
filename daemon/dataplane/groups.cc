#include "daemon/dataplane/groups.h"

#include <string>
#include <utility>

namespace mkernel::dataplane {

Group* GroupTable::find(const GroupKey& key) {
  const auto found = groups_.find(key);
  return found == groups_.end() ? nullptr : found->second.get();
}

Group* GroupTable::find(const GroupKey& key, std::uint64_t serial) {
  Group* const group = find(key);
  return group != nullptr && group->serial == serial ? group : nullptr;
}

Group& GroupTable::add(std::unique_ptr<Group> group) {
  group->serial = ++last_serial_;
  return *groups_.emplace(group->port->key, std::move(group)).first->second;
}

Group* GroupTable::find_neighbour(Group& group, std::uint32_t rank) {
  Group*& known = group.neighbours[rank];
  const GroupPort& port = *group.port;
  if (rank == port.rank) return known = &group;
  Group* const found = find(port.ranks[rank].local_key);
  if (found == nullptr || found->port->rank != rank || found->port->world_size != port.world_size ||
      found->port->lanes != port.lanes) {
    return nullptr;
  }
  // Only who knows this group as a neighbour takes the pointer back when it goes away.
  const PeerRank& self = found->port->ranks[port.rank];
  return self.local && self.local_key == port.key ? known = found : nullptr;
}

std::unique_ptr<Group> GroupTable::take(Group& group) {
  const GroupPort& port = *group.port;
  for (const PeerRank& rank : port.ranks) {
    if (!rank.local) continue;
    Group* const other = find(rank.local_key);
    if (other == nullptr || port.rank >= other->neighbours.size()) continue;
    Group*& pointer = other->neighbours[port.rank];
    if (pointer == &group) pointer = nullptr;
  }
  auto node = groups_.extract(port.key);
  closing_.insert(port.key);
  return std::move(node.mapped());
}

Group* GroupTable::first_of(SessionId session) const {
  const auto found = groups_.lower_bound({session, 0});
  return found != groups_.end() && found->first.session == session ? found->second.get() : nullptr;
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
