// RDMA over AWS EFA (scalable reliable datagrams). README.md says how the parts fit and what has been tested.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "daemon/transport/rdma/efa_library.h"
#include "daemon/transport/rdma/library.h"
#include "daemon/transport/transport.h"

namespace mkernel::transport {

struct EfaOptions {
  TransportOptions base;
  rdma::VerbsLibrary verbs;
  rdma::EfaLibrary efa;
  /// By preference: the rail's own device ("rdmap79s0"), then those that take over when it fails. Empty: the
  /// first EFA of the machine.
  std::vector<std::string> devices;
  bool gpu_memory = false;         ///< move it: the device must take dma-bufs
  std::uint32_t window = 1024;     ///< puts of one channel in flight, 1..32767
  std::uint32_t credit = 4096;     ///< puts of one peer that may arrive and wait here
  std::uint32_t send_queue = 0;    ///< requests to one peer; 0 = as many as the device takes
  std::uint8_t service_level = 8;  ///< 8: low latency
  /// Payloads of host memory up to so many bytes go inside the request, if the device can: it reads no memory
  /// for them and none is registered. Such requests may take twice the room in its queue. 0: never.
  std::uint32_t max_inline = 32;
};

/// Opens every device; one whose port is down is used when it comes up. Errors: kFailedPrecondition (a device
/// takes no dma-bufs, and GPU memory is asked for),
/// kInvalidArgument (options), kNotFound (no such device, with those that are there), kUnimplemented (the
/// device or its software lacks what puts need, by name), kPermissionDenied and others of the device.
Result<std::unique_ptr<Transport>> make_efa(const EfaOptions& options);

}  // namespace mkernel::transport
