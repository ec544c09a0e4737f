// What mkrun writes: where it lies until it is whole, and who else may write there.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tools/mkrun/outputs.h"

namespace mkernel::mkrun {
namespace {

namespace fs = std::filesystem;

class OutputsTest {
 public:
  OutputsTest() { REQUIRE(::mkdtemp(folder_) != nullptr); }
  ~OutputsTest() { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return std::string(folder_) + "/" + name; }
  void store(const std::string& name, const std::string& text) const { std::ofstream(path(name)) << text; }
  std::string text(const std::string& name) const {
    std::stringstream read;
    read << std::ifstream(path(name)).rdbuf();
    return read.str();
  }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }

 private:
  char folder_[40] = "/tmp/mkernel-outputs-XXXXXX";
};

void fails(const Status& status, StatusCode code, const std::string& part) {
  CHECK(status.code() == code);
  CHECK_MESSAGE(status.text().find(part) != std::string::npos, status.text());
}

TEST_CASE_FIXTURE(OutputsTest, "an earlier file stays until the new one is whole, and keeps its mode") {
  store("c", "earlier");
  REQUIRE(::chmod(path("c").c_str(), 0640) == 0);
  {
    auto file = tools::OutputFile::open(path("c"));
    REQUIRE(file.ok());
    CHECK(file->write("half").ok());
    CHECK(text("c") == "earlier");
    CHECK(files() == 2);
  }
  CHECK(text("c") == "earlier");
  CHECK(files() == 1);
  CHECK(tools::replace_file(path("c"), "new").ok());
  CHECK(text("c") == "new");
  struct stat info {};
  REQUIRE(::stat(path("c").c_str(), &info) == 0);
  CHECK((info.st_mode & 07777) == 0640);
  CHECK(files() == 1);
}

TEST_CASE_FIXTURE(OutputsTest, "links are followed, also to what does not exist yet") {
  fs::create_directory(path("far"));
  fs::create_symlink("far/c", path("c"));
  CHECK(tools::replace_file(path("c"), "one").ok());
  CHECK(fs::is_symlink(path("c")));
  CHECK(text("far/c") == "one");
  CHECK(tools::replace_file(path("c"), "two").ok());
  CHECK(fs::is_symlink(path("c")));
  CHECK(text("far/c") == "two");
}

TEST_CASE_FIXTURE(OutputsTest, "what cannot be opened or written is named") {
  fails(tools::replace_file(path("none/c"), "x"), StatusCode::kNotFound, path("none/c") + ": No such file");
  fails(tools::replace_file(path(""), "x"), StatusCode::kInvalidArgument, "Is a directory");
  fails(tools::replace_file("/dev/full", "x"), StatusCode::kResourceExhausted, "/dev/full cannot be written");
  CHECK(tools::replace_file("/dev/null", "x").ok());
  const std::string longest(255, 'n');
  CHECK(tools::replace_file(path(longest), "x").ok());
  CHECK(text(longest) == "x");
}

TEST_CASE_FIXTURE(OutputsTest, "two outputs, or an output and an input, are not one file") {
  Options options;
  options.op = "attention_backward";
  options.out = path("c");
  options.d_k = path("./c");
  fails(Outputs::open(options).status(), StatusCode::kInvalidArgument, "--out and --d-k are one file");
  options.d_k = path("k");
  options.lse = path("lse");
  store("lse", "sums");
  fs::create_hard_link(path("lse"), path("k"));
  fails(Outputs::open(options).status(), StatusCode::kInvalidArgument,
        "--d-k " + path("k") + " would overwrite --lse " + path("lse"));
  CHECK(text("lse") == "sums");
  CHECK(files() == 2);
  options.op = "attention";  // which writes --lse
  CHECK(Outputs::open(options).ok());
}

TEST_CASE_FIXTURE(OutputsTest,
                  "ranks that write one file see it; files of one name in two places do not count") {
  Options options;
  options.op = "gemm_ar";
  options.out = path("c");
  const auto one = Outputs::open(options), other = Outputs::open(options);
  REQUIRE(one.ok());
  REQUIRE(other.ok());
  CHECK(one.value().shared_with(other.value().claims()) == "--out");
  CHECK(other.value().shared_with(one.value().claims()) == "--out");
  // Another machine's disk: the same name, and no temporary file that could be seen from here.
  Outputs::Claims far = other.value().claims();
  far[0].token += 1;
  CHECK(one.value().shared_with(far).empty());
  CHECK(one.value().shared_with({}).empty());
}

}  // namespace
}  // namespace mkernel::mkrun
