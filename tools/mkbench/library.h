// A shared library that is loaded when a benchmark asks for it, so that mkbench starts on machines without
// it.
#pragma once

#include <dlfcn.h>

#include <initializer_list>
#include <string>

#include "proto/abi/status.h"

namespace mkernel::bench {

class Library {
 public:
  /// The first of `names` that loads; kUnavailable naming all of them and the last reason. Stays loaded.
  static Result<Library> open(std::initializer_list<const char*> names) {
    std::string tried;
    for (const char* name : names) {
      if (void* handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL)) return Library(name, handle);
      tried += (tried.empty() ? "" : ", ") + std::string(name);
    }
    const char* why = ::dlerror();
    return Status(StatusCode::kUnavailable,
                  "none of " + tried + " can be loaded: " + (why != nullptr ? why : "unknown reason"));
  }

  template <typename Function>
  Status find(const char* name, Function& function) const {
    function = reinterpret_cast<Function>(::dlsym(handle_, name));
    if (function != nullptr) return {};
    return {StatusCode::kUnavailable, name_ + " has no " + name};
  }

 private:
  Library(const char* name, void* handle) : name_(name), handle_(handle) {}

  std::string name_;
  void* handle_;
};

}  // namespace mkernel::bench
