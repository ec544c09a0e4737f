// ib_write_lat and ib_write_bw of the package perftest, run on the device that was measured, for comparison.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "proto/abi/status.h"
#include "tools/mkbench/program.h"

namespace mkernel::bench {

/// What both programs are told to use.
struct PerftestDevice {
  std::string name;  ///< "mlx5_0"
  std::uint32_t port = 1;
  std::uint32_t gid_index = 0;
};

/// A waiting server of one of the programs.
struct PerftestServer {
  Program program;
  std::uint16_t port = 0;
};

/// `program`: "ib_write_lat" or "ib_write_bw". Errors: kNotFound when it is not installed, kInvalidArgument
/// for other names.
Result<PerftestServer> start_perftest_server(const PerftestDevice& device, const std::string& program,
                                             std::uint32_t bytes);

/// The client's side, against a server on `host`: typical microseconds of half a round trip (ib_write_lat),
/// or gigabytes per second (ib_write_bw). Errors: kNotFound when it is not installed, kUnavailable with what
/// it said when it failed or said nothing that can be read.
Result<double> run_perftest(const PerftestDevice& device, const std::string& program, std::uint32_t bytes,
                            const std::string& host, std::uint16_t port);

/// The figure in a program's output: of the line that begins with `bytes`.
std::optional<double> read_perftest(const std::string& program, const std::string& output,
                                    std::uint32_t bytes);

}  // namespace mkernel::bench
