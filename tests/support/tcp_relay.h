// A byte relay on loopback between whoever dials it and a target: the wire that tests can slow down and cut.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "proto/ipc/fd.h"

namespace mkernel::test {

/// Runs on a thread of its own. Every call below may be made from any thread.
class TcpRelay {
 public:
  enum Direction { kToTarget = 0, kFromTarget = 1 };

  /// Relays to 127.0.0.1:`target_port`.
  explicit TcpRelay(std::uint16_t target_port);
  ~TcpRelay();

  /// "127.0.0.1:port" to dial instead of the target.
  std::string endpoint() const;

  /// Bytes leave no sooner than this after they came, and no faster than this (gigabytes per second, 0 =
  /// unlimited).
  void shape(Direction direction, std::chrono::microseconds latency, double bandwidth_gbytes);
  /// Resets every connection, and every new one until heal().
  void cut();
  void heal();
  /// Resets every connection once, when `bytes` more bytes have been forwarded in that direction.
  void cut_after(Direction direction, std::uint64_t bytes);

  /// Connections that were reset.
  std::uint64_t resets() const { return resets_.load(); }
  std::uint64_t forwarded(Direction direction) const { return forwarded_[direction].load(); }

 private:
  class Pipe;
  struct Connection;

  void run();
  void accept_all();
  bool serve(Connection& connection);
  void reset_all();
  /// Milliseconds from `now` until the first bytes that are not due by then are, -1 for none.
  int wait_milliseconds(std::chrono::steady_clock::time_point now) const;

  const std::uint16_t target_port_;
  ipc::UniqueFd listener_;
  ipc::UniqueFd wake_;
  std::uint16_t port_ = 0;

  std::atomic<bool> stop_{false};
  std::atomic<bool> down_{false};
  std::atomic<bool> reset_{false};
  std::atomic<std::uint64_t> resets_{0};
  std::atomic<std::uint64_t> forwarded_[2] = {0, 0};
  std::atomic<std::uint64_t> cut_at_[2] = {UINT64_MAX, UINT64_MAX};
  std::atomic<std::int64_t> latency_us_[2] = {0, 0};
  std::atomic<double> bytes_per_us_[2] = {0, 0};
  std::vector<std::unique_ptr<Connection>> connections_;  // of the thread
  std::thread thread_;
};

}  // namespace mkernel::test
