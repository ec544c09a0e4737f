#include "kernels/plan/machine.h"

#include <array>
#include <cmath>

namespace mkernel::kernels {
namespace {

// Longer names first: "H20" is the beginning of "H200".
constexpr std::array kMachines{kH200, kH100, kH20};

}  // namespace

double push_seconds(const Machine& machine, double bytes, std::int32_t stores, std::int32_t links,
                    std::int32_t ctas) {
  return std::pow(std::pow(bytes * stores / (ctas * machine.push_bytes), 4) +
                      std::pow(bytes * links / machine.links_bulk, 4),
                  0.25);
}

Result<Machine> with_paced_links(const Machine& machine, double gbytes, const std::string& who) {
  if (!(gbytes >= 0)) {
    return Status(StatusCode::kInvalidArgument,
                  who + ": link_gbytes = " + std::to_string(gbytes) + ", must be at least 0");
  }
  Machine paced = machine;
  if (gbytes > 0) paced.links_bulk = paced.links_store = paced.paced_links = gbytes * 1e9;
  return paced;
}

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
