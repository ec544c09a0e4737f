// What systemd is told, when it listens: ready, reloading, stopping, alive. Without systemd every call does
// nothing.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <string>

#include "daemon/base/aside.h"

namespace mkernel::observe {

/// Control thread only: that it still answers the watchdog is the proof that the control thread is alive.
/// What is said goes out on another thread, because systemd may be stuck.
class ServiceManager {
 public:
  explicit ServiceManager(boost::asio::io_context& io);

  /// Start-up is complete; `status` is what `systemctl status` shows. Begins to answer the watchdog, if the
  /// unit sets one.
  void ready(const std::string& status);
  /// Followed by ready() when the reload is done.
  void reloading();
  /// Stopping may take up to `limit` beyond the unit's own stop time-out.
  void stopping(std::chrono::milliseconds limit);

 private:
  void answer_watchdog();
  void notify(const std::string& state);
  void send_waiting();

  base::Aside sender_;
  std::string waiting_;  ///< said while the sender was busy: lines, as sd_notify() takes them
  boost::asio::steady_timer timer_;
  std::chrono::microseconds watchdog_{0};  ///< 0: none
};

}  // namespace mkernel::observe
