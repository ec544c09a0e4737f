#include "client/src/socket_access.h"

#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <string_view>
#include <vector>

namespace mkernel::client {
namespace {

constexpr std::size_t kEntryBytes = 16384;  // of one entry of the user database

/// The user's name, or its number where it has none.
std::string user_name(uid_t uid) {
  std::vector<char> buffer(kEntryBytes);
  passwd entry{};
  passwd* found = nullptr;
  const bool known = ::getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found) == 0 && found != nullptr;
  return known ? std::string(entry.pw_name) : std::to_string(uid);
}

/// The group's name, or its number where it has none.
std::string group_name(gid_t gid) {
  std::vector<char> buffer(kEntryBytes);
  group entry{};
  group* found = nullptr;
  const bool known = ::getgrgid_r(gid, &entry, buffer.data(), buffer.size(), &found) == 0 && found != nullptr;
  return known ? std::string(entry.gr_name) : std::to_string(gid);
}

/// The groups of this process.
std::vector<gid_t> own_groups() {
  std::vector<gid_t> groups(static_cast<std::size_t>(std::max(::getgroups(0, nullptr), 0)));
  const int count = groups.empty() ? 0 : ::getgroups(static_cast<int>(groups.size()), groups.data());
  groups.resize(static_cast<std::size_t>(std::max(count, 0)));
  groups.push_back(::getegid());
  std::ranges::sort(groups);
  groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  return groups;
}

std::string octal(mode_t mode) {
  std::array<char, 8> text{};
  std::snprintf(text.data(), text.size(), "%04o", static_cast<unsigned>(mode & 07777U));
  return text.data();
}

/// `path`, or the innermost folder above it that this process can look at.
std::string seen_part(std::string path, struct stat& seen) {
  while (::stat(path.c_str(), &seen) != 0) {
    const std::size_t slash = path.find_last_of('/');
    if (slash == std::string::npos) return {};
    path.resize(std::max<std::size_t>(slash, 1));
    if (path == "/") return {};
  }
  return path;
}

}  // namespace

std::string describe_access(const std::string& path) {
  const std::string user = user_name(::geteuid());
  const std::vector<gid_t> groups = own_groups();
  std::string us = "this process is user " + user + " in group" + (groups.size() > 1 ? "s " : " ");
  for (std::size_t i = 0; i < groups.size(); ++i) us += (i > 0 ? ", " : "") + group_name(groups[i]);
  struct stat seen {};
  const std::string what = seen_part(path, seen);
  if (what.empty()) return us;
  const std::string group = group_name(seen.st_gid);
  const mode_t needed = S_ISDIR(seen.st_mode) ? S_IXGRP : S_IWGRP;
  const bool for_group = (seen.st_mode & needed) != 0;
  std::string text = (S_ISDIR(seen.st_mode) ? "folder " : "socket ") + what + " is of user " +
                     user_name(seen.st_uid) + " and group " + group + " with mode " + octal(seen.st_mode) +
                     "; " + us;
  if (!for_group || std::ranges::binary_search(groups, seen.st_gid)) return text;
  if (seen.st_gid == 0)
    return text + "; the operator can give the socket to another group (node.socket_group)";
  return text + "; join group " + group + " (usermod -aG " + group + " " + user + "), then log in again";
}

}  // namespace mkernel::client
