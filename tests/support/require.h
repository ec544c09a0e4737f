// What a test cannot go on without.
#pragma once

#include <doctest/doctest.h>

#include <utility>

#include "proto/abi/status.h"

namespace mkernel::test {

/// Ends the test case with the status' text when it is an error. On the thread of the test case only.
inline void require_ok(const Status& status) {
  REQUIRE_MESSAGE(status.ok(), status.to_string());
}

/// The value, or the end of the test case.
template <typename T>
T require(Result<T> result) {
  require_ok(result.status());
  return std::move(result).value();
}

}  // namespace mkernel::test
