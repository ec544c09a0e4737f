// The join secret of a group, as a user gives it: 64 hexadecimal digits in a file or in the environment,
// never on the command line, which every user of the machine can read.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "tools/mkrun/launcher_env.h"

namespace mkernel::mkrun {

using GroupSecret = std::array<std::byte, 32>;

/// The variable that is read when no file is named.
inline constexpr const char* kSecretVariable = "MKERNEL_GROUP_SECRET";

/// Exactly 64 hexadecimal digits, white space around them allowed. Errors: kInvalidArgument, which names
/// `source` and never what it holds; zeros are refused, for they mean that there is no secret.
Result<GroupSecret> parse_secret(const std::string& text, const std::string& source);

/// From `file` if one is named, else from the environment if it is set there, else zeros: none. Errors: those
/// of parse_secret(); kNotFound for a file that cannot be read; kPermissionDenied for one that others than
/// its owner may read.
Result<GroupSecret> read_secret(const std::string& file, const Environment& environment);

/// The same with the environment of this process.
Result<GroupSecret> read_secret(const std::string& file);

}  // namespace mkernel::mkrun
