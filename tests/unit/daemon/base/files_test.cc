#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "daemon/base/read_file.h"
#include "daemon/base/socket_file.h"
#include "proto/ipc/fd.h"

namespace mkernel::base {
namespace {

struct Folder {
  Folder() {
    char name[] = "/tmp/mkernel-files-XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::filesystem::path path;
};

ipc::UniqueFd listen_at(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size());
  ipc::UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  return fd;
}

TEST_CASE("only regular files of a limited size are read, and nothing is waited for") {
  const Folder folder;
  const std::string file = folder.path / "file", pipe = folder.path / "pipe";
  std::ofstream(file) << "text\n";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(read_file(file).value() == "text\n");
  CHECK(read_file(file, 5).ok());
  const auto large = read_file(file, 4);
  CHECK(large.status().code() == StatusCode::kInvalidArgument);
  CHECK(large.status().text() == file + ": cannot be read: larger than 4 bytes");
  for (const std::string& odd : {pipe, std::string("/dev/zero"), folder.path.string()}) {
    const auto refused = read_file(odd);
    CHECK(refused.status().code() == StatusCode::kInvalidArgument);
    CHECK(refused.status().text() == odd + ": cannot be read: it is no regular file");
  }
  CHECK(read_file(folder.path / "none").status().code() == StatusCode::kNotFound);
  CHECK(read_file(file + "/none").status().code() == StatusCode::kNotFound);
}

TEST_CASE("a socket's file is known for ours, missing or another's, and only ours is removed") {
  const Folder folder;
  const std::string path = folder.path / "s";
  const ipc::UniqueFd first = listen_at(path);
  const SocketFile file(path);
  CHECK(file.look() == SocketFileState::kOurs);
  std::filesystem::rename(path, path + ".away");  // so that the next file has another inode
  CHECK(file.look() == SocketFileState::kMissing);
  const ipc::UniqueFd second = listen_at(path);
  CHECK(file.look() == SocketFileState::kReplaced);
  file.remove();
  CHECK(std::filesystem::exists(path));
  SocketFile(path).remove();
  CHECK_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace mkernel::base
