#include "daemon/base/read_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "proto/ipc/fd.h"

namespace mkernel::base {
namespace {

Status cannot_read(const std::string& path, int error) {
  const StatusCode code = error == ENOENT || error == ENOTDIR ? StatusCode::kNotFound
                          : error == EACCES || error == EPERM ? StatusCode::kPermissionDenied
                                                              : StatusCode::kUnavailable;
  return {code, path + ": cannot be read: " + std::strerror(error)};
}

}  // namespace

Result<std::string> read_file(const std::string& path, std::size_t max_bytes) {
  // Without O_NONBLOCK open() of a pipe waits for its writer.
  const ipc::UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat info {};
  if (!file.valid() || ::fstat(file.get(), &info) != 0) return cannot_read(path, errno);
  if (!S_ISREG(info.st_mode)) {
    return Status(StatusCode::kInvalidArgument, path + ": cannot be read: it is no regular file");
  }
  std::string text;
  char piece[16384];
  for (;;) {
    const ssize_t got = ::read(file.get(), piece, sizeof(piece));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return cannot_read(path, errno);
    if (got == 0) return text;
    text.append(piece, static_cast<std::size_t>(got));
    if (text.size() > max_bytes) {
      return Status(StatusCode::kInvalidArgument,
                    path + ": cannot be read: larger than " + std::to_string(max_bytes) + " bytes");
    }
  }
}

}  // namespace mkernel::base
