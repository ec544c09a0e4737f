// Kernels over the device API, for its tests: each is launched on the default stream of the current device,
// or on `stream`.
#pragma once

#include <cstdint>

#include "mkernel/device_endpoint.h"
#include "proto/abi/status.h"

struct CUstream_st;

namespace mkernel::test {

/// What thread `writer` puts as its number `i`: every field says who it comes from.
struct PutFields {
  std::uint32_t region;
  std::uint64_t local_offset, remote_offset, bytes;
};
#if defined(__CUDACC__)
__host__ __device__
#endif
    constexpr PutFields
    put_fields(std::uint32_t writer, std::uint32_t i) {
  return {writer, std::uint64_t{i} << 20, (std::uint64_t{i} << 24) + writer, writer * 1000U + i % 1000U + 1};
}

/// `ctas` CTAs of `threads` threads put to rank 1, each thread `each` times, on the lane of its CTA; counts
/// in `done` (GPU memory) those that say they did.
Status launch_puts(const device::Endpoint& endpoint, int ctas, int threads, std::uint32_t each,
                   unsigned long long* done, CUstream_st* stream = nullptr);

/// One CTA per channel (source, lane) waits for `count` arrivals and completions and writes the arrivals that
/// it then saw into `seen` [world * lanes].
Status launch_waits(const device::Endpoint& endpoint, std::uint64_t count, std::uint64_t* seen);

/// `rounds` grid barriers of `ctas` CTAs; `words` [ctas]: what a CTA wrote before one, all must see after it.
/// Counts in `wrong` what they did not.
Status launch_barriers(const device::Endpoint& endpoint, int ctas, std::uint32_t rounds,
                       unsigned long long* words, unsigned long long* wrong);

}  // namespace mkernel::test
