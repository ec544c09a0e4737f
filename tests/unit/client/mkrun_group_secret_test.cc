// Where mkrun takes a group's secret from, and what it refuses without repeating it.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "tools/mkrun/group_secret.h"

namespace mkernel::mkrun {
namespace {

const std::string kDigits = "00112233445566778899aabbccddeeffFFEEDDCCBBAA99887766554433221100";

Environment with(const char* value) {
  return [value](const char* name) { return std::string(name) == kSecretVariable ? value : nullptr; };
}

class SecretFile {
 public:
  explicit SecretFile(const std::string& text, mode_t mode = 0600) {
    path_ = "/tmp/mkrun-secret-XXXXXX";
    const int fd = ::mkstemp(path_.data());
    REQUIRE(fd >= 0);
    REQUIRE(::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
    REQUIRE(::fchmod(fd, mode) == 0);
    ::close(fd);
  }
  ~SecretFile() { ::unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

TEST_CASE("a secret is read from the file, else from the environment, else there is none") {
  const auto none = read_secret("", with(nullptr));
  REQUIRE(none.ok());
  CHECK(none.value() == GroupSecret{});
  const auto empty = read_secret("", with(""));  // as every variable: one that is not set
  REQUIRE(empty.ok());
  CHECK(empty.value() == GroupSecret{});

  const auto variable = read_secret("", with(kDigits.c_str()));
  REQUIRE(variable.ok());
  CHECK(variable.value()[1] == std::byte{0x11});
  CHECK(variable.value()[16] == std::byte{0xff});

  const SecretFile file(std::string(62, '0') + "42\n");
  const auto both = read_secret(file.path(), with(kDigits.c_str()));
  REQUIRE_MESSAGE(both.ok(), both.status().text());
  CHECK(both.value()[31] == std::byte{0x42});
  CHECK(both.value()[0] == std::byte{0});
}

TEST_CASE("what is no secret is refused by source and length, without a word of what it holds") {
  const auto refusal = [](const std::string& text) {
    const auto secret = read_secret("", with(text.c_str()));
    CHECK(secret.status().code() == StatusCode::kInvalidArgument);
    return secret.status().text();
  };
  CHECK(refusal("hunter2").find("MKERNEL_GROUP_SECRET: a group's secret is 64 hexadecimal digits") == 0);
  CHECK(refusal("hunter2").find("hunter2") == std::string::npos);
  CHECK(refusal(kDigits + "0").find("there are 65 characters") != std::string::npos);
  std::string odd = kDigits;
  odd[5] = 'x';
  CHECK(refusal(odd).find("at position 5 is no digit") != std::string::npos);
  CHECK(refusal(std::string(64, '0')).find("a secret of zeros") != std::string::npos);
  CHECK(refusal(" ").find("there are 0 characters") != std::string::npos);
}

TEST_CASE("a secret's file that is missing, or that others may read, is refused by name") {
  const auto missing = read_secret("/nonexistent/secret", with(nullptr));
  CHECK(missing.status().code() == StatusCode::kNotFound);
  CHECK(missing.status().text() ==
        "--secret-file /nonexistent/secret cannot be read: No such file or directory");
  const SecretFile open(kDigits, 0640);
  const auto readable = read_secret(open.path(), with(nullptr));
  CHECK(readable.status().code() == StatusCode::kPermissionDenied);
  CHECK(readable.status().text().find("chmod 600") != std::string::npos);
}

}  // namespace mkernel::mkrun
