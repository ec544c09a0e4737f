#include "daemon/base/safe_folder.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace mkernel::base {
namespace {

namespace fs = std::filesystem;

constexpr uid_t kOther = 4711;

class GuardedFolder {
 public:
  GuardedFolder() {
    char name[] = "/tmp/mk-safe-folder-XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    path_ = name;
  }
  ~GuardedFolder() { fs::remove_all(path_); }
  /// The path of a new folder in it.
  std::string make(const std::string& name, mode_t mode) const {
    const std::string path = path_ + "/" + name;
    REQUIRE(make_folders(path).ok());
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    return path;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

void refused(const std::string& path, const std::string& folder, const std::string& what) {
  const Status status = check_safe_folder(path);
  CHECK(status.code() == StatusCode::kPermissionDenied);
  CHECK_MESSAGE(status.text().find(folder + " (owner uid ") == 0, status.text());
  CHECK_MESSAGE(status.text().find(what) != std::string::npos, status.text());
}

}  // namespace

TEST_CASE("folders are made with all above them, and one's own in a sticky folder is safe") {
  const GuardedFolder folder;
  const std::string path = folder.make("a/b/c", 0755);
  CHECK(check_safe_folder(path).ok());
  CHECK(check_safe_folder(path + "/../c/./").ok());
  CHECK(make_folders(path).ok());  // it is there already
  CHECK(check_safe_folder(path + "/none").code() == StatusCode::kNotFound);
  CHECK(check_safe_folder("/dev/null").code() == StatusCode::kAlreadyExists);
}

TEST_CASE("a folder that others may write is refused, itself and above, unless it is sticky") {
  const GuardedFolder folder;
  const std::string path = folder.make("open/inner", 0755), open = folder.path() + "/open";
  for (const mode_t mode : {0777U, 0775U, 0757U}) {
    REQUIRE(::chmod(open.c_str(), mode) == 0);
    refused(open, open, "may be written by others and has no sticky bit");
    refused(path, open, "(chmod go-w)");
  }
  REQUIRE(::chmod(open.c_str(), 01777) == 0);
  CHECK(check_safe_folder(path).ok());
}

TEST_CASE("a folder or link of another user is refused, also where it is only on the way") {
  if (::geteuid() != 0) {
    MESSAGE("skipped: only root can give a folder to another user");
    return;
  }
  const GuardedFolder folder;
  const std::string path = folder.make("theirs/inner", 0755), theirs = folder.path() + "/theirs";
  REQUIRE(::lchown(theirs.c_str(), kOther, kOther) == 0);
  for (const std::string& asked : {theirs, path}) {
    refused(asked, theirs, "(owner uid 4711, mode 0755) belongs neither to root nor to uid 0");
  }
  const std::string link = folder.path() + "/link";
  REQUIRE(::symlink(folder.make("mine", 0755).c_str(), link.c_str()) == 0);
  CHECK(check_safe_folder(link).ok());
  REQUIRE(::lchown(link.c_str(), kOther, kOther) == 0);
  refused(link, link, "belongs neither to root");
  // What a link leads to counts as well.
  const std::string second = folder.path() + "/second";
  REQUIRE(::symlink("theirs/inner", second.c_str()) == 0);
  refused(second, theirs, "belongs neither to root");
}

TEST_CASE("links that lead in a circle end") {
  const GuardedFolder folder;
  const std::string link = folder.path() + "/circle";
  REQUIRE(::symlink("circle", link.c_str()) == 0);
  CHECK(check_safe_folder(link).text().find("too many symbolic links") != std::string::npos);
}

}  // namespace mkernel::base
