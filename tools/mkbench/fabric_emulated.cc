#include <unistd.h>

#include "daemon/transport/emulated/emulated.h"
#include "tools/mkbench/fabric.h"

namespace mkernel::bench {

Result<std::vector<FabricRow>> measure_fabric_emulated(const std::vector<std::uint32_t>& sizes,
                                                       std::chrono::seconds seconds) {
  const auto make = [](const transport::TransportOptions& base) {
    transport::EmulatedOptions options;
    options.base = base;
    options.rail =
        static_cast<std::uint32_t>(::getpid());  // two benchmarks may run at once: names must differ
    return transport::make_emulated(options);
  };
  return measure_fabric(make, sizes, seconds);
}

}  // namespace mkernel::bench
