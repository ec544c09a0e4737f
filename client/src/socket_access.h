#pragma once

#include <string>

namespace mkernel::client {

/// What the text of a refusal needs when this process may not connect to the Unix socket at `path`: who may,
/// by the owner, group and mode of the socket or of the folder that cannot be entered, who this process is,
/// and what to do. Reads the file system and the user database, which may wait: for errors alone.
std::string describe_access(const std::string& path);

}  // namespace mkernel::client
