// Ownership of what libibverbs makes.
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
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

/// From the kernel's generator: what others have been given says nothing about it. For the rare case only, as
/// it takes a system call.
inline std::uint32_t random_bits() {
  return std::random_device{}();
}

/// "mlx5_0: creating a queue pair: Cannot allocate memory".
inline Status call_failed(const std::string& device, const std::string& what, int error) {
  const StatusCode code = error == ENOMEM || error == ENOSPC  ? StatusCode::kResourceExhausted
                          : error == EACCES || error == EPERM ? StatusCode::kPermissionDenied
                                                              : StatusCode::kUnavailable;
  return {code, device + ": " + what + ": " + std::strerror(error)};
}

}  // namespace mkernel::transport::rdma
