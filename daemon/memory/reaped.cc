#include "daemon/memory/reaped.h"

#include <sys/mman.h>

#include <algorithm>

namespace mkernel::memory {
namespace {

constexpr std::uint64_t kSlice = std::uint64_t{32} << 20;

/// Takes the pages out of this process's page tables; they stay in the memfd. What this cannot do munmap
/// does.
void unmap_in_slices(const ipc::Mapping& mapping) {
  for (std::uint64_t at = 0; at < mapping.bytes(); at += kSlice) {
    ::madvise(mapping.data() + at, std::min(kSlice, mapping.bytes() - at), MADV_DONTNEED);
  }
}

}  // namespace

std::shared_ptr<const Region> reaped(std::unique_ptr<Region> region,
                                     const std::shared_ptr<base::OwnerWorkers>& reaper, std::uint64_t owner) {
  return {region.release(), [reaper, owner](Region* dead) {
            reaper->post(owner, [held = std::shared_ptr<Region>(dead)] { unmap_in_slices(held->mapping); });
          }};
}

}  // namespace mkernel::memory
