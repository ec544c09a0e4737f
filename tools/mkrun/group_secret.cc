#include "tools/mkrun/group_secret.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

namespace mkernel::mkrun {
namespace {

constexpr std::size_t kDigits = 2 * std::tuple_size_v<GroupSecret>;

int value_of(char digit) {
  const char* const digits = "0123456789abcdef";
  const char lower = digit >= 'A' && digit <= 'F' ? static_cast<char>(digit - 'A' + 'a') : digit;
  const char* const found = lower == '\0' ? nullptr : std::strchr(digits, lower);
  return found == nullptr ? -1 : static_cast<int>(found - digits);
}

std::string trimmed(const std::string& text) {
  const char* const white = " \t\r\n";
  const std::size_t first = text.find_first_not_of(white);
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(white) - first + 1);
}

}  // namespace

Result<GroupSecret> parse_secret(const std::string& text, const std::string& source) {
  const std::string digits = trimmed(text);
  const auto odd = std::find_if(digits.begin(), digits.end(), [](char c) { return value_of(c) < 0; });
  if (digits.size() != kDigits || odd != digits.end()) {
    return Status(StatusCode::kInvalidArgument,
                  source + ": a group's secret is " + std::to_string(kDigits) +
                      " hexadecimal digits (openssl rand -hex 32); there are " +
                      std::to_string(digits.size()) + " characters" +
                      (odd == digits.end() ? ""
                                           : ", and the one at position " +
                                                 std::to_string(odd - digits.begin()) + " is no digit"));
  }
  GroupSecret secret{};
  for (std::size_t i = 0; i < secret.size(); ++i) {
    secret[i] = static_cast<std::byte>(value_of(digits[2 * i]) << 4 | value_of(digits[2 * i + 1]));
  }
  if (secret != GroupSecret{}) return secret;
  return Status(StatusCode::kInvalidArgument, source + ": a secret of zeros means that there is none");
}

Result<GroupSecret> read_secret(const std::string& file, const Environment& environment) {
  if (file.empty()) {
    const char* const given = environment(kSecretVariable);
    return given == nullptr || *given == '\0' ? Result<GroupSecret>(GroupSecret{})
                                              : parse_secret(given, kSecretVariable);
  }
  std::ifstream stream(file);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  if (!stream.is_open() || stream.bad()) {
    return Status(StatusCode::kNotFound,
                  "--secret-file " + file + " cannot be read: " + std::strerror(errno));
  }
  struct stat info {};
  if (::stat(file.c_str(), &info) == 0 && S_ISREG(info.st_mode) && (info.st_mode & 077) != 0) {
    return Status(StatusCode::kPermissionDenied,
                  "--secret-file " + file + " may be read or written by others than its owner: chmod 600");
  }
  return parse_secret(text, "--secret-file " + file);
}

Result<GroupSecret> read_secret(const std::string& file) {
  return read_secret(file, process_environment());
}

}  // namespace mkernel::mkrun
