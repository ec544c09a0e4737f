#include "daemon/observe/log_queue.h"

#include <poll.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <deque>
#include <thread>
#include <utility>

#include "daemon/base/thread.h"
#include "proto/base/mutex.h"

namespace mkernel::observe {
namespace {

/// What an entry takes beside its text.
constexpr std::size_t kEntryBytes = 64;
constexpr std::chrono::milliseconds kLook{2};

struct Entry {
  std::string text;
  std::uint64_t dropped = 0;  ///< not 0: in place of a text, so many lines are missing here
};

/// False when the text, or the rest of it, cannot be written.
bool write_all(int fd, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t wrote = ::write(fd, text.data() + done, text.size() - done);
    if (wrote >= 0) {
      done += static_cast<std::size_t>(wrote);
    } else if (errno == EAGAIN) {  // somebody else has made the open file non-blocking
      pollfd room{fd, POLLOUT, 0};
      ::poll(&room, 1, -1);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

}  // namespace

struct LogQueue::State {
  explicit State(Options chosen) : options(std::move(chosen)) {}

  const Options options;
  Mutex mutex;
  ConditionVariable wake;
  std::deque<Entry> entries MK_GUARDED_BY(mutex);
  std::size_t bytes MK_GUARDED_BY(mutex) = 0;
  std::uint64_t unreported MK_GUARDED_BY(mutex) = 0;  ///< dropped since the queue became full
  bool full MK_GUARDED_BY(mutex) = false;
  bool ending MK_GUARDED_BY(mutex) = false;
  std::atomic<std::uint64_t> waiting{0};  ///< entries that are not written yet
  std::atomic<std::uint64_t> dropped{0};
};

LogQueue::LogQueue(Options options) : state_(std::make_shared<State>(std::move(options))) {
  std::thread([state = state_] {
    base::name_this_thread("mk-log");
    // The process's signals are others' to handle, and a write that fails is an error here, not a signal.
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
    run(*state);
  }).detach();
}

LogQueue::~LogQueue() {
  {
    const MutexLock lock(state_->mutex);
    state_->ending = true;
  }
  state_->wake.notify_one();
}

void LogQueue::push(std::string line) {
  State& state = *state_;
  const std::size_t bytes = line.size() + kEntryBytes;
  {
    const MutexLock lock(state.mutex);
    const std::size_t most = state.options.max_bytes;
    state.full = state.full ? state.bytes > most / 2 : state.bytes + bytes > most;
    if (state.full) {
      ++state.unreported;
      ++state.dropped;
      return;
    }
    if (state.unreported != 0) {
      state.entries.push_back({{}, std::exchange(state.unreported, 0)});
      state.bytes += kEntryBytes;
      ++state.waiting;
    }
    state.entries.push_back({std::move(line), 0});
    state.bytes += bytes;
    ++state.waiting;
  }
  state.wake.notify_one();
}

void LogQueue::run(State& state) {
  MutexLock lock(state.mutex);
  for (;;) {
    while (state.entries.empty() && state.unreported == 0 && !state.ending) state.wake.wait(state.mutex);
    if (state.entries.empty() && state.unreported == 0) return;
    if (state.entries.empty()) {
      state.entries.push_back({{}, std::exchange(state.unreported, 0)});
      state.bytes += kEntryBytes;
      ++state.waiting;
    }
    const Entry entry = std::move(state.entries.front());
    state.entries.pop_front();
    state.bytes -= entry.text.size() + kEntryBytes;
    lock.unlock();
    const std::string& text = entry.dropped == 0 ? entry.text : state.options.describe(entry.dropped);
    if (!write_all(state.options.fd, text) && entry.dropped == 0) ++state.dropped;
    --state.waiting;
    lock.lock();
  }
}

void LogQueue::flush(std::chrono::milliseconds limit) const {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!idle() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(kLook);
}

bool LogQueue::idle() const {
  return state_->waiting.load() == 0;
}

std::uint64_t LogQueue::dropped_total() const {
  return state_->dropped.load();
}

}  // namespace mkernel::observe
