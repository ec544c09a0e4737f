#include "daemon/app/process_limits.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "proto/base/mutex.h"

namespace mkernel::app {
namespace {

/// An idle daemon with TCP holds about 40, and gRPC some more for each peer and each mkctl. What
/// session::NodeBudget keeps back for them is 64 at least.
constexpr std::uint64_t kOwnFds = 96, kFdsPerProxy = 16, kFirstSessionFds = 48;
/// Control, log, regions, undertaker, NIC watch, two aside, one of libraries.
constexpr std::uint64_t kOwnThreads = 8;
/// gRPC starts more of its own while the daemon runs, up to so many on most machines.
constexpr std::uint64_t kGrowingThreads = 16;
/// Of each thread, whatever `ulimit -s` says: gRPC's, hwloc's and our own functions fit with room.
constexpr std::uint64_t kLeastStack = std::uint64_t{1} << 20, kStack = std::uint64_t{8} << 20;
/// Beside stacks: heap, rings and libraries that are loaded later.
constexpr std::uint64_t kMemory = std::uint64_t{256} << 20;

std::string value_of(__rlimit_resource_t resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0) return "unknown";
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur);
}

Status too_small(const std::string& what) {
  return {StatusCode::kResourceExhausted, what};
}

Status check_fds(std::uint32_t proxies) {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return {};
  if (files.rlim_cur != files.rlim_max) {  // clients' fds are many, and shells start with few
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
    ::getrlimit(RLIMIT_NOFILE, &files);
  }
  const std::uint64_t needed = fds_needed(proxies);
  if (files.rlim_cur >= needed) return {};
  return too_small("RLIMIT_NOFILE = " + std::to_string(files.rlim_cur) + " file descriptors, needed are " +
                   std::to_string(needed) +
                   " and more for the sessions (`ulimit -n`, LimitNOFILE= of the unit)");
}

/// Threads that do nothing until this ends.
class Parked {
 public:
  explicit Parked(std::uint64_t count) {
    try {
      while (threads_.size() < count) threads_.emplace_back([this] { wait(); });
    } catch (const std::system_error& error) {
      why_ = error.what();
    }
  }
  ~Parked() {
    {
      const MutexLock lock(mutex_);
      go_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  Parked(const Parked&) = delete;
  Parked& operator=(const Parked&) = delete;

  std::uint64_t count() const { return threads_.size(); }
  const std::string& why() const { return why_; }  ///< no more could be started

 private:
  void wait() {
    const MutexLock lock(mutex_);
    while (!go_) wake_.wait(mutex_);
  }

  Mutex mutex_;
  ConditionVariable wake_;
  bool go_ MK_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
  std::string why_;
};

bool can_map(std::uint64_t bytes) {
  void* room =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return false;
  ::munmap(room, bytes);
  return true;
}

Status check_threads(std::uint32_t proxies) {
  const std::uint64_t needed =
      threads_needed(proxies, static_cast<unsigned>(::sysconf(_SC_NPROCESSORS_CONF)));
  const Parked parked(needed);
  const std::string limits = "RLIMIT_AS = " + value_of(RLIMIT_AS) +
                             " bytes and RLIMIT_DATA = " + value_of(RLIMIT_DATA) +
                             " bytes (`ulimit -v`, `ulimit -d`)";
  if (parked.count() < needed) {
    return too_small("only " + std::to_string(parked.count()) + " of " + std::to_string(needed) +
                     " threads needed can be started (" + parked.why() + "): RLIMIT_NPROC = " +
                     value_of(RLIMIT_NPROC) + " counts all threads of user " + std::to_string(::geteuid()) +
                     " (`ulimit -u`, LimitNPROC= and TasksMax= of the unit); " + limits);
  }
  if (can_map(kMemory)) return {};
  return too_small("beside the stacks of " + std::to_string(needed) + " threads " +
                   std::to_string(kMemory >> 20) + " MiB of memory are needed and cannot be had: " + limits);
}

}  // namespace

std::uint64_t fds_needed(std::uint32_t proxies) {
  return kOwnFds + kFirstSessionFds + kFdsPerProxy * proxies;
}

std::uint64_t threads_needed(std::uint32_t proxies, unsigned processors) {
  // Those of gRPC's event engine and of its callbacks: at most 16 of each.
  const std::uint64_t of_grpc = 2 * std::clamp(processors, 2U, 16U);
  return kOwnThreads + proxies + of_grpc + kGrowingThreads;
}

Status check_stack_limit() {
  rlimit stack{};
  if (::getrlimit(RLIMIT_STACK, &stack) != 0) return {};
  if (stack.rlim_cur < kLeastStack && stack.rlim_max >= kLeastStack) {
    stack.rlim_cur = std::min<rlim_t>(kStack, stack.rlim_max);
    ::setrlimit(RLIMIT_STACK, &stack);
  }
  if (stack.rlim_cur < kLeastStack) {
    return too_small("RLIMIT_STACK = " + std::to_string(stack.rlim_cur) + " bytes, needed are " +
                     std::to_string(kLeastStack) + " (`ulimit -s`, LimitSTACK= of the unit)");
  }
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setstacksize(&attributes, std::min<std::uint64_t>(kStack, stack.rlim_cur));
  ::pthread_setattr_default_np(&attributes);
  ::pthread_attr_destroy(&attributes);
  return {};
}

Status check_process_limits(const config::Config& config) {
  MK_RETURN_IF_ERROR(check_fds(config.proxy.threads));
  return check_threads(config.proxy.threads);
}

}  // namespace mkernel::app
