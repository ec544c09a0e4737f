#include "daemon/memory/open_region.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

namespace mkernel::memory {
namespace {

Status check_kind(std::uint32_t kind) {
  switch (static_cast<abi::RegionKind>(kind)) {
    case abi::RegionKind::kHostMemory:
    case abi::RegionKind::kIpc:
    case abi::RegionKind::kVmm: return {};
    default:
      return {StatusCode::kInvalidArgument,
              "region kind " + std::to_string(kind) + " is unknown, known are 1 (host), 2 (ipc), 3 (vmm)"};
  }
}

/// What check_shared_memory() leaves open: the daemon itself must be able to write, and where the seal
/// against holes is missing no hole may turn a store of the daemon into a SIGBUS, as it would with huge
/// pages.
Status check_writable_and_plain(int fd) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals >= 0 && (seals & F_SEAL_WRITE) != 0) {
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

/// What the kernel itself knows of a file. fstat() would ask the server of a FUSE or network file, which need
/// not answer.
bool look_at(int fd, struct statx& info) {
  return ::statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &info) == 0;
}

/// What the file behind an fd is, for errors.
std::string file_text(const struct statx& info) {
  if (S_ISCHR(info.stx_mode)) {
    return "character device " + std::to_string(info.stx_rdev_major) + ":" +
           std::to_string(info.stx_rdev_minor);
  }
  if (S_ISREG(info.stx_mode)) return "a regular file or memfd";
  if (S_ISSOCK(info.stx_mode)) return "a socket";
  return S_ISDIR(info.stx_mode) ? "a folder" : "a pipe, event or the like";
}

/// True of a memfd or dma-buf: the kernel alone answers what is asked of it.
bool is_kernel_memory(int fd) {
  if (::fcntl(fd, F_GET_SEALS) >= 0) return true;
  std::ifstream lines("/proc/self/fdinfo/" + std::to_string(fd));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("exp_name:")) return true;  // who exported it: of dma-bufs alone
  }
  return false;
}

Status check_device(const RegionRequest& request) {
  if (request.device >= 0) return {};
  return {StatusCode::kFailedPrecondition,
          "region of kind " + std::string(kind_name(static_cast<abi::RegionKind>(request.kind))) +
              " from a session of device " + std::to_string(request.device) +
              " (host only): name the GPU in hello"};
}

/// All that can be said of a VMM allocation without a driver. The daemon only keeps the fd and hands it on,
/// but any other kind of file would be kept alive as well: the client's own socket, say, which would then
/// never read as closed.
Status check_vmm(const RegionRequest& request, unsigned gpu_major) {
  struct statx info {};
  if (!look_at(request.fd.get(), info)) {
    return {StatusCode::kInvalidArgument, std::string("statx of the region's fd: ") + std::strerror(errno)};
  }
  if (!S_ISCHR(info.stx_mode) || info.stx_rdev_major != gpu_major) {
    return {StatusCode::kInvalidArgument, "fd of a region of kind vmm is " + file_text(info) +
                                              ", a VMM allocation's is a character device of major " +
                                              std::to_string(gpu_major)};
  }
  if (request.offset != 0) {
    return {StatusCode::kInvalidArgument,
            "region offset " + std::to_string(request.offset) + ", a VMM allocation is mapped from 0"};
  }
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  if (request.bytes > 0 && request.bytes % page == 0) return {};
  return {StatusCode::kInvalidArgument, "region of " + std::to_string(request.bytes) +
                                            " bytes, a VMM allocation has a multiple of " +
                                            std::to_string(page) + ", and some"};
}

/// The dma-buf of GPU memory, which a NIC is to register and the daemon only keeps.
Status check_dma_buf(const RegionRequest& request, long type) {
  if (!request.dma_buf.valid()) return {};
  struct statfs info {};
  struct statx file {};
  const int fd = request.dma_buf.get();
  const bool memory = is_kernel_memory(fd);
  if (!look_at(fd, file) || (memory && ::fstatfs(fd, &info) != 0)) {
    return {StatusCode::kInvalidArgument,
            std::string("statx of the region's dma-buf: ") + std::strerror(errno)};
  }
  if (!memory || static_cast<long>(info.f_type) != type) {
    return {StatusCode::kInvalidArgument, "dma-buf of a region is " + file_text(file) + ", not a dma-buf"};
  }
  const off_t size = ::lseek(fd, 0, SEEK_END);
  if (size < 0) {
    return {StatusCode::kInvalidArgument, std::string("size of the dma-buf: ") + std::strerror(errno)};
  }
  if (in_bounds(request.dma_buf_offset, request.bytes, static_cast<std::uint64_t>(size))) return {};
  return {StatusCode::kOutOfRange, "region [" + std::to_string(request.dma_buf_offset) + ", +" +
                                       std::to_string(request.bytes) + ") lies outside its dma-buf of " +
                                       std::to_string(size) + " bytes"};
}

/// All that can be said of plain GPU memory without a driver: the handle is opaque.
Status check_ipc(const RegionRequest& request) {
  if (request.bytes == 0) return {StatusCode::kInvalidArgument, "region of 0 bytes"};
  if (in_bounds(request.offset, request.bytes, std::numeric_limits<std::uint64_t>::max())) return {};
  return {StatusCode::kOutOfRange, "region [" + std::to_string(request.offset) + ", +" +
                                       std::to_string(request.bytes) + ") of an allocation"};
}

Status check_gpu(const RegionRequest& request, const RegionRules& rules) {
  MK_RETURN_IF_ERROR(check_device(request));
  MK_RETURN_IF_ERROR(static_cast<abi::RegionKind>(request.kind) == abi::RegionKind::kVmm
                         ? check_vmm(request, rules.gpu_major)
                         : check_ipc(request));
  return check_dma_buf(request, rules.dma_buf_type);
}

Status add_future_write_seal(int fd) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals >= 0 && (seals & ipc::kFutureWriteSeal) != 0) return {};
  if (::fcntl(fd, F_ADD_SEALS, ipc::kFutureWriteSeal) == 0) return {};
  const int error = errno;
  if (error == EINVAL) return {};  // before Linux 5.1
  if (error == EPERM && (seals & F_SEAL_SEAL) != 0) {
    return {StatusCode::kFailedPrecondition,
            "memfd takes no more seals (F_SEAL_SEAL): the daemon seals what it writes to against holes "
            "(F_SEAL_FUTURE_WRITE); add that seal before, or leave F_SEAL_SEAL out"};
  }
  return {StatusCode::kInternal, std::string("sealing a memfd against holes: ") + std::strerror(error)};
}

/// Pages that are swapped out are no holes, so mincore() is not enough.
Status check_no_holes(const Region& region) {
  // The file position is the client's too: it is put back.
  const int fd = region.fd.get();
  const off_t before = ::lseek(fd, 0, SEEK_CUR);
  const off_t hole = ::lseek(fd, static_cast<off_t>(region.offset), SEEK_HOLE);
  const int error = errno;
  if (before >= 0) ::lseek(fd, before, SEEK_SET);
  if (hole < 0) {
    return {StatusCode::kInvalidArgument,
            std::string("looking for holes in the region's memfd: ") + std::strerror(error)};
  }
  const auto at = static_cast<std::uint64_t>(hole) - region.offset;
  if (at >= region.bytes) return {};
  return {StatusCode::kFailedPrecondition,
          "region of " + std::to_string(region.bytes) + " bytes has a hole at byte " + std::to_string(at) +
              ": pages that nobody has written yet would be charged to the daemon; write to them, or call "
              "madvise(MADV_POPULATE_WRITE), before they are registered"};
}

/// Checks the host memory behind a request and maps it.
Status map_host(const RegionRequest& request, ipc::WriteHolds& holds, Region& region) {
  MK_RETURN_IF_ERROR(ipc::check_shared_memory(request.fd.get(), request.offset, request.bytes));
  MK_RETURN_IF_ERROR(check_writable_and_plain(request.fd.get()));
  auto hold = holds.of(request.owner, request.fd.get());
  if (!hold.ok()) return hold.status();
  region.hold = std::move(hold).value();
  auto mapping = region.hold->map(request.offset, request.bytes);
  if (!mapping.ok()) return mapping.status();
  region.mapping = std::move(mapping).value();
  return {};
}

}  // namespace

const char* kind_name(abi::RegionKind kind) {
  switch (kind) {
    case abi::RegionKind::kHostMemory: return "host";
    case abi::RegionKind::kIpc: return "ipc";
    case abi::RegionKind::kVmm: return "vmm";
    case abi::RegionKind::kNone: break;
  }
  return "none";
}

Result<std::unique_ptr<Region>> open_region(RegionRequest&& request, std::uint64_t id,
                                            const RegionRules& rules, ipc::WriteHolds& holds) {
  MK_RETURN_IF_ERROR(check_kind(request.kind));
  if (request.bytes > rules.max_bytes) {
    return Status(StatusCode::kResourceExhausted,
                  "region of " + std::to_string(request.bytes) +
                      " bytes is above limits.max_region_bytes = " + std::to_string(rules.max_bytes));
  }
  const bool host = static_cast<abi::RegionKind>(request.kind) == abi::RegionKind::kHostMemory;
  if (host && rules.max_host_bytes != 0 && request.bytes > rules.max_host_bytes) {
    return Status(StatusCode::kResourceExhausted,
                  "region of " + std::to_string(request.bytes) + " bytes of host memory is above " +
                      std::to_string(rules.max_host_bytes) +
                      ", half of this machine's memory (limits.max_region_bytes = 0)");
  }
  auto region = std::make_unique<Region>();
  region->kind = static_cast<abi::RegionKind>(request.kind);
  if (region->on_gpu()) {
    MK_RETURN_IF_ERROR(check_gpu(request, rules));
    region->device = request.device;
    region->cuda_ipc = request.cuda_ipc;
    region->dma_buf = std::move(request.dma_buf);
    region->dma_buf_offset = request.dma_buf_offset;
    region->no_dma_buf = std::move(request.no_dma_buf);
  } else {
    MK_RETURN_IF_ERROR(map_host(request, holds, *region));
  }
  region->id = id;
  region->session = request.session;
  region->shared = request.shared;
  region->fd = std::move(request.fd);
  region->offset = request.offset;
  region->bytes = request.bytes;
  if (host && !region->shared) MK_RETURN_IF_ERROR(seal_region(*region));
  return region;
}

Status seal_region(const Region& region) {
  // Before the seal too: who is refused here can fill the holes and come again. A sealed memfd could not.
  MK_RETURN_IF_ERROR(check_no_holes(region));
  // What is seen to be there after the seal cannot be punched out any more.
  MK_RETURN_IF_ERROR(add_future_write_seal(region.fd.get()));
  return check_no_holes(region);
}

}  // namespace mkernel::memory
