#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <atomic>
#include <iostream>

#include "tests/support/skip.h"

namespace mkernel::test {
namespace {

constexpr int kSkipped = 77;  // SKIP_RETURN_CODE of mkernel_test()

std::atomic<bool> skipped = false;

}  // namespace

void skip(const std::string& reason) {
  skipped = true;
  std::cout << "SKIPPED: " << reason << std::endl;
}

}  // namespace mkernel::test

int main(int argc, char** argv) {
  const int failed = doctest::Context(argc, argv).run();
  return failed == 0 && mkernel::test::skipped ? mkernel::test::kSkipped : failed;
}
