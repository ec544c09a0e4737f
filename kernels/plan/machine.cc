#include "kernels/plan/machine.h"

#include <array>

namespace mkernel::kernels {
namespace {

// Longer names first: "H20" is the beginning of "H200".
constexpr std::array kMachines{kH200, kH100, kH20};

}  // namespace

Result<Machine> machine_named(std::string_view name) {
  std::string known;
  for (const Machine& machine : kMachines) {
    if (machine.name == name) return machine;
    known += (known.empty() ? "" : ", ") + std::string(machine.name);
  }
  return Status(StatusCode::kInvalidArgument,
                "machine = \"" + std::string(name) + "\", must be one of " + known);
}

Machine machine_of_device(std::string_view device_name, std::int32_t sms) {
  for (const Machine& machine : kMachines) {
    if (device_name.find(machine.name) != std::string_view::npos) return machine.with_sms(sms);
  }
  return kH100.with_sms(sms);
}

}  // namespace mkernel::kernels
