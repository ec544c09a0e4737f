#include "daemon/memory/engine_regions.h"

#include <utility>

namespace mkernel::memory {
namespace {

Result<std::shared_ptr<EngineMemory>> make(CopyEngines& engines, const Region& region) {
  switch (region.kind) {
    case abi::RegionKind::kHostMemory: return engines.pin(region.host(0), region.bytes);
    case abi::RegionKind::kIpc: return engines.open(region.cuda_ipc, region.offset, region.bytes);
    case abi::RegionKind::kVmm: return engines.map(region.fd.get(), region.bytes);
    case abi::RegionKind::kNone: break;
  }
  return Status(StatusCode::kInternal, "a region of no kind for the copy engines");
}

}  // namespace

Result<std::shared_ptr<EngineMemory>> EngineRegions::reach(CopyEngines& engines, const Region& region) {
  if (const auto at = known_.find(region.id); at != known_.end()) return at->second;
  auto made = make(engines, region);
  if (made.ok()) known_[region.id] = made.value();
  return made;
}

}  // namespace mkernel::memory
