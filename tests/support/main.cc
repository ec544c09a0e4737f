#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <iostream>
#include <string_view>
#include <vector>

#include "tests/support/arguments.h"
#include "tests/support/skip.h"

namespace mkernel::test {
namespace {

constexpr int kSkipped = 77;  // SKIP_RETURN_CODE of mkernel_test()

std::atomic<bool> skipped = false;
std::vector<std::string_view> arguments;

}  // namespace

void skip(const std::string& reason) {
  skipped = true;
  std::cout << "SKIPPED: " << reason << std::endl;
}

bool is_asked_for(std::string_view option) {
  return std::find(arguments.begin(), arguments.end(), option) != arguments.end();
}

}  // namespace mkernel::test

int main(int argc, char** argv) {
  mkernel::test::arguments.assign(argv + 1, argv + argc);
  const int failed = doctest::Context(argc, argv).run();
  return failed == 0 && mkernel::test::skipped ? mkernel::test::kSkipped : failed;
}
