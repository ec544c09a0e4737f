// Our statuses as gRPC's: the codes are the same numbers.
#pragma once

#include <grpcpp/grpcpp.h>

#include "proto/abi/status.h"

namespace mkernel::rpc {

inline grpc::Status to_grpc(const Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), status.text()};
}

inline Status from_grpc(const grpc::Status& status) {
  return {static_cast<StatusCode>(status.error_code()), status.error_message()};
}

}  // namespace mkernel::rpc
