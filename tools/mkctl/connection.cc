#include "tools/mkctl/connection.h"

#include <grpcpp/grpcpp.h>

#include <cctype>
#include <cstdio>
#include <string_view>

#include "mkernel/v1/control.grpc.pb.h"
#include "tools/mkctl/control_socket.h"
#include "tools/mkctl/table.h"

namespace mkernel::mkctl {
namespace {

/// Of one request, once the daemon has been reached: above the 5 s (17 s of a reload) in which it says itself
/// that it is stuck.
constexpr std::chrono::seconds kAnswerWithin{20};
/// Of a list, which may have millions of rows and comes in parts; each of them has the 5 s.
constexpr std::chrono::seconds kListWithin{120};

/// gRPC takes a URI, in which '%', '?', '#' and spaces of a path mean something else.
std::string uri_of(const std::string& path) {
  constexpr std::string_view kPlain = "/-._~";
  std::string uri = path.starts_with('/') ? "unix://" : "unix:";
  for (const char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80 && (std::isalnum(byte) != 0 || kPlain.find(c) != std::string_view::npos)) {
      uri += c;
    } else {
      char escaped[4];
      std::snprintf(escaped, sizeof(escaped), "%%%02X", static_cast<unsigned>(byte));
      uri += escaped;
    }
  }
  return uri;
}

}  // namespace

struct Connection::Wire {
  template <typename Request, typename Message>
  using Method = grpc::Status (v1::Control::Stub::*)(grpc::ClientContext*, const Request&, Message*);
  template <typename Request, typename Message>
  using ListMethod = std::unique_ptr<grpc::ClientReader<Message>> (v1::Control::Stub::*)(grpc::ClientContext*,
                                                                                         const Request&);

  template <typename Request, typename Message>
  Reply call(Method<Request, Message> method, const Request& request) {
    return ask<Message>(kAnswerWithin, [&](grpc::ClientContext& context, Message& message) {
      return ((*stub).*method)(&context, request, &message);
    });
  }
  /// A list, whose parts are put together.
  template <typename Request, typename Message>
  Reply call(ListMethod<Request, Message> method, const Request& request) {
    return ask<Message>(kListWithin, [&](grpc::ClientContext& context, Message& message) {
      const auto parts = ((*stub).*method)(&context, request);
      for (Message part; parts->Read(&part);) message.MergeFrom(part);
      return parts->Finish();
    });
  }

  template <typename Message, typename Ask>
  Reply ask(std::chrono::seconds limit, const Ask& ask_for) {
    if (Status reached = reach(); !reached.ok()) return reached;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + limit);
    Message message;
    const grpc::Status status = ask_for(context, message);
    if (status.ok()) return to_json(message);
    if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED && status.error_message().empty())
      return Status(StatusCode::kUnimplemented, who_listens(socket) + " answers at " + socket +
                                                    ", but does not know this request: mkerneld of another "
                                                    "version, or another program");
    const bool lost = status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                      status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
    if (lost)
      return Status(StatusCode::kUnavailable, "no answer from " + socket + ": " + status.error_message());
    return Status(static_cast<StatusCode>(status.error_code()), status.error_message());
  }

  /// OK once gRPC's first words have been exchanged: until then a request would wait for its own deadline.
  Status reach() {
    if (const std::string why = why_unreachable(socket); !why.empty())
      return {StatusCode::kUnavailable, "no daemon reachable at " + socket + ": " + why};
    if (channel == nullptr) {  // not before: gRPC has words of its own for a path that is no socket's
      channel = grpc::CreateChannel(uri_of(socket), grpc::InsecureChannelCredentials());
      stub = v1::Control::NewStub(channel);
    }
    if (channel->WaitForConnected(std::chrono::system_clock::now() + patience)) return {};
    std::string seconds = nlohmann::json(std::chrono::duration<double>(patience).count()).dump();
    return {StatusCode::kUnavailable, "no daemon reachable at " + socket + ": " + who_listens(socket) +
                                          " listens there, but did not answer as mkerneld does within " +
                                          seconds + " s (another program, or a daemon that is stopped)"};
  }

  const std::string& socket;
  const std::chrono::milliseconds patience;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Control::Stub> stub;
};

using Stub = v1::Control::Stub;

Connection::Connection(const std::string& socket, std::chrono::milliseconds patience)
    : socket_(socket), wire_(new Wire{socket_, patience, nullptr, nullptr}) {}
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
