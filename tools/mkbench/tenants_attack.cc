#include "tools/mkbench/tenants_attack.h"

#include <mkernel/client.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "proto/ipc/fd.h"
#include "tools/mkbench/tenants_bystander.h"

namespace mkernel::bench {
namespace {

std::string attack_name(const std::string& what, std::uint64_t number) {
  return what + "-" + std::to_string(::getpid()) + "-" + std::to_string(number);
}

/// Puts of `bytes` on pairs of sessions that ask for the greatest weight.
class PutFlood final : public Attack {
 public:
  PutFlood(const AttackOptions& options, std::uint32_t bytes, std::size_t pairs)
      : options_(options), bytes_(bytes), pairs_(pairs) {}

  Status round() override {
    while (tenants_.size() < pairs_) {
      auto made = TenantPair::make({.daemon = options_.daemon,
                                    .peer_daemon = options_.peer_daemon,
                                    .name = attack_name("flood", tenants_.size()),
                                    .weight = bytes_ < 4096 ? 64U : 1U,
                                    .buffer_bytes = std::uint64_t{bytes_} * kSlots});
      if (!made.ok() && tenants_.empty()) return made.status();
      if (!made.ok()) pairs_ = tenants_.size();  // what the limits leave of them
      if (made.ok()) tenants_.push_back(std::move(made).value());
    }
    for (TenantPair& tenant : tenants_) {
      for (std::uint64_t slot = 0; slot < kSlots; ++slot) {
        auto number = tenant.sender().put(1, tenant.put_lane(), tenant.source(), slot * bytes_,
                                          tenant.source().region(), slot * bytes_, bytes_);
        if (!number.ok()) return fail(number.status());
      }
    }
    return {};
  }

 private:
  static constexpr std::uint64_t kSlots = 64;

  Status fail(Status why) {
    tenants_.clear();
    return why;
  }

  const AttackOptions options_;
  const std::uint32_t bytes_;
  std::size_t pairs_;
  std::vector<TenantPair> tenants_;
};

/// Joins of groups that never become whole, many at a time: each is told to every peer, and taken back.
class JoinFlood final : public Attack {
 public:
  explicit JoinFlood(const AttackOptions& options) : options_(options) {}

  Status round() override {
    if (!session_) {
      auto connected = Session::connect({.socket = options_.daemon, .name = "join flood"});
      if (!connected.ok()) return connected.status();
      session_.emplace(std::move(connected).value());
    }
    std::vector<std::jthread> joiners;
    for (int i = 0; i < kAtATime; ++i)
      joiners.emplace_back([this] {
        for (int j = 0; j < kEach; ++j)
          (void)session_->join({.name = attack_name("join", next_++),
                                .world_size = 2,
                                .rank = 0,
                                .timeout = std::chrono::milliseconds(1)});
      });
    joiners.clear();
    Status status = session_->status();
    if (!status.ok()) session_.reset();
    return status;
  }

 private:
  static constexpr int kAtATime = 60, kEach = 10;

  const AttackOptions options_;
  std::optional<Session> session_;
  std::atomic<std::uint64_t> next_{0};
};

/// Groups of many ranks, all on one node, that come and go.
class LeaveGroups final : public Attack {
 public:
  explicit LeaveGroups(const AttackOptions& options) : options_(options) {}

  Status round() override {
    const std::string name = attack_name("large", next_++);
    std::vector<std::optional<Session>> sessions((options_.ranks + kRanksEach - 1) / kRanksEach);
    for (auto& session : sessions) {
      auto connected = Session::connect({.socket = options_.daemon, .name = "large groups"});
      if (!connected.ok()) return connected.status();
      session.emplace(std::move(connected).value());
    }
    std::vector<std::optional<Group>> groups(options_.ranks);
    std::vector<Status> failed(options_.ranks);
    std::vector<std::jthread> joiners;
    for (std::uint32_t rank = 0; rank < options_.ranks; ++rank)
      joiners.emplace_back([&, rank] {
        auto joined = sessions[rank / kRanksEach]->join({.name = name,
                                                         .world_size = options_.ranks,
                                                         .rank = rank,
                                                         .lanes = 64,
                                                         .region_capacity = 1,
                                                         .timeout = std::chrono::seconds(5)});
        failed[rank] = joined.status();
        if (joined.ok()) groups[rank].emplace(std::move(joined).value());
      });
    joiners.clear();
    for (const Status& status : failed) MK_RETURN_IF_ERROR(status);
    return {};  // all leave here, at once
  }

 private:
  static constexpr std::uint32_t kRanksEach = 32;

  const AttackOptions options_;
  std::uint64_t next_ = 0;
};

/// As many sessions as the daemon lets in within two seconds, held for half a second.
class Sessions final : public Attack {
 public:
  explicit Sessions(const AttackOptions& options) : options_(options) {}

  Status round() override {
    std::vector<Session> held;
    Status refused;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    while (refused.ok() && held.size() < kMost && std::chrono::steady_clock::now() < end) {
      auto connected = Session::connect(
          {.socket = options_.daemon, .name = "sessions", .weight = 64, .timeout = std::chrono::seconds(2)});
      refused = connected.status();
      if (connected.ok()) held.push_back(std::move(connected).value());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    return refused;
  }

 private:
  static constexpr std::size_t kMost = 4000;

  const AttackOptions options_;
};

/// Connections that never say a word, to the session socket and to `listeners`; closed ones are made anew.
class Silent final : public Attack {
 public:
  explicit Silent(const AttackOptions& options) : options_(options) {}

  Status round() override {
    std::erase_if(held_, [](const ipc::UniqueFd& fd) {
      pollfd seen{fd.get(), POLLIN, 0};
      return ::poll(&seen, 1, 0) > 0;  // a silent one has nothing to read but its end
    });
    Status refused;
    while (refused.ok() && held_.size() < options_.connections) {
      const std::size_t kinds = 1 + options_.listeners.size();
      const std::size_t kind = next_++ % kinds;
      auto made = kind == 0 ? to_daemon() : to_listener(options_.listeners[kind - 1]);
      refused = made.status();
      if (made.ok()) held_.push_back(std::move(made).value());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return refused;
  }

 private:
  static Status why(const std::string& where) {
    return {StatusCode::kUnavailable, "connecting to " + where + ": " + std::strerror(errno)};
  }

  Result<ipc::UniqueFd> to_daemon() const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    options_.daemon.copy(address.sun_path, sizeof(address.sun_path) - 1);
    ipc::UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd.valid() || ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
      return why(options_.daemon);
    return fd;
  }

  static Result<ipc::UniqueFd> to_listener(const std::string& where) {
    const std::size_t colon = where.rfind(':');
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (colon == std::string::npos ||
        ::getaddrinfo(where.substr(0, colon).c_str(), where.substr(colon + 1).c_str(), &hints, &found) != 0)
      return Status(StatusCode::kInvalidArgument, where + " is not host:port");
    ipc::UniqueFd fd(::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const bool begun =
        fd.valid() && (::connect(fd.get(), found->ai_addr, found->ai_addrlen) == 0 || errno == EINPROGRESS);
    ::freeaddrinfo(found);
    if (!begun) return why(where);
    return fd;
  }

  const AttackOptions options_;
  std::vector<ipc::UniqueFd> held_;
  std::size_t next_ = 0;
};

template <typename Kind>
std::unique_ptr<Attack> make_attack(const AttackOptions& options) {
  return std::make_unique<Kind>(options);
}

}  // namespace

const std::vector<AttackKind>& attack_kinds() {
  static const std::vector<AttackKind> kinds = {
      {"rival", "an honest tenant with the same traffic: what a fair share is",
       [](const AttackOptions& o) -> std::unique_ptr<Attack> {
         return std::make_unique<PutFlood>(o, 1 << 20, 1);
       }},
      {"tiny_puts", "puts of 8 bytes from four pairs of sessions",
       [](const AttackOptions& o) -> std::unique_ptr<Attack> { return std::make_unique<PutFlood>(o, 8, 4); }},
      {"join_flood", "60 joins at a time of groups that never become whole", make_attack<JoinFlood>},
      {"leave_groups", "a large group of one node that comes and goes", make_attack<LeaveGroups>},
      {"leave_put", "a group is failed and left in the middle of a large put", make_leave_put},
      {"kill", "a client with much memory is killed, again and again", make_kill},
      {"regions", "regions until the daemon takes no more", make_regions},
      {"sessions", "sessions until the daemon takes no more", make_attack<Sessions>},
      {"silent", "connections that never say a word", make_attack<Silent>},
      {"linger_packet", "a packet with sockets whose close waits", make_linger_packet},
      {"linger_regions", "sockets whose close waits, registered as memory", make_linger_regions},
      {"unread", "replies with descriptors, which nobody reads", make_unread},
      {"holes", "memory under puts that loses its pages", make_holes},
      {"locked", "memory whose file its writers keep locked", make_locked},
      {"busy_group", "a large group of one node that exchanges and registers without a pause",
       make_busy_group},
  };
  return kinds;
}

const AttackKind* attack_of(const std::string& name) {
  for (const AttackKind& kind : attack_kinds())
    if (name == kind.name) return &kind;
  return nullptr;
}

}  // namespace mkernel::bench
