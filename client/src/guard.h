// The border of the library: no exception leaves it. What the standard library throws (memory, threads that
// cannot be started) becomes a status.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "client/src/home.h"
#include "proto/abi/status.h"

namespace mkernel::client {

/// In a catch clause: the status of what was caught.
inline Status status_of_exception() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return {StatusCode::kResourceExhausted, "out of memory"};
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::resource_unavailable_try_again) {
      return {StatusCode::kResourceExhausted,
              std::string("cannot start a thread: ") + error.what() +
                  " (limits of processes and threads: ulimit -u, pids.max of the cgroup)"};
    }
    return {StatusCode::kInternal, error.what()};
  } catch (const std::exception& error) {
    return {StatusCode::kInternal, std::string("unexpected exception: ") + error.what()};
  } catch (...) {
    return {StatusCode::kInternal, "unexpected exception"};
  }
}

/// Runs `body`, which returns a Status or a Result.
template <typename Body>
auto without_exceptions(Body&& body) -> decltype(body()) {
  try {
    return std::forward<Body>(body)();
  } catch (...) {
    return status_of_exception();
  }
}

/// The same for a public call on an object of `home`: refused in a child of that process.
template <typename Body>
auto call(const Home& home, Body&& body) -> decltype(body()) {
  if (!home.here()) return home.check();
  return without_exceptions(std::forward<Body>(body));
}

}  // namespace mkernel::client
