// The one place where mkctl reads its environment.
#pragma once

#include <string>

namespace mkernel::mkctl {

/// MKERNEL_CONTROL, or the control socket of a daemon with the default configuration.
std::string default_socket();

}  // namespace mkernel::mkctl
