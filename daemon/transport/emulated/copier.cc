#include "daemon/transport/emulated/copier.h"

#include <cstring>
#include <utility>

namespace mkernel::transport::emulated {

Result<ImportedRegion> HostCopier::import(int fd, std::uint64_t offset, std::uint64_t bytes) {
  MK_RETURN_IF_ERROR(ipc::check_shared_memory(fd, offset, bytes));
  auto mapping = ipc::Mapping::map(fd, offset, bytes);
  if (!mapping.ok()) return mapping.status();
  return ImportedRegion{std::move(mapping).value()};
}

void HostCopier::copy(const ImportedRegion& source, std::uint64_t source_offset, const Target& target,
                      std::uint64_t length) {
  std::memcpy(target.region->host(target.offset), source.mapping.data() + source_offset, length);
}

}  // namespace mkernel::transport::emulated
