// Ownership of what libibverbs makes.
#pragma once

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#include "daemon/transport/rdma/library.h"

namespace mkernel::transport::rdma {

template <typename T>
struct Destroy {
  int (*call)(T*) = nullptr;
  void operator()(T* object) const { call(object); }
};

/// One ibv_* object and the call that destroys it. What it was made of must live longer.
template <typename T>
using Object = std::unique_ptr<T, Destroy<T>>;

template <typename T>
Object<T> own(T* object, int (*destroy)(T*)) {
  return Object<T>(object, {destroy});
}

/// "mlx5_0: creating a queue pair: Cannot allocate memory".
inline Status call_failed(const std::string& device, const std::string& what, int error) {
  const StatusCode code = error == ENOMEM || error == ENOSPC  ? StatusCode::kResourceExhausted
                          : error == EACCES || error == EPERM ? StatusCode::kPermissionDenied
                                                              : StatusCode::kUnavailable;
  return {code, device + ": " + what + ": " + std::strerror(error)};
}

}  // namespace mkernel::transport::rdma
