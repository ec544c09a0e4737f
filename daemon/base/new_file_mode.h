// The permissions of a file that a library makes, as bind() does: they are set before it is there, not after.
#pragma once

#include <sys/stat.h>

namespace mkernel::base {

/// While it lives, files that the process makes are allowed no more than `mode`. It concerns the whole
/// process, so it lives for an instant.
class NewFileMode {
 public:
  explicit NewFileMode(mode_t mode) : before_(::umask(0777 & ~mode)) {}
  ~NewFileMode() { ::umask(before_); }
  NewFileMode(const NewFileMode&) = delete;
  NewFileMode& operator=(const NewFileMode&) = delete;

 private:
  const mode_t before_;
};

}  // namespace mkernel::base
