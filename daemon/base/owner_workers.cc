#include "daemon/base/owner_workers.h"

#include <pthread.h>

#include <chrono>
#include <csignal>
#include <deque>
#include <map>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "daemon/base/thread.h"
#include "proto/base/mutex.h"

namespace mkernel::base {
namespace {

constexpr std::size_t kIdleThreads = 1;  ///< that stay for the next job
constexpr std::chrono::milliseconds kLastWait{250};
constexpr std::size_t kBacklog = 64;  ///< jobs of one owner that wait before the one that runs is interrupted

/// A handler that does nothing: the signal only ends system calls that can be interrupted.
void receive_interrupts() {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGURG, &action, nullptr);
}

}  // namespace

/// Threads share it with the object, which they may outlive.
struct OwnerWorkers::State {
  explicit State(std::string thread_name) : name(std::move(thread_name)) {}

  struct Owner {
    std::deque<Job> jobs;             ///< that wait
    std::optional<pthread_t> worker;  ///< of the job that runs
  };

  const std::string name;
  Mutex mutex;
  ConditionVariable wake, all_done;
  std::map<std::uint64_t, Owner> owners MK_GUARDED_BY(mutex);  ///< with jobs that wait, or one that runs
  std::deque<std::uint64_t> ready MK_GUARDED_BY(mutex);        ///< owners with jobs, none of which runs
  std::size_t threads MK_GUARDED_BY(mutex) = 0;
  std::size_t idle MK_GUARDED_BY(mutex) = 0;  ///< of them: no job yet, or none any more
  bool stopping MK_GUARDED_BY(mutex) = false;
};

OwnerWorkers::OwnerWorkers(const std::string& name) : state_(std::make_shared<State>(name)) {
  receive_interrupts();
  start_thread(state_);
}

OwnerWorkers::~OwnerWorkers() {
  const auto deadline = std::chrono::steady_clock::now() + kLastWait;
  const MutexLock lock(state_->mutex);
  state_->stopping = true;
  state_->wake.notify_all();
  while (!state_->owners.empty() && state_->all_done.wait_until(state_->mutex, deadline)) {
  }
}

void OwnerWorkers::start_thread(const std::shared_ptr<State>& state) {
  const auto count = [&](std::size_t change) {
    const MutexLock lock(state->mutex);
    state->threads += change;
    state->idle += change;
  };
  count(1);
  try {
    std::thread([state] {
      name_this_thread(state->name);
      run(*state);
    }).detach();
  } catch (...) {
    count(static_cast<std::size_t>(-1));
    throw;
  }
}

void OwnerWorkers::post(std::uint64_t owner, Job job) {
  bool more = false;
  {
    const MutexLock lock(state_->mutex);
    const auto [found, is_new] = state_->owners.try_emplace(owner);
    State::Owner& known = found->second;
    known.jobs.push_back(std::move(job));
    if (is_new) state_->ready.push_back(owner);
    if (known.jobs.size() > kBacklog && known.worker) ::pthread_kill(*known.worker, SIGURG);
    more = state_->ready.size() > state_->idle && state_->threads < kMaxThreads;
  }
  state_->wake.notify_one();
  if (!more) return;
  try {
    start_thread(state_);
  } catch (const std::system_error&) {
    // The process may have no more threads now: the job waits for one of those that there are, and the next
    // post() tries again.
  }
}

void OwnerWorkers::run(State& state) {
  MutexLock lock(state.mutex);
  for (;;) {  // here this thread is among the idle ones
    while (state.ready.empty()) {
      if (state.stopping || state.idle > kIdleThreads) {
        --state.idle;
        --state.threads;
        return;
      }
      state.wake.wait(state.mutex);
    }
    --state.idle;
    const std::uint64_t owner = state.ready.front();
    state.ready.pop_front();
    State::Owner& served = state.owners[owner];
    Job job = std::move(served.jobs.front());
    served.jobs.pop_front();
    served.worker = ::pthread_self();
    lock.unlock();
    job();
    job = nullptr;
    lock.lock();
    served.worker.reset();
    if (served.jobs.empty()) {
      state.owners.erase(owner);
    } else {
      state.ready.push_back(owner);
    }
    if (state.owners.empty()) state.all_done.notify_all();
    ++state.idle;
  }
}

}  // namespace mkernel::base
