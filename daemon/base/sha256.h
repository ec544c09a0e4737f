// SHA-256 of short texts and secrets.
#pragma once

#include <string>
#include <string_view>

#include "proto/abi/status.h"

namespace mkernel::base {

/// The 32 bytes of the digest. Errors: kInternal, when the library of cryptography refuses. Any thread.
Result<std::string> sha256(std::string_view bytes);

}  // namespace mkernel::base
