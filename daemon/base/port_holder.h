// Who listens on a port: for the error message of an occupied one.
#pragma once

#include <cstdint>
#include <string>

namespace mkernel::base {

/// " (held by mkerneld, pid 4711)" for the process that listens on the TCP port, as far as /proc shows it;
/// else "".
std::string port_holder(std::uint16_t port);

}  // namespace mkernel::base
