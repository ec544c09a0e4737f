#include "daemon/base/safe_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <deque>
#include <filesystem>
#include <vector>

#include "daemon/base/id_map.h"

namespace mkernel::base {
namespace {

namespace fs = std::filesystem;

constexpr int kMostLinks = 40;  ///< as many as the kernel follows

Status system_error(const std::string& path) {
  const int error = errno;
  const StatusCode code = error == EACCES || error == EPERM ? StatusCode::kPermissionDenied
                          : error == ENOENT                 ? StatusCode::kNotFound
                                                            : StatusCode::kUnavailable;
  return {code, path + ": " + std::strerror(error)};
}

/// Root's or this process's user's. In a user namespace that does not map the host's root, the host's folders
/// seem to be nobody's: there a folder `above` is taken for root's.
bool trusted_owner(uid_t owner, bool above) {
  if (owner == 0) return true;
  const IdMap& users = IdMap::of_this_process(IdKind::kUser);
  if (users.known(owner)) return owner == ::geteuid();
  return above && !users.maps_root();
}

/// `above`: it is not the folder itself, but one on the way to it, or a link.
Status check_entry(const std::string& path, const struct stat& info, bool above) {
  char mode[8];
  std::snprintf(mode, sizeof(mode), "%04o", static_cast<unsigned>(info.st_mode & 07777));
  const auto refuse = [&](const std::string& what) {
    return Status(StatusCode::kPermissionDenied,
                  path + " (owner uid " + std::to_string(info.st_uid) + ", mode " + mode + ") " + what);
  };
  if (!trusted_owner(info.st_uid, above)) {
    return refuse(
        "belongs neither to root nor to uid " + std::to_string(::geteuid()) +
        ", as which this daemon runs: its owner could put other files in the place of the daemon's");
  }
  const bool others_write = S_ISDIR(info.st_mode) && (info.st_mode & (S_IWGRP | S_IWOTH)) != 0;
  if (!others_write || (info.st_mode & S_ISVTX) != 0) return {};
  return refuse(
      "may be written by others and has no sticky bit: they could put other files in the place of the "
      "daemon's "
      "(chmod go-w)");
}

/// The components of a path, without "." and empty ones.
std::vector<std::string> components(const fs::path& path) {
  std::vector<std::string> parts;
  for (const fs::path& part : path.relative_path()) {
    if (!part.empty() && part != ".") parts.push_back(part);
  }
  return parts;
}

Result<fs::path> target_of(const fs::path& link) {
  char text[PATH_MAX];
  const ssize_t bytes = ::readlink(link.c_str(), text, sizeof(text));
  if (bytes < 0 || bytes == sizeof(text)) return system_error(link);
  return fs::path(std::string(text, static_cast<std::size_t>(bytes)));
}

}  // namespace

Status check_safe_folder(const std::string& path) {
  std::error_code error;
  const fs::path whole = fs::absolute(path, error);
  if (error) return {StatusCode::kUnavailable, path + ": " + error.message()};
  const auto parts = components(whole);
  std::deque<std::string> left(parts.begin(), parts.end());
  fs::path at = "/";
  int links = 0;
  for (;;) {
    struct stat info {};
    if (::lstat(at.c_str(), &info) != 0) return system_error(at);
    const bool last = left.empty();
    MK_RETURN_IF_ERROR(check_entry(at, info, !last || S_ISLNK(info.st_mode)));
    if (S_ISLNK(info.st_mode)) {
      if (++links > kMostLinks) return {StatusCode::kUnavailable, path + ": too many symbolic links"};
      auto target = target_of(at);
      if (!target.ok()) return target.status();
      const auto more = components(*target);
      left.insert(left.begin(), more.begin(), more.end());
      at = target->is_absolute() ? fs::path("/") : at.parent_path();
      continue;
    }
    if (!S_ISDIR(info.st_mode)) return {StatusCode::kAlreadyExists, at.string() + " is not a folder"};
    if (last) return {};
    at = left.front() == ".." ? at.parent_path() : at / left.front();
    left.pop_front();
  }
}

Status make_folders(const std::string& path) {
  std::error_code error;
  fs::path at = fs::absolute(path, error).root_path();
  for (const std::string& part : components(fs::absolute(path, error))) {
    at /= part;
    if (::mkdir(at.c_str(), 0755) != 0 && errno != EEXIST) return system_error(at);
  }
  return {};
}

}  // namespace mkernel::base
