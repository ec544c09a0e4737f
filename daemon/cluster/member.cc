#include "daemon/cluster/member.h"

#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include "daemon/base/printable.h"

namespace mkernel::cluster {
namespace {

constexpr std::size_t kHashBytes = 32;

std::string number(std::uint64_t value) {
  return std::to_string(value);
}

Status bad(const std::string& field, std::uint64_t value, const std::string& limit) {
  return {StatusCode::kInvalidArgument,
          "member_joined: " + field + " = " + number(value) + ", allowed are " + limit};
}

/// It will stand in the logs and errors of this node.
Status check_text(const std::string& field, const std::string& text) {
  const auto odd = base::first_unprintable(text);
  if (!odd) return {};
  return {StatusCode::kInvalidArgument, "member_joined: " + field + " holds byte " +
                                            number(static_cast<unsigned char>(text[*odd])) + " at position " +
                                            number(*odd) + ", allowed is printable ASCII"};
}

/// FNV-1a, then a mix so that near inputs give far results.
class Hash {
 public:
  void add(std::string_view bytes) {
    for (const char c : bytes) step(static_cast<unsigned char>(c));
    step(0);
  }
  void add(std::uint64_t value) {
    for (int shift = 0; shift < 64; shift += 8) step((value >> shift) & 0xff);
  }
  std::uint64_t value() const {
    std::uint64_t h = state_;
    h = (h ^ (h >> 33)) * 0xff51afd7ed558ccdULL;
    h = (h ^ (h >> 33)) * 0xc4ceb9fe1a85ec53ULL;
    return h ^ (h >> 33);
  }

 private:
  void step(std::uint64_t byte) { state_ = (state_ ^ byte) * 0x100000001b3ULL; }
  std::uint64_t state_ = 0xcbf29ce484222325ULL;
};

/// The two share a join secret and a node, and belong to different users: memory of one node is one user's.
std::optional<Status> other_user(const Member& holder, const Member& newcomer) {
  const bool same_node = holder.node == newcomer.node && holder.boot_id == newcomer.boot_id;
  if (!same_node || holder.uid == newcomer.uid) return std::nullopt;
  return Status(StatusCode::kPermissionDenied,
                "group \"" + newcomer.group.name + "\": rank " + number(newcomer.rank) + " belongs to user " +
                    number(newcomer.uid) + " and rank " + number(holder.rank) + " to user " +
                    number(holder.uid) + ", both on node " + newcomer.node +
                    ": ranks of one node belong to one user, also with a join secret");
}

}  // namespace

GroupId group_id(std::string name, std::uint32_t uid, const std::string& secret_hash) {
  return {std::move(name), secret_hash.empty() ? number(uid) : secret_hash};
}

std::string Member::describe() const {
  return "rank " + number(rank) + " on node " + node + " (pid " + std::to_string(pid) + ", client \"" +
         client_name + "\")";
}

Member member_of(const session::JoinRequest& request, const std::string& node, std::uint64_t boot_id,
                 std::int64_t now_unix_ms) {
  Member member;
  member.id = {kThisNode, request.key};
  member.node = node;
  member.boot_id = boot_id;
  member.group = group_id(request.name, request.uid, request.secret_hash);
  member.world_size = request.world_size;
  member.rank = request.rank;
  member.lanes = request.lanes;
  member.region_capacity = request.region_capacity;
  member.rails = request.rails;
  member.uid = request.uid;
  member.secret_hash = request.secret_hash;
  member.pid = request.pid;
  member.client_name = request.client_name;
  member.since_unix_ms = now_unix_ms;
  return member;
}

Result<Member> member_of(const v1::MemberJoined& joined, transport::PeerId peer, const std::string& node,
                         std::uint64_t boot_id) {
  if (joined.group().empty() || joined.group().size() >= abi::kNameBytes) {
    return bad("bytes of the group name", joined.group().size(), "1 to " + number(abi::kNameBytes - 1));
  }
  MK_RETURN_IF_ERROR(check_text("group name", joined.group()));
  MK_RETURN_IF_ERROR(check_text("client name", joined.client_name()));
  if (joined.world_size() == 0 || joined.world_size() > abi::kMaxWorldSize) {
    return bad("world_size", joined.world_size(), "1 to " + number(abi::kMaxWorldSize));
  }
  if (joined.rank() >= joined.world_size()) {
    return bad("rank", joined.rank(), "0 to " + number(joined.world_size() - 1));
  }
  if (joined.lanes() == 0 || joined.lanes() > abi::kMaxLanes) {
    return bad("lanes", joined.lanes(), "1 to " + number(abi::kMaxLanes));
  }
  if (joined.region_capacity() > abi::kMaxRegions) {
    return bad("region_capacity", joined.region_capacity(), "0 to " + number(abi::kMaxRegions));
  }
  if (!joined.secret_hash().empty() && joined.secret_hash().size() != kHashBytes) {
    return bad("bytes of the secret's hash", joined.secret_hash().size(), "0 and " + number(kHashBytes));
  }
  Member member;
  member.id = {peer, {joined.session(), joined.handle()}};
  member.node = node;
  member.boot_id = boot_id;
  member.group = group_id(joined.group(), joined.uid(), joined.secret_hash());
  member.world_size = joined.world_size();
  member.rank = joined.rank();
  member.lanes = joined.lanes();
  member.region_capacity = joined.region_capacity();
  member.rails = joined.rails();
  member.uid = joined.uid();
  member.secret_hash = joined.secret_hash();
  member.pid = joined.pid();
  member.client_name = joined.client_name().substr(0, abi::kNameBytes);
  member.since_unix_ms = joined.since_unix_ms();
  member.confirmed = joined.confirmed();
  member.instance = joined.instance();
  return member;
}

v1::MemberJoined joined_message(const Member& member) {
  v1::MemberJoined joined;
  joined.set_session(member.id.key.session);
  joined.set_handle(member.id.key.handle);
  joined.set_group(member.group.name);
  joined.set_world_size(member.world_size);
  joined.set_rank(member.rank);
  joined.set_lanes(member.lanes);
  joined.set_region_capacity(member.region_capacity);
  joined.set_rails(member.rails);
  joined.set_uid(member.uid);
  joined.set_secret_hash(member.secret_hash);
  joined.set_pid(member.pid);
  joined.set_client_name(member.client_name);
  joined.set_since_unix_ms(member.since_unix_ms);
  joined.set_confirmed(member.confirmed);
  joined.set_instance(member.instance);
  return joined;
}

std::optional<Status> conflict(const Member& holder, const Member& newcomer) {
  if (holder.failed || newcomer.failed) return std::nullopt;
  // Two groups of one name and owner can both be formed only where two halves of a cluster did not see each
  // other.
  const bool both_formed = !holder.waiting() && !newcomer.waiting();
  if (both_formed) return std::nullopt;
  if (auto refusal = other_user(holder, newcomer)) return refusal;
  const std::string group = "group \"" + newcomer.group.name + "\": ";
  if (holder.waiting() && newcomer.waiting()) {
    const auto differs = [&](const std::string& what, std::uint32_t theirs, std::uint32_t mine) {
      return Status(StatusCode::kInvalidArgument, group + what + " " + number(mine) + " of " +
                                                      newcomer.describe() + " differs from " + what + " " +
                                                      number(theirs) + " of " + holder.describe());
    };
    if (holder.world_size != newcomer.world_size) {
      return differs("world size", holder.world_size, newcomer.world_size);
    }
    if (holder.lanes != newcomer.lanes) return differs("lanes", holder.lanes, newcomer.lanes);
    if (holder.region_capacity != newcomer.region_capacity) {
      return differs("region capacity", holder.region_capacity, newcomer.region_capacity);
    }
  }
  if (holder.rank != newcomer.rank) return std::nullopt;
  return Status(StatusCode::kAlreadyExists,
                group + "rank " + number(newcomer.rank) + " is held by pid " + std::to_string(holder.pid) +
                    " on node " + holder.node + " (client \"" + holder.client_name + "\"" +
                    (holder.waiting() ? ", which waits for the other ranks)" : ", in a formed group)"));
}

Status check_users(const std::vector<Member>& members) {
  std::map<std::pair<std::string, std::uint64_t>, const Member*> nodes;
  for (const Member& member : members) {
    const Member& first_here = *nodes.try_emplace({member.node, member.boot_id}, &member).first->second;
    if (auto refusal = other_user(first_here, member)) return *refusal;
  }
  return {};
}

bool outranks(const Member& a, const Member& b) {
  if (a.waiting() != b.waiting()) return !a.waiting();
  const auto order = [](const Member& m) {
    return std::tie(m.since_unix_ms, m.node, m.boot_id, m.id.key.session, m.id.key.handle);
  };
  return order(a) < order(b);
}

Status check_balance(const std::vector<Member>& members) {
  std::map<std::string, std::set<std::uint32_t>> nodes;
  for (const Member& member : members) nodes[member.node].insert(member.rank);
  const auto& first = *nodes.begin();
  for (const auto& other : nodes) {
    if (other.second.size() == first.second.size()) continue;
    return {StatusCode::kInvalidArgument, "group \"" + members.front().group.name + "\": node " +
                                              first.first + " has " + name_ranks(first.second) + ", node " +
                                              other.first + " has " + name_ranks(other.second) +
                                              "; every node needs the same number of ranks"};
  }
  return {};
}

std::uint64_t instance_of(const std::vector<Member>& members) {
  Hash hash;
  hash.add(members.front().group.name);
  for (const Member& member : members) {
    hash.add(std::uint64_t{member.rank});
    hash.add(member.boot_id);
    hash.add(member.id.key.session);
    hash.add(std::uint64_t{member.id.key.handle});
  }
  return hash.value() == 0 ? 1 : hash.value();
}

std::string name_ranks(const std::set<std::uint32_t>& ranks) {
  constexpr int kRunsShown = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  int runs = 0;
  for (auto at = ranks.begin(); at != ranks.end();) {
    const std::uint32_t first = *at;
    std::uint32_t last = first;
    while (++at != ranks.end() && *at == last + 1) ++last;
    if (runs++ > 0) text += ", ";
    if (runs > kRunsShown) return text + "... (" + number(ranks.size()) + " in all)";
    text += number(first);
    if (last == first + 1) text += ", " + number(last);
    if (last > first + 1) text += "-" + number(last);
  }
  return text;
}

}  // namespace mkernel::cluster
