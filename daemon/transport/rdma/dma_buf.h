// Whether a device takes dma-bufs, which is how a NIC reaches GPU memory.
#pragma once

#include "daemon/transport/rdma/library.h"

namespace mkernel::transport::rdma {

/// Asks without registering anything: kernel and driver look at the file descriptor, here none, only when
/// they know dma-bufs at all. Any thread. kUnavailable with the system's reason when the answer says neither.
Result<bool> takes_dma_bufs(const VerbsLibrary& verbs, ibv_pd* pd);

}  // namespace mkernel::transport::rdma
