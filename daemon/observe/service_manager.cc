#include "daemon/observe/service_manager.h"

#include <systemd/sd-daemon.h>

#include <cstdint>
#include <ctime>

namespace mkernel::observe {
namespace {

void notify(const std::string& state) {
  // Nobody to tell is the normal case outside systemd; a failed notification is systemd's to complain about.
  static_cast<void>(sd_notify(0, state.c_str()));
}

std::uint64_t monotonic_microseconds() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1000000 + static_cast<std::uint64_t>(now.tv_nsec) / 1000;
}

}  // namespace

ServiceManager::ServiceManager(boost::asio::io_context& io) : timer_(io) {
  std::uint64_t microseconds = 0;
  if (sd_watchdog_enabled(0, &microseconds) > 0) watchdog_ = std::chrono::microseconds(microseconds);
}

void ServiceManager::ready(const std::string& status) {
  notify("READY=1\nSTATUS=" + status);
  if (watchdog_.count() > 0) answer_watchdog();
}

void ServiceManager::reloading() {
  notify("RELOADING=1\nMONOTONIC_USEC=" + std::to_string(monotonic_microseconds()));
}

void ServiceManager::stopping(std::chrono::milliseconds limit) {
  const auto microseconds = std::chrono::duration_cast<std::chrono::microseconds>(limit).count();
  notify("STOPPING=1\nSTATUS=draining\nEXTEND_TIMEOUT_USEC=" + std::to_string(microseconds));
}

void ServiceManager::answer_watchdog() {
  notify("WATCHDOG=1");
  timer_.expires_after(watchdog_ / 2);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) answer_watchdog();
  });
}

}  // namespace mkernel::observe
