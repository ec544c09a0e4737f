#include "tools/mkctl/connection.h"

#include <grpcpp/grpcpp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "mkernel/v1/control.grpc.pb.h"
#include "tools/mkctl/table.h"

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

struct Connection::Wire {
  template <typename Request, typename Message>
  using Method = grpc::Status (v1::Control::Stub::*)(grpc::ClientContext*, const Request&, Message*);

  template <typename Request, typename Message>
  Reply call(Method<Request, Message> method, const Request& request) {
    if (const std::string why = why_unreachable(socket); !why.empty())
      return Status(StatusCode::kUnavailable, "no daemon reachable at " + socket + ": " + why);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    Message message;
    const grpc::Status status = ((*stub).*method)(&context, request, &message);
    if (status.ok()) return to_json(message);
    const bool lost = status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                      status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
    if (lost)
      return Status(StatusCode::kUnavailable, "no answer from " + socket + ": " + status.error_message());
    return Status(static_cast<StatusCode>(status.error_code()), status.error_message());
  }

  const std::string& socket;
  std::unique_ptr<v1::Control::Stub> stub;
};

using Stub = v1::Control::Stub;

Connection::Connection(const std::string& socket)
    : socket_(socket),
      wire_(new Wire{socket_, v1::Control::NewStub(grpc::CreateChannel(
                                  "unix:" + socket, grpc::InsecureChannelCredentials()))}) {}
Connection::~Connection() = default;

Reply Connection::status() {
  return wire_->call(&Stub::GetStatus, v1::StatusRequest());
}
Reply Connection::sessions() {
  return wire_->call(&Stub::ListSessions, v1::SessionsRequest());
}
Reply Connection::users() {
  return wire_->call(&Stub::ListUsers, v1::UsersRequest());
}
Reply Connection::peers() {
  return wire_->call(&Stub::ListPeers, v1::PeersRequest());
}
Reply Connection::groups() {
  return wire_->call(&Stub::ListGroups, v1::GroupsRequest());
}
Reply Connection::regions() {
  return wire_->call(&Stub::ListRegions, v1::RegionsRequest());
}
Reply Connection::channels(bool all) {
  v1::ChannelsRequest request;
  request.set_all(all);
  return wire_->call(&Stub::ListChannels, request);
}
Reply Connection::devices() {
  return wire_->call(&Stub::ListDevices, v1::DevicesRequest());
}
Reply Connection::topology() {
  return wire_->call(&Stub::GetTopology, v1::TopologyRequest());
}
Reply Connection::config() {
  return wire_->call(&Stub::GetConfig, v1::ConfigRequest());
}
Reply Connection::set_link(const v1::LinkRequest& request) {
  return wire_->call(&Stub::SetLink, request);
}
Reply Connection::reload() {
  return wire_->call(&Stub::Reload, v1::ReloadRequest());
}

}  // namespace mkernel::mkctl
