// Work that may never come back, away from the threads that others wait for: a file on a server that hangs, a
// name service that does not answer, a service manager that is stuck.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "proto/abi/status.h"

namespace mkernel::base {

/// Runs one piece of work at a time, each on a thread of its own. A thread that does not come back is left
/// behind: it may touch only what its work owns. Control thread only, but for the work itself.
class Aside {
 public:
  /// `what` names the work in errors: "reading /etc/mkernel/mkerneld.toml". `io` runs the control thread.
  Aside(boost::asio::io_context& io, std::string what);
  /// What is under way is left behind, and its `done` is never called.
  ~Aside();
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;

  /// A thread is out, whether it is within its time or not.
  bool busy() const;

  /// Calls `done` from `io`, never from inside run(), with what `work` returned. Errors: kDeadlineExceeded
  /// after `limit`; kUnavailable while a thread that is beyond its time has not come back; kResourceExhausted
  /// when no thread can be started; kInternal when the work threw.
  template <typename T>
  void run(std::chrono::milliseconds limit, std::function<Result<T>()> work,
           std::function<void(Result<T>)> done) {
    auto result = std::make_shared<std::optional<Result<T>>>();
    begin(
        limit, [work = std::move(work), result] { result->emplace(work()); },
        [result, done = std::move(done)](const Status& status) {
          done(status.ok() ? std::move(**result) : Result<T>(status));
        });
  }

 private:
  struct Shared;
  using Done = std::function<void(const Status&)>;
  void begin(std::chrono::milliseconds limit, std::function<void()> work, Done done);
  void finish(const Status& status);

  boost::asio::io_context& io_;
  const std::string what_;
  boost::asio::steady_timer timer_;
  Done done_;         ///< of the work that is under way and within its time
  bool out_ = false;  ///< a thread has not come back yet
  std::chrono::steady_clock::time_point since_{};
  const std::shared_ptr<Shared> shared_;
};

/// Waits for the work, at most `limit`, then leaves it behind as Aside does: for the start, when no thread
/// waits for this one. Errors as those of Aside::run().
Status wait_aside(std::chrono::milliseconds limit, const std::string& what, std::function<void()> work);

/// The same for work that returns something.
template <typename T>
Result<T> wait_aside_for(std::chrono::milliseconds limit, const std::string& what,
                         std::function<Result<T>()> work) {
  auto result = std::make_shared<std::optional<Result<T>>>();
  const Status status =
      wait_aside(limit, what, [work = std::move(work), result] { result->emplace(work()); });
  return status.ok() ? std::move(**result) : Result<T>(status);
}

}  // namespace mkernel::base
