// A file that a program leaves behind when it has done its work: opened early, so that a wrong path costs
// nobody any time, written under a temporary name, and renamed when it is whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "proto/abi/status.h"
#include "proto/ipc/fd.h"

namespace mkernel::tools {

/// One output. Until publish() an earlier file of that name stays as it is, and the destructor removes what
/// was written. A link is followed. What is no regular file (a device, a pipe) is written directly. One
/// thread.
class OutputFile {
 public:
  /// Creates the temporary file beside `path`. Errors name the path: kNotFound and kPermissionDenied where
  /// the folder does not let us, kInvalidArgument for a folder, kResourceExhausted when there is no room.
  static Result<OutputFile> open(const std::string& path);

  OutputFile(OutputFile&&) noexcept = default;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  /// Appends. Errors: kResourceExhausted with what the system says.
  Status write(std::span<const std::byte> bytes);
  Status write(const std::string& text) { return write(std::as_bytes(std::span(text))); }
  /// What was written is on disk and has the name from now on, with the mode of the file that it replaces.
  /// Errors: as write(); the earlier file is still there then.
  Status publish();

  const std::string& path() const { return path_; }
  /// The absolute name that publish() gives it.
  const std::string& target() const { return target_; }
  /// True when `other` is the file that publish() replaces, by whatever name.
  bool replaces(const std::string& other) const;
  /// The random number in the temporary name; 0: there is no temporary file.
  std::uint64_t token() const { return token_; }
  /// True when a temporary file with this token lies beside ours: another process writes the same file.
  bool beside(std::uint64_t token) const;

 private:
  OutputFile(std::string path, std::string target, std::uint64_t token, ipc::UniqueFd fd)
      : path_(std::move(path)), target_(std::move(target)), token_(token), fd_(std::move(fd)) {}
  Status failed(const char* what) const;

  std::string path_;    ///< as it was given
  std::string target_;  ///< links followed
  std::uint64_t token_ = 0;
  ipc::UniqueFd fd_;  ///< not valid: published, or moved from
};

/// The whole of `path` becomes `text`, or stays as it was. Errors: those of OutputFile.
Status replace_file(const std::string& path, const std::string& text);

/// The absolute name of `path` with links followed, also where its last part does not exist yet.
std::string resolved(const std::string& path);

}  // namespace mkernel::tools
