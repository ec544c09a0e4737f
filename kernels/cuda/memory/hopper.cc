#include "kernels/cuda/memory/hopper.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>
#include <string>

#include "kernels/cuda/memory/driver_version.h"
#include "kernels/cuda/memory/error.h"
#include "proto/base/mutex.h"

namespace mkernel::kernels {
namespace {

struct Device {
  std::string name;
  int major = 0, minor = 0;
  std::int32_t sms = 0;
  double clock = 0;  ///< cycles a second
};

/// What does not change while the process lives, asked once per device: CUDA takes its time over properties,
/// and gemm_sm90() wants them for every launch.
Result<Device> describe(int device) {
  static Mutex mutex;
  static std::map<int, Device> known MK_GUARDED_BY(mutex);
  const MutexLock lock(mutex);
  if (const auto found = known.find(device); found != known.end()) return found->second;
  cudaDeviceProp is{};
  MK_RETURN_IF_ERROR(cuda_status(cudaGetDeviceProperties(&is, device), "device properties"));
  int khz = 0;
  MK_RETURN_IF_ERROR(cuda_status(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, device), "device clock"));
  return known[device] = {is.name, is.major, is.minor, is.multiProcessorCount, khz * 1e3};
}

}  // namespace

Status check_driver() {
  int driver = 0, runtime = 0;
  MK_RETURN_IF_ERROR(cuda_status(cudaDriverGetVersion(&driver), "version of the CUDA driver"));
  MK_RETURN_IF_ERROR(cuda_status(cudaRuntimeGetVersion(&runtime), "version of the CUDA runtime"));
  return check_driver_version(driver, runtime);
}

Result<Machine> hopper_machine(std::string_view who, std::string_view named, std::int32_t at_most) {
  const std::string name(who);
  const Status driver = check_driver();
  if (!driver.ok()) return Status(driver.code(), name + ": " + driver.text());
  int device = 0;
  MK_RETURN_IF_ERROR(cuda_status(cudaGetDevice(&device), name + ": current device"));
  const auto found = describe(device);
  if (!found.ok()) return Status(found.status().code(), name + ": " + found.status().text());
  const Device& device_is = found.value();
  if (device_is.major != 9 || device_is.minor != 0) {
    return Status(StatusCode::kUnimplemented, name + ": device " + std::to_string(device) +
                                                  " has compute capability " +
                                                  std::to_string(device_is.major) + "." +
                                                  std::to_string(device_is.minor) + ", the kernels need 9.0");
  }
  const std::int32_t all = device_is.sms;
  const std::int32_t sms = at_most != 0 ? std::min(all, at_most) : all;
  if (named.empty()) return machine_of_device(device_is.name, sms, device_is.clock);
  auto machine = machine_named(named);
  if (!machine.ok()) return Status(machine.status().code(), name + ": " + machine.status().text());
  return machine->with_sms(sms);
}

}  // namespace mkernel::kernels
