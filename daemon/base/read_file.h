// Small files that an operator names.
#pragma once

#include <cstddef>
#include <string>

#include "proto/abi/status.h"

namespace mkernel::base {

/// What configuration and certificates may have.
inline constexpr std::size_t kMaxFileBytes = std::size_t{4} << 20;

/// The whole regular file. A pipe, a device or a folder is refused and not waited for; a file server that
/// hangs can still block the caller (see aside.h). Errors: kNotFound when there is none, kPermissionDenied,
/// kInvalidArgument when it is no regular file or larger than `max_bytes`, kUnavailable otherwise; each names
/// the path.
Result<std::string> read_file(const std::string& path, std::size_t max_bytes = kMaxFileBytes);

}  // namespace mkernel::base
