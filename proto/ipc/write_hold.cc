#include "proto/ipc/write_hold.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace mkernel::ipc {
namespace {

std::uint64_t page_bytes() {
  return static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

Result<std::shared_ptr<const WriteHold>> WriteHold::take(int fd, std::uint64_t bytes) {
  void* page = ::mmap(nullptr, page_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (page != MAP_FAILED) {
    return std::shared_ptr<const WriteHold>(new WriteHold(Mapping::adopt(page, page_bytes()), bytes));
  }
  switch (errno) {
    case EPERM:
      return Status(StatusCode::kFailedPrecondition,
                    "memfd is sealed against new writable mappings (F_SEAL_FUTURE_WRITE) and not registered "
                    "any more: memory that was registered once can be registered again in the same session, "
                    "and not in another one; make a new memfd");
    case EACCES: return Status(StatusCode::kInvalidArgument, "memfd is not open for reading and writing");
    default:
      return Status(StatusCode::kResourceExhausted,
                    std::string("mmap of the first page of a memfd: ") + std::strerror(errno));
  }
}

Result<Mapping> WriteHold::map(std::uint64_t offset, std::uint64_t bytes) const {
  const std::uint64_t end = std::min(bytes_, kMaxEnd);
  if (offset > end || bytes > end - offset) {
    return Status(StatusCode::kOutOfRange,
                  "region [" + std::to_string(offset) + ", +" + std::to_string(bytes) + ") ends above " +
                      (bytes_ <= kMaxEnd ? "the size of its memfd when that was first registered, "
                                         : "what can be registered of a memfd, ") +
                      std::to_string(end) + " bytes");
  }
  void* whole = ::mremap(page_.data(), 0, offset + bytes, MREMAP_MAYMOVE);
  if (whole == MAP_FAILED) {
    return Status(StatusCode::kResourceExhausted, "mremap of " + std::to_string(offset + bytes) +
                                                      " bytes of a memfd: " + std::strerror(errno));
  }
  if (offset > 0) ::munmap(whole, offset);
  return Mapping::adopt(static_cast<std::byte*>(whole) + offset, bytes);
}

Result<std::shared_ptr<const WriteHold>> WriteHolds::of(std::uint64_t owner, int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    return Status(StatusCode::kInvalidArgument, std::string("fstat of a memfd: ") + std::strerror(errno));
  }
  const Key key(owner, info.st_dev, info.st_ino);
  if (auto alive = find(key); alive != nullptr) return alive;
  // Not under the lock: how long mapping takes is up to the owner of the file. Who comes with the same file
  // at the same time maps it too.
  auto made = WriteHold::take(fd, static_cast<std::uint64_t>(info.st_size));
  if (!made.ok()) {
    if (auto alive = find(key); alive != nullptr) return alive;
    return made.status();
  }
  const MutexLock lock(mutex_);
  std::weak_ptr<const WriteHold>& known = known_[key];
  if (auto alive = known.lock(); alive != nullptr) return alive;
  known = made.value();
  forget_dead();
  return made;
}

std::shared_ptr<const WriteHold> WriteHolds::find(const Key& key) {
  const MutexLock lock(mutex_);
  const auto known = known_.find(key);
  return known == known_.end() ? nullptr : known->second.lock();
}

void WriteHolds::forget_dead() {
  if (known_.size() < sweep_at_) return;
  std::erase_if(known_, [](const auto& entry) { return entry.second.expired(); });
  sweep_at_ = std::max<std::size_t>(64, 2 * known_.size());
}

}  // namespace mkernel::ipc
