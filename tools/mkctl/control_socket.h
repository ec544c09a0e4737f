// What is found at the path of a control socket, before gRPC is asked: gRPC only says that it is not
// connected.
#pragma once

#include <string>

namespace mkernel::mkctl {

/// Connects once and hangs up. Empty when somebody listens at `path`; else why nobody can be reached there,
/// for people: no such path, not a socket, another kind of socket, nobody listens, or permission denied and
/// whose it is.
std::string why_unreachable(const std::string& path);

/// Who listens at `path`: "process 4711 (nc) of user alice"; "somebody" where the kernel does not say.
std::string who_listens(const std::string& path);

}  // namespace mkernel::mkctl
