#include "daemon/cluster/executor.h"

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <utility>

namespace mkernel::cluster {

void AsioExecutor::post(Task task) {
  boost::asio::post(io_, std::move(task));
}

Executor::Timer AsioExecutor::call_after(std::chrono::milliseconds delay, Task task) {
  // Limits of weeks and more would overflow the clock of old Boost versions' timers.
  constexpr std::chrono::hours kForEver{24 * 365};
  auto timer = std::make_shared<boost::asio::steady_timer>(io_, delay < kForEver ? delay : kForEver);
  // Expired and destroyed at the same time: the handler runs with no error, so it asks whether the timer
  // still lives.
  timer->async_wait(
      [task = std::move(task), alive = std::weak_ptr(timer)](const boost::system::error_code& error) {
        if (!error && !alive.expired()) task();
      });
  return timer;
}

std::int64_t AsioExecutor::unix_ms() const {
  using std::chrono::duration_cast, std::chrono::milliseconds, std::chrono::system_clock;
  return duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count();
}

}  // namespace mkernel::cluster
