// The lists that mkctl asks for, in parts that take a millisecond or so each.
#include <algorithm>

#include "daemon/session/session.h"
#include "daemon/session/session_group.h"
#include "daemon/session/session_server.h"

namespace mkernel::session {
namespace {

/// What a part may cost. A row of a channel costs one, about half a microsecond with its message.
constexpr std::size_t kPart = 2048;

/// Takes `cost` off `left`, 0 at the least.
void spend(std::size_t& left, std::size_t cost) {
  left -= std::min(left, cost);
}

}  // namespace

Counts SessionServer::counts() const {
  Counts sum{introduced_count(), 0};
  for (const auto& [id, session] : sessions_) sum.groups += session->groups().size();
  return sum;
}

std::vector<SessionSnapshot> SessionServer::sessions(ListCursor& at) const {
  std::vector<SessionSnapshot> seen;
  std::size_t left = kPart;
  for (auto session = sessions_.lower_bound(at.session); session != sessions_.end(); ++session) {
    at.session = session->first;
    if (left == 0) return seen;
    spend(left, 4 + session->second->groups().size());
    if (session->second->introduced()) seen.push_back(session->second->snapshot());
  }
  at.end = true;
  return seen;
}

/// Calls list(group, row, left) for each group: it lists the group's rows from `row` on, which it advances,
/// while `left` allows, and returns whether the group is through.
template <typename ListGroup>
void SessionServer::list_groups(ListCursor& at, const ListGroup& list) const {
  std::size_t left = kPart;
  for (auto session = sessions_.lower_bound(at.session); session != sessions_.end(); ++session) {
    if (session->first != at.session) at = {session->first, 0, 0, false};
    if (left == 0) return;
    spend(left, 1);
    const auto& groups = session->second->groups();
    for (auto group = groups.begin(); group != groups.end(); ++group) {
      if (group->first < at.group) continue;
      if (group->first != at.group) at = {session->first, group->first, 0, false};
      if (left == 0) return;
      spend(left, 1);
      if (!list(*group->second, at.row, left)) return;
      at = {session->first, std::uint64_t{group->first} + 1, 0, false};
    }
  }
  at.end = true;
}

std::vector<GroupSnapshot> SessionServer::groups(ListCursor& at) const {
  std::vector<GroupSnapshot> seen;
  list_groups(at, [&seen](const SessionGroup& group, std::uint64_t&, std::size_t& left) {
    seen.push_back(group.snapshot());
    spend(left, 4 + seen.back().world_size / 4);  // it counts the nodes of all ranks
    return true;
  });
  return seen;
}

std::vector<RegionSnapshot> SessionServer::regions(ListCursor& at) const {
  std::vector<RegionSnapshot> seen;
  list_groups(at, [&seen](const SessionGroup& group, std::uint64_t& row, std::size_t& left) {
    return group.list_regions(row, left, seen);
  });
  return seen;
}

std::vector<ChannelSnapshot> SessionServer::channels(bool all, ListCursor& at) const {
  std::vector<ChannelSnapshot> seen;
  list_groups(at, [&seen, all](const SessionGroup& group, std::uint64_t& row, std::size_t& left) {
    return group.list_channels(all, row, left, seen);
  });
  return seen;
}

}  // namespace mkernel::session
