// The work ring as kernels use it: echo latency and request rate through a running daemon.
#pragma once

#include <mkernel/client.h>

#include <cstdint>
#include <string>
#include <vector>

namespace mkernel::bench {

/// "NVIDIA H200".
std::string name_of_gpu(int device);

/// Microseconds of `count` round trips, sorted: a thread of a kernel signals its own rank through the daemon
/// and sees its arrival count, copied from host memory; one at a time, from moments that the poller does not
/// set. `busy`: CTAs that compute and read memory keep every other SM.
Result<std::vector<double>> echo_from_gpu(Group& group, int device, std::uint64_t count, bool busy);

struct GpuRingRate {
  double requests_per_second = 0;  ///< from the launch until every signal is completed
  std::uint64_t requests = 0;
  std::uint32_t rings = 0;  ///< that they went through: one proxy thread each
};

/// `ctas` CTAs of `threads` threads signal their own rank, `each` times per thread, as fast as they can.
/// kDataLoss when the counts are not those of the signals.
Result<GpuRingRate> signals_from_gpu(Group& group, int device, std::uint32_t ctas, std::uint32_t threads,
                                     std::uint64_t each);

}  // namespace mkernel::bench
