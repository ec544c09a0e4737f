// The end of the process has a limit: threads of libraries may be in a file or a name service that hangs.
#pragma once

#include <chrono>
#include <functional>
#include <stop_token>
#include <thread>

namespace mkernel::app {

/// From begin() until it is destroyed the process is given some time. Then the log says so, and `give_up`
/// ends it where it is.
class ExitDeadline {
 public:
  ExitDeadline() = default;
  ~ExitDeadline() = default;  ///< the end was reached in time
  ExitDeadline(const ExitDeadline&) = delete;
  ExitDeadline& operator=(const ExitDeadline&) = delete;

  /// Calls `give_up`, on another thread, after `limit`. Where no thread can be started there is no limit.
  void begin(std::chrono::milliseconds limit, std::function<void()> give_up);

 private:
  std::jthread thread_;
};

}  // namespace mkernel::app
