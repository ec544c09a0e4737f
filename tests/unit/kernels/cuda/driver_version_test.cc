#include "kernels/cuda/memory/driver_version.h"

#include <doctest/doctest.h>

namespace mkernel::kernels {
namespace {

TEST_CASE("a driver runs what is built with the CUDA of its major version, and of older ones") {
  CHECK(check_driver_version(13000, 13000).ok());
  CHECK(check_driver_version(13010, 12090).ok());
  CHECK(check_driver_version(12090, 12090).ok());
  CHECK(check_driver_version(12000, 12090).ok());  // compatibility of minor versions
}

TEST_CASE("a driver that is too old is refused with its version, what is needed, and why") {
  const Status status = check_driver_version(12090, 13000);
  CHECK(status.code() == StatusCode::kUnavailable);
  CHECK(
      status.text() ==
      "the CUDA driver supports CUDA 12.9, and this build has the runtime of CUDA 13.0 in it, which needs a "
      "driver of CUDA 13.0 (580) or newer: update the driver, or build with CUDA 12");
  CHECK(
      check_driver_version(11080, 12090).text() ==
      "the CUDA driver supports CUDA 11.8, and this build has the runtime of CUDA 12.9 in it, which needs a "
      "driver of CUDA 12.0 (525) or newer: update the driver");
  CHECK(check_driver_version(0, 13000).text() == "no CUDA driver on this machine (libcuda.so.1 not found)");
}

}  // namespace
}  // namespace mkernel::kernels
