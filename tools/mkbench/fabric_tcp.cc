#include "daemon/transport/tcp/tcp.h"
#include "tools/mkbench/fabric.h"

namespace mkernel::bench {

Result<std::vector<FabricRow>> measure_fabric_tcp(const std::vector<std::uint32_t>& sizes,
                                                  std::chrono::seconds seconds) {
  const auto make = [](const transport::TransportOptions& base) {
    transport::TcpOptions options;
    options.base = base;
    return transport::make_tcp(options);
  };
  return measure_fabric(make, sizes, seconds);
}

}  // namespace mkernel::bench
