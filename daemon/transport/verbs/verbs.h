// RDMA over reliable connections (libibverbs RC): ConnectX InfiniBand and RoCE, soft-RoCE. README.md says how
// the parts fit.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/transport/rdma/library.h"
#include "daemon/transport/rdma/registrations.h"
#include "daemon/transport/transport.h"

namespace mkernel::transport {

/// A port to use, and the entry of its GID table that was chosen for it.
struct VerbsPort {
  std::string device;  ///< "mlx5_0"
  std::uint8_t number = 1;
  std::uint32_t gid_index = 0;
  std::array<std::uint8_t, 16> gid{};
  bool operator==(const VerbsPort&) const = default;
};

struct VerbsOptions {
  TransportOptions base;
  rdma::VerbsLibrary verbs;
  /// By preference: the rail's own port, then those that take over when it fails. At least one.
  std::vector<VerbsPort> ports;
  /// Chooses the GID of a port again after its table or its state changed; nothing = it has none now. Called
  /// on the proxy thread. Empty: what `ports` says holds for ever.
  std::function<std::optional<VerbsPort>(const VerbsPort&)> choose_again;
  bool gpu_memory = false;                        ///< refused where a device takes no dma-buf
  std::uint32_t qps_per_peer = 2;                 ///< for each direction
  std::uint32_t send_queue = 1024;                ///< requests in one queue pair
  std::uint32_t window = 1024;                    ///< puts of one channel in flight
  std::uint32_t max_inline = 64;                  ///< bytes that are copied into the request, at least 8
  std::uint8_t timeout = 14;                      ///< 4.096 us x 2^n per attempt, 1..31
  std::uint8_t retry_count = 6;                   ///< 0..7, which soft-RoCE takes for endless
  std::uint8_t traffic_class = 0;                 ///< RoCE
  std::uint8_t service_level = 0;                 ///< InfiniBand; priority on RoCE
  std::uint64_t chunk_bytes = rdma::kChunkBytes;  ///< regions are registered in such pieces; a power of two
};

/// Opens every port; one that is down is used when it comes up. Errors: kInvalidArgument (options),
/// kNotFound (no such device, with those that are there), kFailedPrecondition (no dma-buf), kPermissionDenied
/// and others of the device, named.
Result<std::unique_ptr<Transport>> make_verbs(const VerbsOptions& options);

}  // namespace mkernel::transport
