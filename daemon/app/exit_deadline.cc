#include "daemon/app/exit_deadline.h"

#include <spdlog/spdlog.h>

#include <condition_variable>
#include <system_error>
#include <utility>

#include "daemon/base/thread.h"
#include "daemon/observe/log.h"
#include "proto/base/mutex.h"

namespace mkernel::app {

void ExitDeadline::begin(std::chrono::milliseconds limit, std::function<void()> give_up) {
  try {
    thread_ = std::jthread([limit, give_up = std::move(give_up)](const std::stop_token& reached) {
      base::name_this_thread("mk-exit");
      Mutex mutex;  // guards nothing: a wait needs one
      std::condition_variable_any nobody;
      MutexLock lock(mutex);
      nobody.wait_for(lock, reached, limit, [] { return false; });
      if (reached.stop_requested()) return;
      spdlog::critical("not ended {} ms after the last session: a thread hangs, and is not waited for",
                       limit.count());
      observe::finish_logging();
      give_up();
    });
  } catch (const std::system_error& error) {
    spdlog::warn("the end of the daemon has no time limit: {}", error.what());
  }
}

}  // namespace mkernel::app
