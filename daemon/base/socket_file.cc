#include "daemon/base/socket_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace mkernel::base {

SocketFile::SocketFile(std::string path) : path_(std::move(path)) {
  struct stat info {};
  if (::lstat(path_.c_str(), &info) != 0) return;
  device_ = info.st_dev;
  inode_ = info.st_ino;
}

SocketFileState SocketFile::look() const {
  struct stat info {};
  if (::lstat(path_.c_str(), &info) != 0) {
    // What cannot be looked at is not taken for lost.
    return errno == ENOENT || errno == ENOTDIR ? SocketFileState::kMissing : SocketFileState::kOurs;
  }
  const bool same = info.st_dev == device_ && info.st_ino == inode_;
  return same ? SocketFileState::kOurs : SocketFileState::kReplaced;
}

void SocketFile::remove() const {
  if (!path_.empty() && look() == SocketFileState::kOurs) ::unlink(path_.c_str());
}

}  // namespace mkernel::base
