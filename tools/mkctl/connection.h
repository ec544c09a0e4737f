// The way to a daemon's control service.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "mkernel/v1/control.grpc.pb.h"
#include "proto/abi/status.h"
#include "tools/mkctl/table.h"

namespace mkernel::mkctl {

/// One thread. Nothing is sent before the first call.
class Connection {
 public:
  template <typename Request, typename Reply>
  using Method = grpc::Status (v1::Control::Stub::*)(grpc::ClientContext*, const Request&, Reply*);

  explicit Connection(const std::string& socket);

  const std::string& socket() const { return socket_; }

  /// Calls one method; the reply as JSON. Errors: kUnavailable when no daemon answers within 10 s, with the
  /// socket and the reason; else what the daemon says.
  template <typename Request, typename Reply>
  Result<nlohmann::ordered_json> call(Method<Request, Reply> method, const Request& request) {
    MK_RETURN_IF_ERROR(reachable());
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    Reply message;
    const grpc::Status status = ((*stub_).*method)(&context, request, &message);
    if (!status.ok()) return failed(status);
    return to_json(message);
  }

 private:
  /// What a plain connect says: clearer than gRPC's own words, and at once.
  Status reachable() const;
  Status failed(const grpc::Status& status) const;

  const std::string socket_;
  const std::unique_ptr<v1::Control::Stub> stub_;
};

}  // namespace mkernel::mkctl
