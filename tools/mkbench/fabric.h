// Put latency and bandwidth of one transport between two nodes: both played in this process, each polled by a
// thread of its own, or two machines.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "daemon/transport/transport.h"
#include "proto/abi/status.h"

namespace mkernel::bench {

class Pipe;
struct PerftestDevice;

/// One size of put.
struct FabricRow {
  std::string transport;
  std::uint64_t bytes = 0;            ///< payload of one put
  double gbytes_per_second = 0;       ///< payload, one direction, the channel's window kept full
  double latency_p50_us = 0;          ///< one put at a time, from submit() to completed()
  double half_round_trip_p50_us = 0;  ///< half of: a put, seen by the other end, which answers with another
  std::uint64_t puts = 0;             ///< in the bandwidth part
  bool verified = false;              ///< every byte of every round was right
};

/// Makes the transport of one of the two nodes.
using MakeTransport =
    std::function<Result<std::unique_ptr<transport::Transport>>(const transport::TransportOptions&)>;

/// One row per size, about `seconds` of traffic each. The bandwidth part runs in rounds: new random content,
/// traffic (timed), then every byte at the receiver is compared (not timed), so that stale bytes of an
/// earlier round are noticed. `pipe` leads to an end that runs serve_fabric(). Errors: what the transport or
/// the other end says, or kDeadlineExceeded when traffic stands still for 30 s.
Result<std::vector<FabricRow>> measure_fabric(Pipe& pipe, const MakeTransport& make,
                                              const std::vector<std::uint32_t>& sizes,
                                              std::chrono::seconds seconds);
/// The receiving end, until the other one hangs up, which is no error. `device`: where programs of perftest
/// are run when the other end asks for them.
Status serve_fabric(Pipe& pipe, const MakeTransport& make, const PerftestDevice* device = nullptr);

/// Both ends in this process.
Result<std::vector<FabricRow>> measure_fabric(const MakeTransport& make,
                                              const std::vector<std::uint32_t>& sizes,
                                              std::chrono::seconds seconds);

Result<std::vector<FabricRow>> measure_fabric_tcp(const std::vector<std::uint32_t>& sizes,
                                                  std::chrono::seconds seconds);
Result<std::vector<FabricRow>> measure_fabric_emulated(const std::vector<std::uint32_t>& sizes,
                                                       std::chrono::seconds seconds);

}  // namespace mkernel::bench
