// The daemon's log: standard error, one line per entry.
#pragma once

#include <string>

namespace mkernel::observe {

/// Sets spdlog's default logger up. `level`: trace, debug, info, warn, error, off. `format`: text (time and
/// level), journal (priority prefix "<4>", no time: journald has both), json (one object per line), auto
/// (journal when the standard error is a socket, as under systemd, else text). Call once, from main.
void start_logging(const std::string& level, const std::string& format);

/// From now on. Any thread.
void set_log_level(const std::string& level);

}  // namespace mkernel::observe
