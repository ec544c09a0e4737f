// PCIe access control services: whether a bridge sends traffic between its devices up to the CPU.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace mkernel::mkctl::doctor {

/// `config`: a bridge's configuration space, from byte 0. True when requests or completions between devices
/// below it are redirected upstream. Nothing when `config` ends before the extended capabilities, which the
/// kernel shows to root alone, or when their list is broken.
std::optional<bool> acs_redirects(const std::vector<std::uint8_t>& config);

}  // namespace mkernel::mkctl::doctor
