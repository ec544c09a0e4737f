// Our statuses as gRPC's: the codes are the same numbers.
#pragma once

#include <grpcpp/grpcpp.h>

#include "daemon/base/printable.h"
#include "proto/abi/status.h"

namespace mkernel::rpc {

inline grpc::Status to_grpc(const Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), status.text()};
}

/// Its text comes from the other end, whoever that is, and goes into logs and tables.
inline Status from_grpc(const grpc::Status& status) {
  return {static_cast<StatusCode>(status.error_code()), base::one_line(status.error_message())};
}

}  // namespace mkernel::rpc
