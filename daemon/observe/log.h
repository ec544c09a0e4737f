// The daemon's log: standard error, one line per entry. A thread of its own writes it, so that no other
// thread waits for a reader that has stopped reading; see log_queue.h.
#pragma once

#include <cstdint>
#include <string>

namespace mkernel::observe {

/// Sets spdlog's default logger up. `level`: trace, debug, info, warn, error, off. `format`: text (time and
/// level), journal (priority prefix "<4>", no time: journald has both), json (one object per line), auto
/// (journal when the standard error is a socket, as under systemd, else text). Call once, from main. Throws
/// std::system_error when no thread can be started.
void start_logging(const std::string& level, const std::string& format);

/// From now on. Any thread.
void set_log_level(const std::string& level);

/// Before the process ends: lets the last lines be written, for one second at most.
void finish_logging();

/// Lines that were left out because the log's reader was too slow, or that could not be written. Any thread.
std::uint64_t dropped_log_lines();

}  // namespace mkernel::observe
