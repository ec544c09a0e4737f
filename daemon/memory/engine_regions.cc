#include "daemon/memory/engine_regions.h"

#include <utility>

namespace mkernel::memory {

Result<std::shared_ptr<EngineMemory>> EngineRegions::reach(CopyEngines& engines, const Region& region) {
  if (const auto at = known_.find(region.id); at != known_.end()) return at->second;
  auto made = region.on_gpu() ? engines.map(region.fd.get(), region.bytes)
                              : engines.pin(region.host(0), region.bytes);
  if (made.ok()) known_[region.id] = made.value();
  return made;
}

}  // namespace mkernel::memory
