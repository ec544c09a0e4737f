// The file of a Unix socket that this process listens on. It can go while the socket lives: folders for
// temporary files are cleaned.
#pragma once

#include <sys/types.h>

#include <string>

namespace mkernel::base {

/// Whether the file of a socket is still that of this process.
enum class SocketFileState { kOurs, kMissing, kReplaced };

/// The file at a path, as it is when this is made. Any thread; a file server that hangs blocks the caller
/// (see aside.h).
class SocketFile {
 public:
  SocketFile() = default;
  explicit SocketFile(std::string path);

  const std::string& path() const { return path_; }
  SocketFileState look() const;
  /// Unless another file has taken its place: that is another daemon's.
  void remove() const;

 private:
  std::string path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace mkernel::base
