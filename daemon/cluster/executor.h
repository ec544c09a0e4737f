// Later: on the control thread, now or after a while. An interface so that state machines are tested without
// a clock.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

namespace mkernel::cluster {

/// Control thread only.
class Executor {
 public:
  using Task = std::function<void()>;
  /// A pending call_after(); destroying it cancels the call.
  using Timer = std::shared_ptr<void>;

  virtual ~Executor() = default;
  /// After the current call has returned, in the order of posting.
  virtual void post(Task task) = 0;
  [[nodiscard]] virtual Timer call_after(std::chrono::milliseconds delay, Task task) = 0;
  /// Wall time, comparable between nodes as far as their clocks agree.
  virtual std::int64_t unix_ms() const = 0;
};

/// The real one, on the control thread's io_context.
class AsioExecutor final : public Executor {
 public:
  explicit AsioExecutor(boost::asio::io_context& io) : io_(io) {}
  void post(Task task) override;
  Timer call_after(std::chrono::milliseconds delay, Task task) override;
  std::int64_t unix_ms() const override;

 private:
  boost::asio::io_context& io_;
};

}  // namespace mkernel::cluster
