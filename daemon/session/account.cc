#include "daemon/session/account.h"

#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <system_error>

#include "daemon/dataplane/ports.h"

namespace mkernel::session {
namespace {

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t kDefaultMapLimit = 65530;  ///< of the kernel

const char* name_of(Resource resource) {
  switch (resource) {
    case Resource::kConnections: return "connections";
    case Resource::kSessions: return "sessions";
    case Resource::kFds: return "fds";
    case Resource::kRegions: return "regions";
    case Resource::kPinnedBytes: return "bytes of host memory";
    case Resource::kGpuBytes: return "bytes of GPU memory";
    case Resource::kDaemonBytes: return "bytes of daemon memory";
    case Resource::kChannels: return "channels";
    case Resource::kMappings: return "mappings";
    case Resource::kUnclosedFds: return "unclosed fds";
  }
  return "";
}

/// The charge itself: dies with the last copy.
struct Taken {
  Taken(std::vector<std::shared_ptr<Ledger>> from, const Amounts& what)
      : ledgers(std::move(from)), amounts(what) {
    for (const auto& ledger : ledgers) ledger->add(amounts);
  }
  ~Taken() {
    for (const auto& ledger : ledgers) ledger->subtract(amounts);
  }
  Taken(const Taken&) = delete;
  Taken& operator=(const Taken&) = delete;

  const std::vector<std::shared_ptr<Ledger>> ledgers;
  const Amounts amounts;
};

std::uint64_t open_fds() {
  std::error_code error;  // without /proc: none
  const std::filesystem::directory_iterator fds("/proc/self/fd", error);
  return error ? 0 : static_cast<std::uint64_t>(std::distance(begin(fds), end(fds)));
}

}  // namespace

void Ledger::add(const Amounts& more) {
  for (std::size_t i = 0; i < kResources; ++i) held_[i].fetch_add(more[static_cast<Resource>(i)]);
}

void Ledger::subtract(const Amounts& less) {
  for (std::size_t i = 0; i < kResources; ++i) held_[i].fetch_sub(less[static_cast<Resource>(i)]);
}

NodeBudget NodeBudget::of_this_process() {
  NodeBudget budget;
  rlimit files{};
  const bool known = ::getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur != RLIM_INFINITY;
  budget.fd_limit = known ? files.rlim_cur : kUnlimited;
  const std::uint64_t kept =
      open_fds() + std::clamp<std::uint64_t>(budget.fd_limit / 8, 64, 1024) + 2 * ipc::kMaxPacketFds;
  budget.fds = budget.fd_limit > kept ? budget.fd_limit - kept : 0;
  std::ifstream file("/proc/sys/vm/max_map_count");
  if (!(file >> budget.map_limit)) budget.map_limit = kDefaultMapLimit;
  budget.mappings = budget.map_limit / 4 * 3;
  return budget;
}

Account::Account(std::shared_ptr<User> user, config::UserRights rights, double messages_per_second)
    : user_(std::move(user)),
      rights_(std::move(rights)),
      messages_(messages_per_second, std::chrono::steady_clock::now()) {}

Accounts::Accounts(std::string node, const config::Limits& limits, config::Users users,
                   const NodeBudget& budget)
    : node_(std::move(node)), limits_(limits), config_(std::move(users)), budget_(budget) {}

void Accounts::configure(const config::Limits& limits, config::Users users) {
  limits_ = limits;
  config_ = std::move(users);
}

Account Accounts::open(std::uint32_t uid, const std::vector<std::uint32_t>& gids) {
  // Whoever holds nothing any more is forgotten here, where the table would grow.
  std::erase_if(users_, [uid](const auto& entry) {
    return entry.first != uid && entry.second.use_count() == 1 &&
           entry.second->messages.share(std::chrono::steady_clock::now()) >= 1;
  });
  config::UserRights rights = config::rights_of(config_, uid, gids);
  auto& user = users_[uid];
  if (user == nullptr) {
    user = std::make_shared<User>(uid, rights.limits.joins_per_second);
  }
  user->rights = rights;
  user->messages.set_rate(rights.limits.joins_per_second, std::chrono::steady_clock::now());
  return {user, std::move(rights), static_cast<double>(limits_.joins_per_second)};
}

void Accounts::refresh(Account& account, const std::vector<std::uint32_t>& gids) const {
  const auto now = std::chrono::steady_clock::now();
  account.set_rights(config::rights_of(config_, account.user().uid, gids));
  account.messages().set_rate(limits_.joins_per_second, now);
  account.user().rights = account.rights();
  account.user().messages.set_rate(account.rights().limits.joins_per_second, now);
}

Accounts::Limit Accounts::session_limit(Resource resource) const {
  switch (resource) {
    case Resource::kFds: return {limits_.max_fds, "limits.max_fds"};
    case Resource::kRegions: return {limits_.max_regions, "limits.max_regions"};
    case Resource::kPinnedBytes: return {limits_.pinned_limit(), "limits.max_pinned_bytes"};
    case Resource::kGpuBytes: return {limits_.max_gpu_bytes, "limits.max_gpu_bytes"};
    case Resource::kDaemonBytes: return {limits_.daemon_limit(), "limits.max_daemon_bytes"};
    case Resource::kChannels: return {limits_.max_channels, "limits.max_channels"};
    default: return {kUnlimited, ""};
  }
}

Accounts::Limit Accounts::user_limit(const config::UserRights& rights, Resource resource) const {
  const config::UserLimits& user = rights.limits;
  switch (resource) {
    case Resource::kConnections: return {user.max_connections, "max_connections"};
    case Resource::kSessions: return {user.max_sessions, "max_sessions"};
    case Resource::kFds: return {user.max_fds, "max_fds"};
    case Resource::kRegions: return {user.max_regions, "max_regions"};
    case Resource::kPinnedBytes: return {user.pinned_limit(), "max_pinned_bytes"};
    case Resource::kGpuBytes: return {user.max_gpu_bytes, "max_gpu_bytes"};
    case Resource::kDaemonBytes: return {user.daemon_limit(), "max_daemon_bytes"};
    case Resource::kChannels: return {user.max_channels, "max_channels"};
    case Resource::kMappings:
    case Resource::kUnclosedFds: break;
  }
  return {kUnlimited, ""};
}

Accounts::Limit Accounts::node_limit(Resource resource) const {
  if (resource == Resource::kFds) {
    return {budget_.fds, "what RLIMIT_NOFILE = " + std::to_string(budget_.fd_limit) + " leaves"};
  }
  if (resource == Resource::kMappings) {
    return {budget_.mappings, "what vm.max_map_count = " + std::to_string(budget_.map_limit) + " leaves"};
  }
  return {kUnlimited, ""};
}

Status Accounts::check(const Account& account, Resource resource, std::uint64_t more) const {
  const auto above = [&](std::uint64_t held, std::uint64_t most) {
    return more > most || held > most - more;
  };
  const auto refuse = [&](const std::string& whose, std::uint64_t held, const Limit& limit) {
    return Status(StatusCode::kResourceExhausted,
                  std::to_string(more) + " " + name_of(resource) + " on top of " + std::to_string(held) +
                      " of " + whose + " are above " + limit.key + " = " + std::to_string(limit.most));
  };
  const std::uint64_t mine = account.ledger().held(resource);
  if (Limit limit = session_limit(resource); above(mine, limit.most)) {
    return refuse("this session", mine, limit);
  }
  const std::uint64_t users = account.user().ledger.held(resource);
  if (Limit limit = user_limit(account.rights(), resource); above(users, limit.most)) {
    limit.key = account.rights().key(limit.key);
    return refuse("user " + std::to_string(account.user().uid), users, limit);
  }
  const std::uint64_t nodes = node_ledger_->held(resource);
  if (Limit limit = node_limit(resource); above(nodes, limit.most)) {
    return refuse("node " + node_, nodes, limit);
  }
  return {};
}

Status Accounts::check_shared(const Account& account, Resource resource, std::uint64_t mine,
                              std::uint64_t used, std::uint64_t room) const {
  const Limit own = user_limit(account.rights(), resource);
  const std::uint64_t few = std::max<std::uint64_t>(own.most / 8, 1), last = room / 4;
  if (used < (mine < few ? room : room - last)) return {};
  const std::string there = "node " + node_ + " has " + std::to_string(used) + " " + name_of(resource) +
                            " of " + std::to_string(room) +
                            " (by limits.max_sessions = " + std::to_string(limits_.max_sessions) + ")";
  if (used >= room) return {StatusCode::kResourceExhausted, there};
  return {StatusCode::kResourceExhausted,
          there + ", and the last " + std::to_string(last) + " are for users who hold fewer than " +
              std::to_string(few) + ", an eighth of " + account.rights().key(own.key) + ": user " +
              std::to_string(account.user().uid) + " holds " + std::to_string(mine)};
}

Result<Charge> Accounts::take(const Account& account, const Amounts& more) {
  for (std::size_t i = 0; i < kResources; ++i) {
    const auto resource = static_cast<Resource>(i);
    if (more[resource] == 0) continue;
    if (const Status refused = check(account, resource, more[resource]); !refused.ok()) {
      ++account.user().refusals_total;
      return refused;
    }
  }
  return add(account, more);
}

Charge Accounts::add(const Account& account, const Amounts& more) const {
  // The user outlives his ledger's last charge.
  const std::shared_ptr<Ledger> of_user(account.user_, &account.user_->ledger);
  return Charge(std::make_shared<Taken>(
      std::vector<std::shared_ptr<Ledger>>{account.ledger_, of_user, node_ledger_}, more));
}

Status Accounts::check_unclosed(const User& user) {
  const std::uint64_t waiting = user.ledger.held(Resource::kUnclosedFds);
  if (waiting <= kMaxUnclosedFds) return {};
  return {StatusCode::kResourceExhausted,
          "user " + std::to_string(user.uid) + " has sent " + std::to_string(waiting) +
              " fds that the daemon could not close yet, at most " + std::to_string(kMaxUnclosedFds) +
              " may wait: sockets that linger, or files whose server does not answer"};
}

std::uint64_t session_memory_bytes(std::uint64_t segment_bytes, std::uint32_t rails) {
  return segment_bytes + rails * sizeof(dataplane::Counters);
}

}  // namespace mkernel::session
