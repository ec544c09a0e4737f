// What sessions make the daemon hold, counted three times: per session, per user, per node. Whatever is taken
// is taken with one call that checks every limit, and given back with the Charge that it returned.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "daemon/base/token_bucket.h"
#include "daemon/config/config.h"
#include "daemon/session/inspect.h"
#include "proto/abi/status.h"
#include "proto/ipc/packet.h"

namespace mkernel::session {

enum class Resource : std::size_t {
  kConnections,
  kSessions,
  kFds,
  kRegions,
  kPinnedBytes,  ///< of host memory
  kGpuBytes,
  kDaemonBytes,
  kChannels,
  kMappings,     ///< limited for the node alone
  kUnclosedFds,  ///< that a client sent and nobody wants, also counted as kFds; not limited, see
                 ///< check_unclosed()
};
inline constexpr std::size_t kResources = 10;

/// Above so many fds that wait to be closed a user's sockets are not read, and his connections are refused.
inline constexpr std::uint64_t kMaxUnclosedFds = 256;

/// An amount of every resource.
class Amounts {
 public:
  Amounts(std::initializer_list<std::pair<Resource, std::uint64_t>> amounts) {
    for (const auto& [resource, amount] : amounts) (*this)[resource] += amount;
  }
  std::uint64_t& operator[](Resource resource) { return amounts_[static_cast<std::size_t>(resource)]; }
  std::uint64_t operator[](Resource resource) const { return amounts_[static_cast<std::size_t>(resource)]; }

 private:
  std::array<std::uint64_t, kResources> amounts_{};
};

/// What somebody holds. Grows on the control thread alone and shrinks on any, so that whoever frees memory
/// gives back what it counted for.
class Ledger {
 public:
  std::uint64_t held(Resource resource) const {
    return held_[static_cast<std::size_t>(resource)].load(std::memory_order_relaxed);
  }
  void add(const Amounts& more);
  void subtract(const Amounts& less);

 private:
  std::array<std::atomic<std::uint64_t>, kResources> held_{};
};

/// Gives back what was taken when its last copy dies, on any thread.
using Charge = std::shared_ptr<const void>;

/// What this process and this kernel leave for sessions, whatever the configuration allows.
struct NodeBudget {
  std::uint64_t fds = 0, fd_limit = 0;  ///< RLIMIT_NOFILE less what is open and a reserve; the limit itself
  std::uint64_t mappings = 0, map_limit = 0;  ///< three quarters of vm.max_map_count; that itself
  /// Up to so many fds of sessions a packet may be received: beyond `fds` are those that wait to be closed.
  std::uint64_t packet_limit() const { return fds + ipc::kMaxPacketFds; }
  /// As of now. Beside the fds that this process has open already, an eighth of all (64 to 1,024) is kept for
  /// accepting, answering, peers and files, and room for two packets with as many fds as the kernel allows:
  /// one that a user sent whose fds cannot be closed, and the next one.
  static NodeBudget of_this_process();
};

/// A user with sessions or connections here.
struct User {
  User(std::uint32_t number, double messages_per_second)
      : uid(number), messages(messages_per_second, std::chrono::steady_clock::now()) {}

  const std::uint32_t uid;
  config::UserRights rights;  ///< of the process that connected last
  Ledger ledger;
  base::TokenBucket messages;
  std::uint64_t refusals_total = 0;  ///< requests and connections above a limit
};

/// One connection, and from its hello on one session. Control thread.
class Account {
 public:
  Account(std::shared_ptr<User> user, config::UserRights rights, double messages_per_second);

  const config::UserRights& rights() const { return rights_; }
  void set_rights(config::UserRights rights) { rights_ = std::move(rights); }
  User& user() const { return *user_; }
  const Ledger& ledger() const { return *ledger_; }
  base::TokenBucket& messages() { return messages_; }

 private:
  friend class Accounts;
  std::shared_ptr<User> user_;
  std::shared_ptr<Ledger> ledger_ = std::make_shared<Ledger>();
  config::UserRights rights_;  ///< by the groups of this client's process
  base::TokenBucket messages_;
};

/// All users of this daemon. Control thread.
class Accounts {
 public:
  Accounts(std::string node, const config::Limits& limits, config::Users users, const NodeBudget& budget);

  /// For what is asked from now on.
  void configure(const config::Limits& limits, config::Users users);

  Account open(std::uint32_t uid, const std::vector<std::uint32_t>& gids);
  /// The rights of an account under the present configuration.
  void refresh(Account& account, const std::vector<std::uint32_t>& gids) const;

  /// Takes all of it or nothing. Errors: kResourceExhausted, which names the resource, how much is held, the
  /// limit and the key that sets it.
  Result<Charge> take(const Account& account, const Amounts& more);
  /// Counts what is here already, whatever the limits say.
  Charge add(const Account& account, const Amounts& more) const;

  /// OK unless so many fds of this user wait to be closed that he may send no more. The text names him.
  static Status check_unclosed(const User& user);
  /// This process has room for the fds of one more packet, whatever is in it.
  bool room_for_packet() const { return node_ledger_->held(Resource::kFds) <= budget_.packet_limit(); }

  /// Whether a user may have one more of what all users of the node share, of which `used` are taken and
  /// `room` is all there is. The last quarter is for users who hold few: less than an eighth of their own
  /// limit. So two users cannot keep out a third. `mine`: what the user holds. kResourceExhausted names
  /// limits and numbers.
  Status check_shared(const Account& account, Resource resource, std::uint64_t mine, std::uint64_t used,
                      std::uint64_t room) const;

  const NodeBudget& budget() const { return budget_; }
  void set_budget(const NodeBudget& budget) { budget_ = budget; }
  /// Of [users.default].
  const config::UserLimits& standard() const { return config_.standard; }
  const Ledger& node() const { return *node_ledger_; }
  /// Users who hold something or did so a moment ago, by uid.
  const std::map<std::uint32_t, std::shared_ptr<User>>& users() const { return users_; }

 private:
  struct Limit {
    std::uint64_t most = 0;
    std::string key;  ///< "limits.max_fds", or what else sets it
  };
  Limit session_limit(Resource resource) const;
  Limit user_limit(const config::UserRights& rights, Resource resource) const;
  Limit node_limit(Resource resource) const;
  Status check(const Account& account, Resource resource, std::uint64_t more) const;

  const std::string node_;
  config::Limits limits_;
  config::Users config_;
  NodeBudget budget_;
  std::shared_ptr<Ledger> node_ledger_ = std::make_shared<Ledger>();
  std::map<std::uint32_t, std::shared_ptr<User>> users_;
};

/// What a user holds and may hold; groups and counters are the sessions' to tell.
UserSnapshot snapshot(const User& user);

/// Bytes of the daemon's own memory that a session's rings take; those of a group are in
/// dataplane/group_memory.h.
std::uint64_t session_memory_bytes(std::uint64_t segment_bytes, std::uint32_t rails);

}  // namespace mkernel::session
