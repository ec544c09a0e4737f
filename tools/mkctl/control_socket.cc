#include "tools/mkctl/control_socket.h"

#include <grp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "daemon/base/printable.h"
#include "proto/ipc/fd.h"
#include "tools/mkctl/user_name.h"

namespace mkernel::mkctl {
namespace {

struct Attempt {
  ipc::UniqueFd socket;
  int error = 0;  ///< 0: connected
};

/// Never blocks: a full backlog is EAGAIN.
Attempt try_to_connect(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return {{}, ENAMETOOLONG};
  std::memcpy(address.sun_path, path.c_str(), path.size());
  Attempt attempt{ipc::UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0))};
  if (::connect(attempt.socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0)
    attempt.error = errno;
  return attempt;
}

std::string group_name(gid_t gid) {
  std::vector<char> storage(16384);
  group entry{};
  group* found = nullptr;
  ::getgrgid_r(gid, &entry, storage.data(), storage.size(), &found);
  return found != nullptr ? std::string(found->gr_name) : std::to_string(gid);
}

/// "user root, group mkernel, mode 0660"
std::string owner_text(const struct stat& info) {
  char mode[8];
  std::snprintf(mode, sizeof(mode), "%04o", info.st_mode & 07777U);
  return "user " + user_name(info.st_uid) + ", group " + group_name(info.st_gid) + ", mode " + mode;
}

const char* kind_of(mode_t mode) {
  if (S_ISREG(mode)) return "a regular file";
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  return "a device";
}

/// The folder above `path` that this user may not enter, or `path` itself.
std::string permission_text(const std::string& path) {
  const std::string me = "; this is user " + user_name(::geteuid());
  struct stat info {};
  std::filesystem::path folder;
  for (const auto& part : std::filesystem::absolute(path)) {
    folder /= part;
    if (::stat(folder.c_str(), &info) != 0) break;
    if (S_ISDIR(info.st_mode) && ::access(folder.c_str(), X_OK) != 0)
      return "permission denied: the folder " + folder.string() + " belongs to " + owner_text(info) + me;
  }
  if (::stat(path.c_str(), &info) != 0) return "permission denied" + me;
  if (!S_ISSOCK(info.st_mode)) return std::string("it is ") + kind_of(info.st_mode) + ", not a socket";
  return "permission denied: the socket belongs to " + owner_text(info) + me +
         " (join that group, or become that user)";
}

}  // namespace

std::string why_unreachable(const std::string& path) {
  const Attempt attempt = try_to_connect(path);
  switch (attempt.error) {
    case 0:
    case EAGAIN: return {};
    case ENAMETOOLONG:
      return "the path has " + std::to_string(path.size()) + " bytes, a socket's at most " +
             std::to_string(sizeof(sockaddr_un::sun_path) - 1);
    case ENOENT: return "there is no such socket (is mkerneld running? --socket names another)";
    case EACCES: return permission_text(path);
    case EPROTOTYPE:
      return "it is a socket of another kind, such as jobs connect to; mkctl needs the control socket "
             "(control.socket in the configuration)";
    case ECONNREFUSED: break;
    default: return std::strerror(attempt.error);
  }
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && !S_ISSOCK(info.st_mode))
    return std::string("it is ") + kind_of(info.st_mode) + ", not a socket";
  return "nobody listens there any more (did mkerneld die?)";
}

std::string who_listens(const std::string& path) {
  const Attempt attempt = try_to_connect(path);
  ucred holder{};
  socklen_t size = sizeof(holder);
  if (attempt.error != 0 ||
      ::getsockopt(attempt.socket.get(), SOL_SOCKET, SO_PEERCRED, &holder, &size) != 0 || holder.pid <= 0)
    return "somebody";
  std::string program;
  std::getline(std::ifstream("/proc/" + std::to_string(holder.pid) + "/comm"), program);
  return "process " + std::to_string(holder.pid) +
         (program.empty() ? "" : " (" + base::one_line(program) + ")") + " of user " + user_name(holder.uid);
}

}  // namespace mkernel::mkctl
