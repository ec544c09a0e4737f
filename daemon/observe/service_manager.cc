#include "daemon/observe/service_manager.h"

#include <systemd/sd-daemon.h>

#include <cstdint>
#include <ctime>
#include <utility>

namespace mkernel::observe {
namespace {

/// After it the sender counts as stuck; what is said then is kept until it comes back.
constexpr std::chrono::seconds kSendWithin{5};
constexpr std::size_t kMostWaiting = 4096;

std::uint64_t monotonic_microseconds() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1000000 + static_cast<std::uint64_t>(now.tv_nsec) / 1000;
}

}  // namespace

ServiceManager::ServiceManager(boost::asio::io_context& io) : sender_(io, "notifying systemd"), timer_(io) {
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

void ServiceManager::notify(const std::string& state) {
  if (waiting_.size() > kMostWaiting) waiting_.clear();  // systemd is stuck: the newest state is what counts
  const bool said = ("\n" + waiting_ + "\n").find("\n" + state + "\n") != std::string::npos;
  if (!said) waiting_ += (waiting_.empty() ? "" : "\n") + state;
  if (!sender_.busy()) send_waiting();
}

void ServiceManager::send_waiting() {
  // Without systemd it does nothing. One that failed is systemd's to complain about.
  const auto send = [state = std::exchange(waiting_, {})] { return sd_notify(0, state.c_str()); };
  sender_.run<int>(kSendWithin, send, [this, send](const Result<int>& sent) {
    if (sent.status().code() == StatusCode::kResourceExhausted) send();  // no thread: here, then
    if (sent.ok() && !waiting_.empty()) send_waiting();
  });
}

void ServiceManager::answer_watchdog() {
  notify("WATCHDOG=1");
  timer_.expires_after(watchdog_ / 2);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) answer_watchdog();
  });
}

}  // namespace mkernel::observe
