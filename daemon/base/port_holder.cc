#include "daemon/base/port_holder.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "daemon/base/printable.h"

namespace mkernel::base {
namespace {

namespace fs = std::filesystem;

/// The inode of the socket that listens on `port`, out of a table like /proc/net/tcp; empty when there is
/// none. Columns: number, local address:port (hex), remote, state (0A = listen), queues, timer, retransmits,
/// uid, timeout, inode.
std::string listening_inode(const char* table, std::uint16_t port) {
  constexpr std::size_t kLocal = 1, kState = 3, kInode = 9;
  std::ifstream file(table);
  std::string line;
  std::getline(file, line);  // heading
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::array<std::string, kInode + 1> column;
    for (auto& word : column) words >> word;
    const auto colon = column[kLocal].rfind(':');
    if (column[kState] != "0A" || colon == std::string::npos) continue;
    if (std::strtoul(column[kLocal].c_str() + colon + 1, nullptr, 16) == port) return column[kInode];
  }
  return {};
}

bool holds_socket(const fs::path& process, const std::string& link) {
  std::error_code error;
  for (const auto& fd : fs::directory_iterator(process / "fd", error)) {
    if (fs::read_symlink(fd.path(), error) == link) return true;
  }
  return false;
}

}  // namespace

std::string port_holder(std::uint16_t port) {
  std::string inode = listening_inode("/proc/net/tcp", port);
  if (inode.empty()) inode = listening_inode("/proc/net/tcp6", port);
  if (inode.empty()) return {};
  const std::string link = "socket:[" + inode + "]";
  std::error_code error;
  for (const auto& process : fs::directory_iterator("/proc", error)) {
    const std::string pid = process.path().filename();
    if (!std::all_of(pid.begin(), pid.end(), [](unsigned char c) { return std::isdigit(c) != 0; })) continue;
    if (!holds_socket(process.path(), link)) continue;
    std::string name = "?";
    std::getline(std::ifstream(process.path() / "comm"), name);
    return " (held by " + one_line(name) + ", pid " + pid + ")";
  }
  return {};
}

}  // namespace mkernel::base
