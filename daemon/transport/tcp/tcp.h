// The TCP transport: for clusters without RDMA. Payload goes from region memory to the socket and from the
// socket to region memory; the receiving side publishes. README.md in this folder describes how it works.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "daemon/memory/copy_engines.h"
#include "daemon/transport/transport.h"
#include "proto/abi/status.h"

namespace mkernel::transport {

enum class ZeroCopy : std::uint8_t {
  kAuto,  ///< tried, and given up on a connection where the kernel says that it copies after all
  kNever,
  kAlways,  ///< kept up even where the kernel copies
};

struct TcpOptions {
  TransportOptions base;
  std::string bind_address = "127.0.0.1";  ///< numeric, IPv4 or IPv6
  std::uint16_t port = 0;                  ///< 0: any free one
  /// Host that peers dial; empty: bind_address, or when that is a wildcard the first address of this machine
  /// that is not loopback.
  std::string advertise;
  std::uint32_t connections_per_peer = 2;  ///< 1..64; of the two ends' choices that of the dialling end holds
  std::uint64_t socket_buffer_bytes = 0;   ///< 0: the kernel's own tuning
  ZeroCopy zero_copy = ZeroCopy::kAuto;    ///< MSG_ZEROCOPY
  std::uint64_t zero_copy_bytes = 256 * 1024;  ///< for puts of at least this length
  std::uint32_t window = 1024;                 ///< puts of one channel in flight, 1..32767
  /// What copies from and to GPU memory, this transport's alone; null = host memory only.
  std::shared_ptr<memory::CopyEngines> engines;
};

/// Listens and returns the transport. Errors: kInvalidArgument for an option out of its range or an address
/// that is none; kAlreadyExists for an occupied port, with address, port and where /proc shows it the process
/// that holds it.
Result<std::unique_ptr<Transport>> make_tcp(const TcpOptions& options);

}  // namespace mkernel::transport
