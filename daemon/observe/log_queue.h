// The queue between the threads that log and the one that writes: whoever reads the log may stop reading.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace mkernel::observe {

/// Lines on their way to a file descriptor. A thread of its own writes them; it alone may wait for the
/// reader. What comes while the queue is full is dropped and counted, until half of the queue is free again;
/// then a line says how many were dropped, at the place where they are missing.
class LogQueue {
 public:
  struct Options {
    int fd = STDERR_FILENO;
    std::size_t max_bytes = std::size_t{1} << 20;  ///< of lines that wait
    /// The line that says how many are missing; called by the thread that writes.
    std::function<std::string(std::uint64_t dropped)> describe;
  };

  /// Throws std::system_error when no thread can be started.
  explicit LogQueue(Options options);
  /// Does not wait: the thread writes what is there, as far as the reader lets it.
  ~LogQueue();
  LogQueue(const LogQueue&) = delete;
  LogQueue& operator=(const LogQueue&) = delete;

  /// Any thread; returns at once. The line ends with a line feed.
  void push(std::string line);
  /// Any thread: returns when everything pushed so far is written, after `limit` at the latest.
  void flush(std::chrono::milliseconds limit) const;
  /// Any thread, also a signal handler: nothing waits to be written.
  bool idle() const;
  /// Any thread: lines that were dropped or could not be written (disk full, reader gone), in all.
  std::uint64_t dropped_total() const;

 private:
  struct State;
  static void run(State& state);
  const std::shared_ptr<State> state_;  ///< the thread's, too: it may outlive this
};

}  // namespace mkernel::observe
