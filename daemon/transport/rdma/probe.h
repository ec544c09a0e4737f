// What an RDMA device says only to who has opened it.
#pragma once

#include <vector>

#include "daemon/topology/rdma_device.h"
#include "daemon/transport/rdma/library.h"

namespace mkernel::transport::rdma {

/// Opens each device that may be opened, fills in `dma_buf` and the ports' `mtu`, closes it again. A device
/// that cannot be opened keeps what it has, and `dma_buf` says why. Nothing is registered. Some milliseconds
/// per device; any thread.
void probe(const VerbsLibrary& verbs, std::vector<topology::RdmaDevice>& devices);

/// The same with the installed library; without one `dma_buf` says which package to install. Does not look
/// for the library when there is no device.
void probe(std::vector<topology::RdmaDevice>& devices);

}  // namespace mkernel::transport::rdma
