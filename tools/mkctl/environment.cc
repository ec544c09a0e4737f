#include "tools/mkctl/environment.h"

#include <cstdlib>

namespace mkernel::mkctl {

std::string default_socket() {
  const char* set = std::getenv("MKERNEL_CONTROL");
  return set != nullptr && *set != 0 ? set : "/run/mkernel/control.sock";
}

}  // namespace mkernel::mkctl
