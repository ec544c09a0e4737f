#include "kernels/cuda/memory/driver_version.h"

#include <string>

namespace mkernel::kernels {
namespace {

constexpr int kOldest = 12000;  ///< with which all of it works, when it is built with CUDA 12

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

/// The branch of drivers that began with a CUDA version, as their own version numbers name it.
std::string branch_of(int version) {
  switch (version) {
    case 12000: return " (525)";
    case 13000: return " (580)";
    default: return "";
  }
}

}  // namespace

Status check_driver_version(int driver, int runtime) {
  if (driver == 0) {
    return {StatusCode::kUnavailable, "no CUDA driver on this machine (libcuda.so.1 not found)"};
  }
  const int needed = runtime / 1000 * 1000;
  if (driver >= needed) return {};
  return {StatusCode::kUnavailable,
          "the CUDA driver supports CUDA " + version_text(driver) +
              ", and this build has the runtime of CUDA " + version_text(runtime) +
              " in it, which needs a driver of CUDA " + version_text(needed) + branch_of(needed) +
              " or newer: update the driver" +
              (driver >= kOldest ? ", or build with CUDA " + std::to_string(driver / 1000) : "")};
}

}  // namespace mkernel::kernels
