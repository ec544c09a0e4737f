#include "proto/ipc/fd.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

namespace mkernel::ipc {
namespace {

#ifdef MADV_POPULATE_WRITE
constexpr int kPopulateWrite = MADV_POPULATE_WRITE;
#else
constexpr int kPopulateWrite = 23;  // Linux 5.14
#endif

/// The first number above those of standard input, output and error.
constexpr int kFirstFd = STDERR_FILENO + 1;

Status system_error(StatusCode code, const std::string& what) {
  return {code, what + ": " + std::strerror(errno)};
}

/// ftruncate() that never raises SIGXFSZ, whose default is the death of the process, which may be a user's.
bool set_size(int fd, std::uint64_t bytes) {
  rlimit most{};
  if (::getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur != RLIM_INFINITY && bytes > most.rlim_cur) {
    errno = EFBIG;
    return false;
  }
  return ::ftruncate(fd, static_cast<off_t>(bytes)) == 0;
}

Result<Mapping> map_shared(int fd, std::uint64_t offset, std::uint64_t bytes, int access) {
  void* data = ::mmap(nullptr, bytes, access, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (data == MAP_FAILED) {
    return system_error(StatusCode::kResourceExhausted, "mmap of " + std::to_string(bytes) + " bytes");
  }
  return Mapping::adopt(data, bytes);
}

}  // namespace

UniqueFd above_standard(UniqueFd fd) {
  if (!fd.valid() || fd.get() >= kFirstFd) return fd;
  UniqueFd copy(::fcntl(fd.get(), F_DUPFD_CLOEXEC, kFirstFd));
  return copy.valid() ? std::move(copy) : std::move(fd);
}

void UniqueFd::reset(int fd) {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

Result<UniqueFd> UniqueFd::duplicate() const {
  UniqueFd copy(::fcntl(fd_, F_DUPFD_CLOEXEC, kFirstFd));
  if (!copy.valid()) return system_error(StatusCode::kResourceExhausted, "dup of fd " + std::to_string(fd_));
  return copy;
}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

Mapping Mapping::adopt(void* data, std::uint64_t bytes) {
  Mapping mapping;
  mapping.data_ = static_cast<std::byte*>(data);
  mapping.bytes_ = bytes;
  return mapping;
}

Result<Mapping> Mapping::map(int fd, std::uint64_t offset, std::uint64_t bytes) {
  return map_shared(fd, offset, bytes, PROT_READ | PROT_WRITE);
}

Result<Mapping> Mapping::map_read_only(int fd, std::uint64_t offset, std::uint64_t bytes) {
  return map_shared(fd, offset, bytes, PROT_READ);
}

Status Mapping::populate() const {
  if (bytes_ == 0 || ::madvise(data_, bytes_, kPopulateWrite) == 0) return {};
  if (errno != EINVAL) {
    return system_error(StatusCode::kResourceExhausted,
                        "memory for " + std::to_string(bytes_) + " bytes (MADV_POPULATE_WRITE)");
  }
  // A kernel before 5.14. Others may write here at the same time: what they write must stay.
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  for (std::uint64_t at = 0; at < bytes_; at += page) {
    std::atomic_ref(*reinterpret_cast<unsigned char*>(data_ + at)).fetch_or(0, std::memory_order_relaxed);
  }
  return {};
}

Result<UniqueFd> create_shared_memory(const std::string& label, std::uint64_t bytes) {
  UniqueFd fd = above_standard(UniqueFd(::memfd_create(label.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING)));
  if (!fd.valid()) return system_error(StatusCode::kResourceExhausted, "memfd_create(" + label + ")");
  if (!set_size(fd.get(), bytes)) {
    const bool above_limit = errno == EFBIG;
    const Status failed = system_error(StatusCode::kResourceExhausted,
                                       "memfd " + label + " of " + std::to_string(bytes) + " bytes");
    return above_limit ? Status(failed.code(), failed.text() + " (RLIMIT_FSIZE, `ulimit -f`)") : failed;
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return system_error(StatusCode::kInternal, "sealing memfd " + label);
  }
  return fd;
}

Status check_shared_memory(int fd, std::uint64_t offset, std::uint64_t bytes) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0) return {StatusCode::kInvalidArgument, "fd is not a memfd (it takes no seals)"};
  if ((seals & F_SEAL_SHRINK) == 0) {
    return {StatusCode::kInvalidArgument, "memfd is not sealed against shrinking (F_SEAL_SHRINK)"};
  }
  struct stat info {};
  if (::fstat(fd, &info) != 0) return system_error(StatusCode::kInvalidArgument, "fstat of the region's fd");
  const auto size = static_cast<std::uint64_t>(info.st_size);
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  if (offset % page != 0) {
    return {StatusCode::kInvalidArgument, "region offset " + std::to_string(offset) +
                                              " is not a multiple of the page size " + std::to_string(page)};
  }
  if (bytes == 0) return {StatusCode::kInvalidArgument, "region of 0 bytes"};
  if (offset > size || bytes > size - offset) {
    return {StatusCode::kOutOfRange, "region [" + std::to_string(offset) + ", +" + std::to_string(bytes) +
                                         ") lies outside its fd of " + std::to_string(size) + " bytes"};
  }
  return {};
}

Result<UniqueFd> create_event() {
  UniqueFd fd = above_standard(UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)));
  if (!fd.valid()) return system_error(StatusCode::kResourceExhausted, "eventfd");
  return fd;
}

}  // namespace mkernel::ipc
