// gRPC's own log.
#pragma once

namespace mkernel::rpc {

/// Sends what gRPC itself logs through the daemon's log while this lives: by default gRPC prints to the
/// standard error on whichever thread it is. What of it counts is gRPC's own setting (GRPC_VERBOSITY, errors
/// alone by default). One at a time.
class GrpcLog {
 public:
  GrpcLog();
  ~GrpcLog();
  GrpcLog(const GrpcLog&) = delete;
  GrpcLog& operator=(const GrpcLog&) = delete;
};

}  // namespace mkernel::rpc
