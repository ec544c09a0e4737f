// Threads that do jobs of several owners: what may take long, or never end, and must delay no other owner.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace mkernel::base {

/// Jobs of one owner are done one after the other, in their order, and those of different owners at the same
/// time: a job that does not end holds up those behind it of the same owner alone. When many wait behind it,
/// each one that comes interrupts it with a signal (SIGURG): a close() that lingers returns then. There are
/// at most kMaxThreads threads with jobs, and one that is idle. Thread-safe.
class OwnerWorkers {
 public:
  using Job = std::function<void()>;

  /// Above so many owners with jobs at once, the others wait for a thread.
  static constexpr std::size_t kMaxThreads = 256;

  /// `name` is shown for the threads by ps and top, at most 15 bytes of it. Throws std::system_error when no
  /// thread can be started.
  explicit OwnerWorkers(const std::string& name);
  /// Waits a quarter of a second for what has been posted. What is not done by then goes on without this
  /// object, until the process ends. Not from within a job.
  ~OwnerWorkers();
  OwnerWorkers(const OwnerWorkers&) = delete;
  OwnerWorkers& operator=(const OwnerWorkers&) = delete;

  /// Returns at once. The job runs, and dies, on a thread of the workers, perhaps after this object: it owns
  /// what it uses. It must not throw.
  void post(std::uint64_t owner, Job job);

 private:
  struct State;
  static void start_thread(const std::shared_ptr<State>& state);
  static void run(State& state);

  const std::shared_ptr<State> state_;
};

}  // namespace mkernel::base
