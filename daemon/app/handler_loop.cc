// NOTES
// How a wait is told from a handler. io_context::run_one() waits and then runs a handler, and Asio has no
// hook between the two. What it waits in is epoll_wait(), so the linker puts the function below into its
// place
// (`--wrap=epoll_wait`, CMakeLists.txt). A wait that Asio does in another way would count as a long slice of
// the handler behind it, which handler_loop_test.cc sees.
#include "daemon/app/handler_loop.h"

#include <sys/epoll.h>

namespace mkernel::app {
namespace {

thread_local base::SliceMeter* meter_of_this_thread = nullptr;

}  // namespace

void run_handlers(boost::asio::io_context& io, base::SliceMeter& meter) {
  meter_of_this_thread = &meter;
  meter.begin();
  while (io.run_one() > 0) meter.end_slice();
  meter_of_this_thread = nullptr;
}

}  // namespace mkernel::app

extern "C" {

int __real_epoll_wait(int epoll, epoll_event* events, int count, int timeout);

int __wrap_epoll_wait(int epoll, epoll_event* events, int count, int timeout) {
  mkernel::base::SliceMeter* const meter = mkernel::app::meter_of_this_thread;
  if (meter == nullptr || timeout == 0) return __real_epoll_wait(epoll, events, count, timeout);
  meter->end_slice();
  const int found = __real_epoll_wait(epoll, events, count, timeout);
  meter->woke_up();
  return found;
}

}  // extern "C"
