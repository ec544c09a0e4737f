#include "daemon/memory/open_region.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>

#include <string>
#include <utility>

namespace mkernel::memory {
namespace {

Status check_kind(std::uint32_t kind) {
  switch (static_cast<abi::RegionKind>(kind)) {
    case abi::RegionKind::kHostMemory: return {};
    case abi::RegionKind::kDmaBuf:
    case abi::RegionKind::kVmm:
      return {StatusCode::kUnimplemented, std::string("region of kind ") +
                                              kind_name(static_cast<abi::RegionKind>(kind)) +
                                              ": this daemon was built without GPU support"};
    default:
      return {StatusCode::kInvalidArgument, "region kind " + std::to_string(kind) +
                                                " is unknown, known are 1 (host), 2 (dma-buf), 3 (vmm)"};
  }
}

/// What check_shared_memory() leaves open: the daemon itself must be able to write, and no hole that the
/// client punches later may turn a store of the daemon into a SIGBUS, as it would with huge pages.
Status check_writable_and_plain(int fd) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals >= 0 && (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0) {
    return {StatusCode::kInvalidArgument, "memfd is sealed against writing: puts could not arrive in it"};
  }
  if ((::fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR) {
    return {StatusCode::kInvalidArgument, "memfd is not open for reading and writing"};
  }
  struct statfs info {};
  if (::fstatfs(fd, &info) == 0 && static_cast<unsigned long>(info.f_type) == HUGETLBFS_MAGIC) {
    return {StatusCode::kUnimplemented, "memfd of huge pages (MFD_HUGETLB): use one of normal pages"};
  }
  return {};
}

}  // namespace

const char* kind_name(abi::RegionKind kind) {
  switch (kind) {
    case abi::RegionKind::kHostMemory: return "host";
    case abi::RegionKind::kDmaBuf: return "dma-buf";
    case abi::RegionKind::kVmm: return "vmm";
    case abi::RegionKind::kNone: break;
  }
  return "none";
}

Result<std::shared_ptr<const Region>> open_region(RegionRequest request, std::uint64_t id,
                                                  std::uint64_t max_bytes) {
  MK_RETURN_IF_ERROR(check_kind(request.kind));
  if (request.bytes > max_bytes) {
    return Status(StatusCode::kResourceExhausted,
                  "region of " + std::to_string(request.bytes) +
                      " bytes is above limits.max_region_bytes = " + std::to_string(max_bytes));
  }
  MK_RETURN_IF_ERROR(ipc::check_shared_memory(request.fd.get(), request.offset, request.bytes));
  MK_RETURN_IF_ERROR(check_writable_and_plain(request.fd.get()));
  auto mapping = ipc::Mapping::map(request.fd.get(), request.offset, request.bytes);
  if (!mapping.ok()) return mapping.status();

  auto region = std::make_shared<Region>();
  region->id = id;
  region->kind = static_cast<abi::RegionKind>(request.kind);
  region->shared = request.shared;
  region->fd = std::move(request.fd);
  region->offset = request.offset;
  region->bytes = request.bytes;
  region->mapping = std::move(mapping).value();
  return std::shared_ptr<const Region>(std::move(region));
}

}  // namespace mkernel::memory
