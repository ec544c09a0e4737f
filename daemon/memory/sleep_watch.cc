#include "daemon/memory/sleep_watch.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/base/thread.h"

namespace mkernel::memory {
namespace {

Status why_ended(const std::string& thread) {
  return {StatusCode::kAborted,
          "memory of this session made a thread that all users share (" + thread + ") sleep for " +
              std::to_string(SleepWatch::kLimit.count()) +
              " ms: pages of it are swapped out, or taken away while the daemon uses them (the daemon cannot "
              "forbid that before Linux 5.1)"};
}

}  // namespace

// "tid (name) S ...": the name may hold anything, so the last bracket counts. S and D sleep, R runs or waits
// for a processor, T and t are stopped, by an operator or a debugger.
bool SleepWatch::asleep_by_stat(int stat) {
  std::array<char, 256> text;
  const ssize_t size = ::pread(stat, text.data(), text.size(), 0);
  if (size <= 0) return false;
  const std::string_view line(text.data(), static_cast<std::size_t>(size));
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string_view::npos || name_end + 2 >= line.size()) return false;
  const char state = line[name_end + 2];
  return state == 'S' || state == 'D';
}

SleepWatch::SleepWatch(Found found, Asleep asleep) : found_(std::move(found)), asleep_(std::move(asleep)) {}

SleepWatch::~SleepWatch() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void SleepWatch::start() {
  thread_ = std::thread([this] {
    base::name_this_thread("mk-sleep-watch");
    run();
  });
}

void SleepWatch::run() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    wake_.wait_until(mutex_, std::chrono::steady_clock::now() + kInterval);
    if (stopping_) return;
    lock.unlock();
    look();
    lock.lock();
  }
}

void SleepWatch::watch_this_thread(const std::string& name) {
  ipc::UniqueFd stat(::open("/proc/thread-self/stat", O_RDONLY | O_CLOEXEC));
  if (!stat.valid()) return;
  const MutexLock lock(mutex_);
  threads_.push_back({name, &touched_session, std::move(stat)});
}

void SleepWatch::unwatch_this_thread() {
  const MutexLock lock(mutex_);
  threads_.remove_if([](const Watched& watched) { return watched.touched == &touched_session; });
}

void SleepWatch::look() {
  std::vector<std::pair<std::uint64_t, Status>> found;
  {
    const MutexLock lock(mutex_);
    for (auto entry = cost_.begin(); entry != cost_.end();) {
      entry->second -= std::chrono::microseconds(kInterval) / kForget;
      entry = entry->second.count() <= 0 ? cost_.erase(entry) : std::next(entry);
    }
    for (const Watched& watched : threads_) {
      const std::uint64_t session = watched.touched->load(std::memory_order_relaxed);
      if (session == 0 || !asleep_(watched.stat.get())) continue;
      if (watched.touched->load(std::memory_order_relaxed) != session) continue;
      std::chrono::microseconds& cost = cost_[session];
      cost += kInterval;
      if (cost >= kLimit) found.emplace_back(session, why_ended(watched.name));
    }
    for (const auto& [session, why] : found) cost_.erase(session);
  }
  for (const auto& [session, why] : found) found_(session, why);
}

}  // namespace mkernel::memory
