// Regions whose memory is freed on another thread.
#pragma once

#include <cstdint>
#include <memory>

#include "daemon/base/owner_workers.h"
#include "daemon/memory/region.h"

namespace mkernel::memory {

/// `region` as sessions and proxies share it. The thread that drops the last reference only posts a job of
/// `owner` to `reaper`: unmapping and closing the last fd of a dead client's memory takes about 130 ms
/// per GiB. The mapping goes in slices, so that nobody who maps something meanwhile waits long for the
/// address space.
std::shared_ptr<const Region> reaped(std::unique_ptr<Region> region,
                                     const std::shared_ptr<base::OwnerWorkers>& reaper, std::uint64_t owner);

}  // namespace mkernel::memory
