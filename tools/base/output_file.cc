#include "tools/base/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <random>
#include <system_error>

namespace mkernel::tools {
namespace {

constexpr std::size_t kMostOfName = 200;  ///< of the file's name in the temporary one, which has at most 255

/// ".c.0.npy.0123456789abcdef.part" beside `target`.
std::string temporary_name(const std::string& target, std::uint64_t token) {
  const std::filesystem::path path(target);
  char suffix[32];
  std::snprintf(suffix, sizeof(suffix), ".%016llx.part", static_cast<unsigned long long>(token));
  return (path.parent_path() / ("." + path.filename().string().substr(0, kMostOfName) + suffix)).string();
}

std::uint64_t random_token() {
  std::random_device device;
  return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(device()) << 32 | device());
}

StatusCode code_of(int error) {
  if (error == ENOENT || error == ENOTDIR) return StatusCode::kNotFound;
  if (error == ENOSPC || error == EDQUOT || error == EFBIG || error == EIO || error == EMFILE)
    return StatusCode::kResourceExhausted;
  return error == EISDIR ? StatusCode::kInvalidArgument : StatusCode::kPermissionDenied;
}

}  // namespace

std::string resolved(const std::string& path) {
  std::error_code error;
  // A link to what does not exist yet is followed by hand: canonical() wants the last part to be there.
  std::filesystem::path name(path);
  for (int links = 0; links < 40 && std::filesystem::is_symlink(name, error); ++links) {
    const std::filesystem::path next = std::filesystem::read_symlink(name, error);
    if (error) break;
    name = name.parent_path() / next;
  }
  const auto canonical = std::filesystem::weakly_canonical(std::filesystem::absolute(name, error), error);
  return error ? path : canonical.string();
}

Result<OutputFile> OutputFile::open(const std::string& path) {
  const auto error = [&path] { return Status(code_of(errno), path + ": " + std::strerror(errno)); };
  const std::string target = resolved(path);
  struct stat earlier {};
  const bool there = ::stat(target.c_str(), &earlier) == 0;
  if (there && !S_ISREG(earlier.st_mode)) {
    ipc::UniqueFd fd(::open(target.c_str(), O_WRONLY | O_CLOEXEC));
    if (!fd.valid()) return error();
    return OutputFile(path, target, 0, std::move(fd));
  }
  if (there && ::access(target.c_str(), W_OK) != 0) return error();
  const std::uint64_t token = random_token();
  const std::string temporary = temporary_name(target, token);
  ipc::UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!fd.valid()) return error();
  OutputFile file(path, target, token, std::move(fd));
  if (there && ::fchmod(file.fd_.get(), earlier.st_mode & 07777) != 0) return error();
  return file;
}

OutputFile::~OutputFile() {
  if (fd_.valid() && token_ != 0) ::unlink(temporary_name(target_, token_).c_str());
}

Status OutputFile::failed(const char* what) const {
  return {StatusCode::kResourceExhausted, path_ + " cannot be " + what + ": " + std::strerror(errno)};
}

Status OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failed("written");
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

Status OutputFile::publish() {
  if (token_ != 0) {
    if (::fsync(fd_.get()) != 0) return failed("written");
    if (::rename(temporary_name(target_, token_).c_str(), target_.c_str()) != 0) return failed("renamed");
  }
  // close() reports what a file system over a network found out late.
  return ::close(fd_.release()) == 0 ? Status() : failed("written");
}

bool OutputFile::replaces(const std::string& other) const {
  struct stat earlier {
  }, asked{};
  return ::stat(target_.c_str(), &earlier) == 0 && ::stat(other.c_str(), &asked) == 0 &&
         earlier.st_dev == asked.st_dev && earlier.st_ino == asked.st_ino;
}

bool OutputFile::beside(std::uint64_t token) const {
  return token != 0 && ::access(temporary_name(target_, token).c_str(), F_OK) == 0;
}

Status replace_file(const std::string& path, const std::string& text) {
  auto file = OutputFile::open(path);
  if (!file.ok()) return file.status();
  MK_RETURN_IF_ERROR(file->write(text));
  return file->publish();
}

}  // namespace mkernel::tools
