// The thread that registers memory for one transport. Registering pins pages, and giving a registration back
// lets go of them: both take some tenths of a second for a gigabyte, which the proxy thread must not spend.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "daemon/base/mailbox.h"
#include "proto/abi/status.h"
#include "proto/base/mutex.h"

namespace mkernel::transport::rdma {

/// Made by one thread, then used by one, the owner.
class Registrar {
 public:
  /// Errors: kResourceExhausted, when there is no thread or no fd left.
  static Result<std::unique_ptr<Registrar>> make();
  ~Registrar();  ///< stops

  /// `work` is called on the registrar's thread, then `done`, where there is one, in run(). One after the
  /// other in the order of the calls.
  void post(std::function<void()> work, std::function<void()> done);
  /// Calls what is done. Returns how many. To be called whenever event_fd() is readable: only this makes it
  /// quiet again.
  std::size_t run() {
    const std::uint64_t rung = rung_.load(std::memory_order_acquire);
    if (rung != heard_) hear(rung);
    return finished_.has_work() ? finished_.run() : 0;
  }
  /// Waits for the work that is being done, and drops what has not begun. From then on post() does everything
  /// at once.
  void stop();
  /// Readable when run() has something to call, and until it has been called.
  int event_fd() const { return finished_.event_fd(); }

 private:
  struct Item {
    std::function<void()> work;
    std::function<void()> done;
  };

  Registrar();
  void hear(std::uint64_t rung);
  void work();

  base::Mailbox finished_;
  std::atomic<std::uint64_t> rung_{0};  ///< times that event_fd() was written to; counted afterwards
  std::uint64_t heard_ = 0;             ///< the owner's: those whose writes have been read
  Mutex mutex_;
  ConditionVariable changed_;
  std::deque<Item> items_ MK_GUARDED_BY(mutex_);
  bool over_ MK_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace mkernel::transport::rdma
