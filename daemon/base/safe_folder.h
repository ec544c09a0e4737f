// Folders in which nobody but root and this process's user can put anything else in the place of a file.
#pragma once

#include <string>

#include "proto/abi/status.h"

namespace mkernel::base {

/// OK when `path` and every folder and symbolic link on the way to it from "/" belong to root or to this
/// process's user, and no folder may be written by others, unless its sticky bit keeps them from each other's
/// files. So nobody else can change what a path in it leads to. kPermissionDenied names the folder, its owner
/// and its mode; kNotFound and the like when it cannot be looked at.
Status check_safe_folder(const std::string& path);

/// Makes the folder and those above it, as far as they are missing, with mode 0755 less the umask. Errors:
/// the system's reason.
Status make_folders(const std::string& path);

}  // namespace mkernel::base
