// A shared object of rdma-core, opened for good, and its functions by name and symbol version.
#pragma once

#include <dlfcn.h>

#include <string>

#include "proto/abi/status.h"

namespace mkernel::transport::rdma {

/// One thread. Remembers the first function that was asked for in vain.
class SharedObject {
 public:
  /// `package`: what to install when there is no such file.
  static Result<SharedObject> open(const std::string& name, const std::string& package) {
    if (void* const handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return SharedObject(name, handle);
    return Status(StatusCode::kFailedPrecondition,
                  name + " cannot be loaded (" + std::string(::dlerror()) + "): install " + package);
  }

  /// The version is the one a program that was linked would have bound: several of these functions exist
  /// twice, and the older one takes other structures.
  template <typename Function>
  void find(Function& function, const char* symbol, const char* version) {
    function = reinterpret_cast<Function>(::dlvsym(handle_, symbol, version));
    if (function == nullptr && missing_.empty()) missing_ = std::string(symbol) + " (" + version + ")";
  }

  /// Null when there is none; not an error.
  template <typename Function>
  void find_optional(Function& function, const char* symbol, const char* version) {
    function = reinterpret_cast<Function>(::dlvsym(handle_, symbol, version));
  }

  /// OK when every find() found. `since`: the release that has all of them.
  Status complete(const std::string& since) const {
    if (missing_.empty()) return {};
    return {StatusCode::kFailedPrecondition, name_ + " has no " + missing_ + ": it is older than " + since};
  }

 private:
  SharedObject(std::string name, void* handle) : name_(std::move(name)), handle_(handle) {}

  std::string name_;
  void* handle_;
  std::string missing_;
};

}  // namespace mkernel::transport::rdma
