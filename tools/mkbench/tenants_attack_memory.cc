// Attacks with memory: much of it, or much of what stands for it.
#include <fcntl.h>
#include <mkernel/client.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "proto/ipc/fd.h"
#include "tools/mkbench/tenants_attack.h"
#include "tools/mkbench/tenants_bystander.h"

namespace mkernel::bench {
namespace {

/// A group that is failed and left 30 ms into a put.
class LeavePut final : public Attack {
 public:
  explicit LeavePut(const AttackOptions& options) : options_(options) {}

  Status round() override {
    auto pair =
        TenantPair::make({.daemon = options_.daemon,
                          .peer_daemon = options_.peer_daemon,
                          .name = "leave-" + std::to_string(::getpid()) + "-" + std::to_string(next_++),
                          .buffer_bytes = options_.bytes});
    if (!pair.ok()) return pair.status();
    auto put = pair->sender().put(1, pair->put_lane(), pair->source(), 0, pair->source().region(), 0,
                                  options_.bytes);
    if (!put.ok()) return put.status();
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    return pair->sender().fail({StatusCode::kAborted, "leaves in the middle of its put"});
  }

 private:
  const AttackOptions options_;
  std::uint64_t next_ = 0;
};

/// A process of its own that registers memory, and is killed once it has.
class Kill final : public Attack {
 public:
  explicit Kill(const AttackOptions& options) : options_(options) {}

  Status round() override {
    int fds[2];
    if (::pipe2(fds, O_CLOEXEC) != 0)
      return {StatusCode::kResourceExhausted, std::string("pipe: ") + std::strerror(errno)};
    const ipc::UniqueFd reader(fds[0]);
    ipc::UniqueFd writer(fds[1]);
    const pid_t child = ::fork();  // no thread runs in this process, and no session lives in it
    if (child < 0) return {StatusCode::kResourceExhausted, std::string("fork: ") + std::strerror(errno)};
    if (child == 0) {
      const std::string said = hold_memory().to_string();
      (void)!::write(writer.get(), said.c_str(), said.size());
      for (;;) ::pause();
    }
    writer.reset();
    pollfd wanted{reader.get(), POLLIN, 0};
    char said[1024] = {};
    const bool spoke = ::poll(&wanted, 1, 30000) > 0 && ::read(reader.get(), said, sizeof(said) - 1) > 0;
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    if (!spoke) return {StatusCode::kDeadlineExceeded, "a client registered no memory within 30 s"};
    return said == Status().to_string() ? Status() : Status(StatusCode::kResourceExhausted, said);
  }

 private:
  /// Until this process is killed.
  Status hold_memory() const {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // should nobody be there to kill it
    auto session = Session::connect({.socket = options_.daemon, .name = "to be killed"});
    if (!session.ok()) return session.status();
    static std::optional<Session> kept_session;
    static std::optional<Group> kept_group;
    static std::vector<HostBuffer> kept;
    kept_session.emplace(std::move(session).value());
    auto group = kept_session->join({.name = "kill-" + std::to_string(::getpid()), .world_size = 1});
    if (!group.ok()) return group.status();
    kept_group.emplace(std::move(group).value());
    for (std::uint64_t left = options_.bytes; left > 0;) {
      const std::uint64_t bytes = std::min<std::uint64_t>(left, 256 << 20);
      auto buffer = kept_group->allocate(bytes);
      if (!buffer.ok()) return buffer.status();
      std::memset(buffer->data(), 1, bytes);
      kept.push_back(std::move(buffer).value());
      left -= bytes;
    }
    return {};
  }

  const AttackOptions options_;
};

/// Regions of a page until one is refused or two seconds are over, held for a fifth of a second.
class Regions final : public Attack {
 public:
  explicit Regions(const AttackOptions& options) : options_(options) {}

  Status round() override {
    std::vector<Session> sessions;
    std::vector<Group> groups;
    std::vector<HostBuffer> regions;
    Status refused;
    const auto end = std::chrono::steady_clock::now() + kRound;
    while (refused.ok() && regions.size() < kMost && std::chrono::steady_clock::now() < end) {
      if (groups.size() % kGroupsEach == 0) {
        auto session = Session::connect({.socket = options_.daemon, .name = "regions"});
        if (!(refused = session.status()).ok()) break;
        sessions.push_back(std::move(session).value());
      }
      auto group = sessions.back().join(
          {.name = "regions-" + std::to_string(::getpid()) + "-" + std::to_string(next_++),
           .world_size = 1,
           .lanes = 1,
           .region_capacity = 256});
      if (!(refused = group.status()).ok()) break;
      groups.push_back(std::move(group).value());
      for (int i = 0; i < 256 && refused.ok(); ++i) {
        auto region = groups.back().allocate(4096);
        refused = region.status();
        if (region.ok()) regions.push_back(std::move(region).value());
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return refused;
  }

 private:
  static constexpr std::chrono::seconds kRound{2};
  static constexpr std::size_t kMost = 70000;     ///< above vm.max_map_count
  static constexpr std::size_t kGroupsEach = 60;  ///< of a session

  const AttackOptions options_;
  std::uint64_t next_ = 0;
};

}  // namespace

std::unique_ptr<Attack> make_leave_put(const AttackOptions& options) {
  return std::make_unique<LeavePut>(options);
}
std::unique_ptr<Attack> make_kill(const AttackOptions& options) {
  return std::make_unique<Kill>(options);
}
std::unique_ptr<Attack> make_regions(const AttackOptions& options) {
  return std::make_unique<Regions>(options);
}

}  // namespace mkernel::bench
