// The groups of one proxy by key, and what several parts do with them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "daemon/dataplane/channel_table.h"

namespace mkernel::dataplane {

/// Proxy thread only. A group that goes away is closed in slices: from take() to closed() nobody finds it,
/// and its key is not free yet.
class GroupTable {
 public:
  using Map = std::map<GroupKey, std::unique_ptr<Group>>;

  Group* find(const GroupKey& key);
  /// Null also when another group has the key now.
  Group* find(const GroupKey& key, std::uint64_t serial);
  /// Gives the group its serial number.
  Group& add(std::unique_ptr<Group> group);
  /// Takes the group out, also as the neighbour of others.
  std::unique_ptr<Group> take(Group& group);
  void closed(const GroupKey& key) { closing_.erase(key); }
  bool closing(const GroupKey& key) const { return closing_.contains(key); }
  /// The first group of the session; null when it has none.
  Group* first_of(SessionId session) const;
  const Map& all() const { return groups_; }

  /// The group of a rank of this node, as `group` puts to it: the one that has this group among its own
  /// ranks. Null when the rank has left.
  Group* neighbour(Group& group, std::uint32_t rank) {
    Group* const known = group.neighbours[rank];
    return known != nullptr ? known : find_neighbour(group, rank);
  }

 private:
  Group* find_neighbour(Group& group, std::uint32_t rank);

  Map groups_;
  std::set<GroupKey> closing_;
  std::uint64_t last_serial_ = 0;
};

/// A group that cannot go on. Parts that find out in the middle of a batch only note it; the rail acts on it
/// between batches, when nothing points into the tables.
struct GroupFailure {
  GroupKey key;
  std::int32_t culprit = -1;
  Status why;
};

class FailureLog {
 public:
  /// Marks the group failed and notes why; only the first reason counts.
  void note(Group& group, std::int32_t culprit, Status why);
  bool empty() const { return failures_.empty(); }
  std::vector<GroupFailure> take() { return std::exchange(failures_, {}); }

 private:
  std::vector<GroupFailure> failures_;
};

/// Where a put from `source` lands in the memory of the group's rank, checked against what is registered now.
/// Errors: kNotFound, kOutOfRange, kFailedPrecondition (GPU memory where only host memory can be written),
/// each naming both ranks, the region and its limit.
Status place_put(const Group& group, std::uint32_t source, bool host_only, std::uint16_t region,
                 std::uint64_t offset, std::uint32_t length, transport::Target& target);

}  // namespace mkernel::dataplane
