#include "tools/mkctl/connection.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace mkernel::mkctl {
namespace {

/// Empty: somebody listens.
std::string why_unreachable(const std::string& socket) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket.size() >= sizeof(address.sun_path)) return "the path is too long for a socket";
  std::memcpy(address.sun_path, socket.c_str(), socket.size());
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int result = ::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address));
  const int error = errno;
  ::close(fd);
  if (result == 0) return {};
  if (error == ENOENT) return "there is no such socket (is mkerneld running? --socket names another)";
  if (error == ECONNREFUSED) return "nobody listens there any more (did mkerneld die?)";
  if (error == EACCES) return "permission denied (the socket belongs to mkerneld's user and group)";
  return std::strerror(error);
}

}  // namespace

Connection::Connection(const std::string& socket)
    : socket_(socket),
      stub_(v1::Control::NewStub(grpc::CreateChannel("unix:" + socket, grpc::InsecureChannelCredentials()))) {
}

Status Connection::reachable() const {
  const std::string why = why_unreachable(socket_);
  if (why.empty()) return {};
  return {StatusCode::kUnavailable, "no daemon reachable at " + socket_ + ": " + why};
}

Status Connection::failed(const grpc::Status& status) const {
  const bool lost = status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                    status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
  if (lost) return {StatusCode::kUnavailable, "no answer from " + socket_ + ": " + status.error_message()};
  return {static_cast<StatusCode>(status.error_code()), status.error_message()};
}

}  // namespace mkernel::mkctl
