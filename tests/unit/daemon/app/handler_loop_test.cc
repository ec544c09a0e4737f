// What the control thread's meter calls a handler, and what a wait for one.
#include "daemon/app/handler_loop.h"

#include <doctest/doctest.h>

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <ctime>
#include <functional>
#include <memory>

namespace mkernel::app {
namespace {

using std::chrono::milliseconds;

base::SliceTimes measured(const std::function<void(boost::asio::io_context&)>& play) {
  boost::asio::io_context io;
  base::SliceMeter meter;
  play(io);
  run_handlers(io, meter);
  return meter.times();
}

/// The timer ends with the last pause, before its io_context does.
void after_a_pause(const std::shared_ptr<boost::asio::steady_timer>& timer, int more) {
  timer->expires_after(milliseconds(30));
  timer->async_wait([timer, more](const boost::system::error_code&) {
    if (more > 0) after_a_pause(timer, more - 1);
  });
}

TEST_CASE("a wait for the next handler is no slice, a handler that sleeps is one") {
  // A thread that has to wait for a processor between two handlers is taken for a busy machine.
  int tries = 20;
  base::SliceTimes waits;
  do {
    waits = measured([](boost::asio::io_context& io) {
      after_a_pause(std::make_shared<boost::asio::steady_timer>(io), 3);
    });
  } while (waits.wall_over_limit > 0 && --tries > 0);
  CHECK(waits.wall_over_limit == 0);

  const base::SliceTimes sleeps = measured([](boost::asio::io_context& io) {
    boost::asio::post(io, [] {
      const timespec pause{0, 30 * 1000 * 1000};
      ::nanosleep(&pause, nullptr);
    });
  });
  CHECK(sleeps.wall_over_limit >= 1);
  CHECK(sleeps.longest_wall >= milliseconds(30));
  if (!sleeps.knows_sleep) return;
  CHECK(sleeps.asleep_over_limit == 1);
  CHECK(sleeps.longest < milliseconds(10));
}

}  // namespace
}  // namespace mkernel::app
