// Two launches of the cuda executor at the same time, which the rules forbid.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <string>

#include "kernels/cuda/memory/hopper.h"
#include "proto/abi/status.h"
#include "tests/support/gpu_held_stream.h"
#include "tests/support/require.h"
#include "tools/mkbench/gpu_stream.h"

namespace mkernel::test {

/// Multiprocessors of the current device for each of two launches: an even number.
inline std::int32_t half_of_the_sms() {
  return require(kernels::hopper_machine("two launches")).sms / 4 * 2;
}

/// Queues `first(stream)` and `second(stream)` on a stream each, lets both begin together, and waits until
/// both have ended. Both wait on the GPU, since on a busy host the first would be over before the second is
/// queued. Each has to leave multiprocessors for the other.
template <class First, class Second>
void launch_at_the_same_time(const First& first, const Second& second) {
  const auto one = require(bench::GpuStream::create()), other = require(bench::GpuStream::create());
  HeldStream held(one.get()), other_held(other.get());
  require_ok(held.status());
  require_ok(other_held.status());
  require_ok(first(one.get()));
  require_ok(second(other.get()));
  held.let_go();
  other_held.let_go();
  require_ok(one.synchronize());
  require_ok(other.synchronize());
}

/// The status of an operation `name`, two launches of which ran at the same time.
inline void check_not_alone(const Status& status, const std::string& name) {
  CHECK(status.code() == StatusCode::kFailedPrecondition);
  CHECK_MESSAGE(
      status.text().find(name + ": rank 0: two launches of the operation ran at the same time: when this one "
                                "began 1 had ended, when it ended 2; the results of both are void") == 0,
      status.text());
}

}  // namespace mkernel::test
