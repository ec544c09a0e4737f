// One rank that some session, here or on a peer, wants to be or is; the group that it belongs to; and the
// rules by which two ranks of one group exclude each other. Plain values, no clock, no peers.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "daemon/session/group_coordinator.h"
#include "mkernel/v1/peer.pb.h"
#include "proto/abi/status.h"

namespace mkernel::cluster {

/// In the place of a PeerId: this node. PeerLinks numbers peers from 1.
inline constexpr transport::PeerId kThisNode = 0;

struct MemberId {
  transport::PeerId peer = kThisNode;
  dataplane::GroupKey key;
  friend auto operator<=>(const MemberId&, const MemberId&) = default;
};

/// What a group is known by. Groups that have one name and different owners are different groups: neither can
/// keep the other from forming.
struct GroupId {
  std::string name;
  std::string
      owner;  ///< the hash of the join secret, which has 32 bytes; without one the uid in decimal digits
  friend auto operator<=>(const GroupId&, const GroupId&) = default;
};

GroupId group_id(std::string name, std::uint32_t uid, const std::string& secret_hash);

struct Member {
  MemberId id;
  std::string node;
  std::uint64_t boot_id = 0;
  GroupId group;
  std::uint32_t world_size = 0, rank = 0, lanes = 0, region_capacity = 0;
  std::uint32_t rails = 0;  ///< session::JoinRequest::rails
  std::uint32_t uid = 0;
  std::string secret_hash;  ///< session::JoinRequest::secret_hash
  std::int64_t pid = 0;
  std::string client_name;
  std::int64_t since_unix_ms = 0;
  bool confirmed = false;      ///< every peer of its node has accepted it: its rank is its own
  std::uint64_t instance = 0;  ///< the group that it is part of; 0 while it waits
  bool failed = false;         ///< that group has failed; its owner will say that it is gone

  bool local() const { return id.peer == kThisNode; }
  bool waiting() const { return instance == 0 && !failed; }
  /// `rank 1 on node b (pid 77, client "train")`.
  std::string describe() const;
};

Member member_of(const session::JoinRequest& request, const std::string& node, std::uint64_t boot_id,
                 std::int64_t now_unix_ms);

/// `joined` as a member, or what is wrong with it: it came over a wire.
Result<Member> member_of(const v1::MemberJoined& joined, transport::PeerId peer, const std::string& node,
                         std::uint64_t boot_id);

v1::MemberJoined joined_message(const Member& member);

/// Why `newcomer` cannot be beside `holder`, in words for the newcomer; nothing when it can. Both belong to
/// one group.
std::optional<Status> conflict(const Member& holder, const Member& newcomer);

/// OK when the members of each node belong to one user. Without a join secret they do so in any case.
Status check_users(const std::vector<Member>& members);

/// Of two that exclude each other and neither knew of the other, the one that stays. The same answer on every
/// node.
bool outranks(const Member& a, const Member& b);

/// OK when every node holds the same number of ranks. `members` by rank.
Status check_balance(const std::vector<Member>& members);

/// The same on every node for the same members, and never 0. `members` by rank.
std::uint64_t instance_of(const std::vector<Member>& members);

/// "rank 1", "ranks 0, 4-7 and 9": short however many there are.
std::string name_ranks(const std::set<std::uint32_t>& ranks);

}  // namespace mkernel::cluster
