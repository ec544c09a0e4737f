// The right to map a memfd for writing, which outlasts the seal against new writable mappings.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

#include "proto/base/mutex.h"
#include "proto/ipc/fd.h"

namespace mkernel::ipc {

/// The seal that makes punching holes fail (F_SEAL_FUTURE_WRITE, Linux 5.1). Older headers lack its name.
inline constexpr int kFutureWriteSeal = 0x10;

/// A mapping of the first page of a memfd. F_SEAL_FUTURE_WRITE forbids new writable mappings of the file, but
/// what is mapped already can be mapped again (mremap), also further than it reaches. The page is never
/// touched. Whoever keeps a hold keeps the memory behind it. Immutable; any thread.
class WriteHold {
 public:
  /// `bytes`: the size of the file. Errors: kFailedPrecondition when the memfd is sealed already,
  /// kInvalidArgument when `fd` cannot be mapped for writing, kResourceExhausted.
  static Result<std::shared_ptr<const WriteHold>> take(int fd, std::uint64_t bytes);

  /// Maps [offset, offset + bytes) of the file, `offset` page-aligned, whatever seals it has by now. Errors:
  /// kOutOfRange when the end lies above kMaxEnd or the size that the file had when it was taken,
  /// kResourceExhausted.
  Result<Mapping> map(std::uint64_t offset, std::uint64_t bytes) const;

  /// What lies in front of a range is mapped for a moment with it: a limit keeps the file of one client from
  /// taking the whole address space.
  static constexpr std::uint64_t kMaxEnd = std::uint64_t{1} << 44;

 private:
  WriteHold(Mapping page, std::uint64_t bytes) : page_(std::move(page)), bytes_(bytes) {}

  const Mapping page_;
  const std::uint64_t bytes_;  ///< of the file, which does not shrink
};

/// The holds of one process, each file once for each owner. Thread-safe.
class WriteHolds {
 public:
  /// The hold of the memfd behind `fd`: a known one that is alive, or a new one. Numbers of files may come
  /// again on old kernels: holds of one owner are never given to another, and none reaches further than its
  /// own file. Calls fstat: `fd` is known to be a memfd that is sealed against shrinking.
  Result<std::shared_ptr<const WriteHold>> of(std::uint64_t owner, int fd);

 private:
  using Key = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>;  ///< owner, device, inode

  std::shared_ptr<const WriteHold> find(const Key& key);
  void forget_dead() MK_REQUIRES(mutex_);

  Mutex mutex_;
  std::map<Key, std::weak_ptr<const WriteHold>> known_ MK_GUARDED_BY(mutex_);
  std::size_t sweep_at_ MK_GUARDED_BY(mutex_) = 64;  ///< how many entries make forget_dead() worth its time
};

}  // namespace mkernel::ipc
