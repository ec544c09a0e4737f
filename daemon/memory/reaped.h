// Regions whose memory is freed on a thread of its own.
#pragma once

#include <cstdint>
#include <memory>

#include "daemon/base/fair_worker.h"
#include "daemon/memory/region.h"

namespace mkernel::memory {

/// `region` as sessions and proxies share it. Whoever drops the last reference, on whatever thread, only
/// posts a job to `reaper`: unmapping and closing the last fd of a dead client's memory takes about 130 ms
/// per GiB. The mapping goes in slices, so that nobody who maps something meanwhile waits long for the
/// address space.
std::shared_ptr<const Region> reaped(std::unique_ptr<Region> region,
                                     const std::shared_ptr<base::FairWorker>& reaper, std::uint64_t owner);

}  // namespace mkernel::memory
