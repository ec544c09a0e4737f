// Attacks with objects that keep waiting whoever touches them: sockets that linger, memory with holes, files
// that are locked, replies that nobody reads; and a group that always has something to tell.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "tools/mkbench/tenants_attack.h"
#include "tools/mkbench/tenants_bystander.h"
#include "tools/mkbench/tenants_session.h"

namespace mkernel::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kRound{1};
constexpr std::uint64_t kPage = 4096;

std::string own_name(const std::string& what, std::uint64_t number) {
  return what + "-" + std::to_string(::getpid()) + "-" + std::to_string(number);
}

Status failed(const std::string& what) {
  return {StatusCode::kUnavailable, what + ": " + std::strerror(errno)};
}

/// Shared memory whose pages are there.
Result<ipc::UniqueFd> written_memory(const std::string& label, std::uint64_t bytes) {
  auto memory = ipc::create_shared_memory(label, bytes);
  if (!memory.ok()) return memory.status();
  const std::vector<char> data(bytes);
  if (::pwrite(memory->get(), data.data(), data.size(), 0) != static_cast<ssize_t>(bytes))
    return failed("writing " + std::to_string(bytes) + " bytes of memory");
  return memory;
}

/// Sockets with data that nobody reads, whose last close waits for two seconds.
class Lingering {
 public:
  static Result<Lingering> make(int count) {
    Lingering made;
    made.listener_ = ipc::UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    const int small = 4096;
    ::setsockopt(made.listener_.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    if (::bind(made.listener_.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        ::listen(made.listener_.get(), count) != 0 ||
        ::getsockname(made.listener_.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
      return failed("listening");
    static const std::vector<char> data(1 << 16);
    for (int i = 0; i < count; ++i) {
      ipc::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) return failed("connecting");
      while (::send(fd.get(), data.data(), data.size(), MSG_DONTWAIT) > 0) {
      }
      const linger wait{1, 2};
      ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &wait, sizeof(wait));
      made.sockets_.push_back(fd.get());
      made.owned_.push_back(std::move(fd));
    }
    return made;
  }
  std::span<const int> sockets() const { return sockets_; }
  /// The references that were sent are the last ones then. A process that is killed does not wait for what
  /// lingers, so the last one of this side is such a process's: the daemon may have closed its own already.
  void let_go() {
    const pid_t last = ::fork();  // no thread runs in this process, and no session of the library lives in it
    if (last == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (;;) ::pause();
    }
    owned_.clear();
    if (last < 0) return;
    ::kill(last, SIGKILL);
    ::waitpid(last, nullptr, 0);
  }

 private:
  ipc::UniqueFd listener_;
  std::vector<ipc::UniqueFd> owned_;
  std::vector<int> sockets_;
};

/// One packet with 200 sockets that linger, which lies unread while the session has joined too much.
class LingerPacket final : public Attack {
 public:
  explicit LingerPacket(const AttackOptions& options) : options_(options) {}

  Status round() override {
    auto session = RawSession::connect(options_.daemon, "linger");
    if (!session.ok()) return session.status();
    auto sockets = Lingering::make(200);
    if (!sockets.ok()) return sockets.status();
    for (int burst = 0; burst < 3; ++burst) {
      for (int i = 0; i < kJoins; ++i)
        MK_RETURN_IF_ERROR(
            session->start_join({.name = own_name("linger", next_++), .world_size = 2, .timeout_ms = 1}));
      for (int i = 0; i < (burst < 2 ? kJoins : 0); ++i) static_cast<void>(session->receive());
    }
    MK_RETURN_IF_ERROR(session->send(abi::MessageType::kFailGroup, abi::LeaveGroup{}, sockets->sockets()));
    sockets->let_go();
    std::this_thread::sleep_for(kRound);
    return session->receive();
  }

 private:
  static constexpr int kJoins = 60;

  const AttackOptions options_;
  std::uint64_t next_ = 0;
};

/// Sockets that linger, registered as memory.
class LingerRegions final : public Attack {
 public:
  explicit LingerRegions(const AttackOptions& options) : options_(options) {}

  Status round() override {
    auto session = RawSession::connect(options_.daemon, "linger");
    if (!session.ok()) return session.status();
    auto group = session->join({.name = own_name("linger", next_++)});
    if (!group.ok()) return group.status();
    auto sockets = Lingering::make(8);
    if (!sockets.ok()) return sockets.status();
    for (const int fd : sockets->sockets())
      MK_RETURN_IF_ERROR(session->send(abi::MessageType::kRegisterRegion,
                                       host_region(*group, 0, 0, kPage, false), std::span(&fd, 1)));
    sockets->let_go();
    std::this_thread::sleep_for(kRound);
    return session->receive();
  }

 private:
  const AttackOptions options_;
  std::uint64_t next_ = 0;
};

/// Requests for another rank's memory, whose replies nobody reads.
class Unread final : public Attack {
 public:
  explicit Unread(const AttackOptions& options) : options_(options) {}

  Status round() override {
    const std::string name = own_name("unread", next_++);
    std::vector<RawSession> sessions;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      auto session = RawSession::connect(options_.daemon, "unread");
      if (!session.ok()) return session.status();
      sessions.push_back(std::move(session).value());
      MK_RETURN_IF_ERROR(sessions.back().start_join({.name = name, .world_size = kRanks, .rank = rank}));
    }
    std::vector<std::uint32_t> groups;
    for (RawSession& session : sessions) {
      auto group = session.finish_join();
      if (!group.ok()) return group.status();
      groups.push_back(*group);
    }
    auto memory = written_memory("unread", kPage);
    if (!memory.ok()) return memory.status();
    const int fd = memory->get();
    MK_RETURN_IF_ERROR(sessions[0].send(abi::MessageType::kRegisterRegion,
                                        host_region(groups[0], 0, 0, kPage, true), std::span(&fd, 1)));
    MK_RETURN_IF_ERROR(sessions[0].receive());
    Status last;
    for (std::uint32_t rank = 1; rank < kRanks; ++rank) {
      ::fcntl(sessions[rank].socket(), F_SETFL, O_NONBLOCK);
      abi::MapRegion ask{};
      ask.group = groups[rank];
      last = Status();
      for (int i = 0; i < kRequests && last.ok(); ++i)
        last = sessions[rank].send(abi::MessageType::kMapRegion, ask);
    }
    std::this_thread::sleep_for(kRound);
    return last;
  }

 private:
  static constexpr std::uint32_t kRanks = 8;
  static constexpr int kRequests = 600;

  const AttackOptions options_;
  std::uint64_t next_ = 0;
};

/// Memory under puts that loses its pages again and again.
class Holes final : public Attack {
 public:
  explicit Holes(const AttackOptions& options) : options_(options) {}

  Status round() override {
    auto pair = TenantPair::make({.daemon = options_.daemon,
                                  .peer_daemon = options_.peer_daemon,
                                  .name = own_name("holes", next_++),
                                  .buffer_bytes = std::min<std::uint64_t>(options_.bytes, 256 << 20)});
    if (!pair.ok()) return pair.status();
    const std::uint64_t bytes = pair->source().bytes();
    const auto end = Clock::now() + kRound;
    Status punched;
    while (Clock::now() < end) {
      auto put =
          pair->sender().put(1, pair->put_lane(), pair->source(), 0, pair->source().region(), 0, bytes);
      if (!put.ok()) return put.status();
      if (::madvise(const_cast<void*>(static_cast<const void*>(pair->source().data())), bytes, MADV_REMOVE) !=
          0)
        punched = failed("punching holes");
    }
    return punched;
  }

 private:
  const AttackOptions options_;
  std::uint64_t next_ = 0;
};

/// Memory whose file many threads write, which keeps it locked, while pages of it are registered.
class Locked final : public Attack {
 public:
  explicit Locked(const AttackOptions& options) : options_(options) {}

  Status round() override {
    auto session = RawSession::connect(options_.daemon, "locked");
    if (!session.ok()) return session.status();
    auto group = session->join({.name = own_name("locked", next_++)});
    if (!group.ok()) return group.status();
    const std::uint64_t bytes = std::min<std::uint64_t>(options_.bytes, 256 << 20);
    auto memory = written_memory("locked", bytes);
    if (!memory.ok()) return memory.status();
    const int fd = memory->get();
    const std::vector<char> data(bytes);
    const auto end = Clock::now() + kRound;
    std::vector<std::jthread> writers;
    for (int i = 0; i < kWriters; ++i)
      writers.emplace_back([&] {
        while (Clock::now() < end && ::pwrite(fd, data.data(), data.size(), 0) > 0) {
        }
      });
    Status last;
    for (std::uint32_t index = 0; index < 8; ++index)
      MK_RETURN_IF_ERROR(session->send(abi::MessageType::kRegisterRegion,
                                       host_region(*group, index, index * kPage, kPage, false),
                                       std::span(&fd, 1)));
    for (int i = 0; i < 8; ++i) last = session->receive();
    return last;
  }

 private:
  static constexpr int kWriters = 16;

  const AttackOptions options_;
  std::uint64_t next_ = 0;
};

/// All ranks of a group of one node, which exchange, register and unregister without a pause.
class BusyGroup final : public Attack {
 public:
  explicit BusyGroup(const AttackOptions& options) : options_(options) {}

  Status round() override {
    if (sessions_.empty()) {
      const Status formed = form();
      if (!formed.ok()) sessions_.clear();
      return formed;
    }
    const auto end = Clock::now() + kRound;
    while (Clock::now() < end) {
      if (const Status status = exchange(); !status.ok()) {
        sessions_.clear();
        return status;
      }
    }
    return {};
  }

 private:
  static constexpr std::uint32_t kSessions = 8;

  std::uint32_t world() const { return std::max(options_.ranks, kSessions); }

  Status form() {
    const std::string name = own_name("busy", next_++);
    groups_.clear();
    round_ = 0;
    for (std::uint32_t i = 0; i < kSessions; ++i) {
      auto session = RawSession::connect(options_.daemon, "busy group");
      if (!session.ok()) return session.status();
      sessions_.push_back(std::move(session).value());
    }
    for (std::uint32_t rank = 0; rank < world(); ++rank)
      MK_RETURN_IF_ERROR(
          sessions_[rank % kSessions].start_join({.name = name, .world_size = world(), .rank = rank}));
    for (std::uint32_t rank = 0; rank < world(); ++rank) {
      auto group = sessions_[rank % kSessions].finish_join();
      if (!group.ok()) return group.status();
      groups_.push_back(*group);
    }
    auto memory = written_memory("busy", kPage);
    if (!memory.ok()) return memory.status();
    memory_ = std::move(memory).value();
    return {};
  }

  Status exchange() {
    ++round_;
    for (std::uint32_t rank = 0; rank < world(); ++rank) {
      abi::Exchange message{};
      message.group = groups_[rank];
      message.round = round_;
      MK_RETURN_IF_ERROR(sessions_[rank % kSessions].send(abi::MessageType::kExchange, message));
    }
    for (std::uint32_t rank = 0; rank < world(); ++rank)
      MK_RETURN_IF_ERROR(sessions_[rank % kSessions].receive());
    const int fd = memory_.get();
    MK_RETURN_IF_ERROR(sessions_[0].send(abi::MessageType::kRegisterRegion,
                                         host_region(groups_[0], 0, 0, kPage, false), std::span(&fd, 1)));
    MK_RETURN_IF_ERROR(sessions_[0].receive());
    abi::UnregisterRegion message{};
    message.group = groups_[0];
    MK_RETURN_IF_ERROR(sessions_[0].send(abi::MessageType::kUnregisterRegion, message));
    return sessions_[0].receive();
  }

  const AttackOptions options_;
  std::vector<RawSession> sessions_;
  std::vector<std::uint32_t> groups_;  ///< by rank
  ipc::UniqueFd memory_;
  std::uint64_t round_ = 0, next_ = 0;
};

}  // namespace

std::unique_ptr<Attack> make_linger_packet(const AttackOptions& options) {
  return std::make_unique<LingerPacket>(options);
}
std::unique_ptr<Attack> make_linger_regions(const AttackOptions& options) {
  return std::make_unique<LingerRegions>(options);
}
std::unique_ptr<Attack> make_unread(const AttackOptions& options) {
  return std::make_unique<Unread>(options);
}
std::unique_ptr<Attack> make_holes(const AttackOptions& options) {
  return std::make_unique<Holes>(options);
}
std::unique_ptr<Attack> make_locked(const AttackOptions& options) {
  return std::make_unique<Locked>(options);
}
std::unique_ptr<Attack> make_busy_group(const AttackOptions& options) {
  return std::make_unique<BusyGroup>(options);
}

}  // namespace mkernel::bench
