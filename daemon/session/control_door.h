// The way back to the control thread for workers that may outlive it.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <utility>

#include "proto/base/mutex.h"

namespace mkernel::session {

class ControlDoor {
 public:
  explicit ControlDoor(boost::asio::io_context& io) : io_(&io) {}

  /// Runs `call` on the control thread, or drops it when the door is closed. Any thread.
  template <typename Call>
  void post(Call call) {
    const MutexLock lock(mutex_);
    if (io_ != nullptr) boost::asio::post(*io_, std::move(call));
  }
  /// The sessions are going away, and perhaps the control thread's io_context with them.
  void close() {
    const MutexLock lock(mutex_);
    io_ = nullptr;
  }

 private:
  Mutex mutex_;
  boost::asio::io_context* io_ MK_GUARDED_BY(mutex_);
};

}  // namespace mkernel::session
