// Programs that run beside this one.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "proto/abi/status.h"
#include "proto/ipc/fd.h"

namespace mkernel::bench {

/// Starts it with its output going to `out`. Returns its pid. Errors: kNotFound when it is not installed,
/// kUnavailable.
Result<pid_t> spawn_program(const std::vector<std::string>& command, int out);

/// A program whose output is thrown away or read; ended (SIGTERM) and reaped with the object.
class Program {
 public:
  /// Its output is thrown away. Errors: spawn_program()'s.
  static Result<Program> start(const std::vector<std::string>& command);
  /// Its output is kept for read_lines().
  static Result<Program> start_talking(const std::vector<std::string>& command);
  Program(Program&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), out_(std::move(other.out_)), text_(std::move(other.text_)) {}
  ~Program();

  /// The whole lines that have come since the last call; waits for the first at most `limit`, and not for a
  /// program that has ended.
  std::vector<std::string> read_lines(std::chrono::milliseconds limit);
  /// SIGKILL, and reaped. Idempotent.
  void kill();

 private:
  Program(pid_t pid, ipc::UniqueFd out) : pid_(pid), out_(std::move(out)) {}

  pid_t pid_;
  ipc::UniqueFd out_;
  std::string text_;  ///< read, and not a whole line yet
};

}  // namespace mkernel::bench
