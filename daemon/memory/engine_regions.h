// Regions as the copy engines reach them, each mapped or pinned once: at its first copy.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "daemon/memory/copy_engines.h"
#include "daemon/memory/region.h"

namespace mkernel::memory {

/// The thread of the engines.
class EngineRegions {
 public:
  /// Valid for as long as it is held, the region's memory as long as the region. Errors: those of
  /// CopyEngines::map(), open() and pin().
  Result<std::shared_ptr<EngineMemory>> reach(CopyEngines& engines, const Region& region);
  /// The region is going away: what was made of it goes too, once no copy uses it.
  void forget(const Region& region) { known_.erase(region.id); }

 private:
  std::unordered_map<std::uint64_t, std::shared_ptr<EngineMemory>> known_;  ///< by Region::id
};

}  // namespace mkernel::memory
