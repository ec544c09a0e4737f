// User ids for people.
#pragma once

#include <sys/types.h>

#include <string>

namespace mkernel::mkctl {

/// "alice", or the number where this machine knows no name for it.
std::string user_name(uid_t uid);

}  // namespace mkernel::mkctl
