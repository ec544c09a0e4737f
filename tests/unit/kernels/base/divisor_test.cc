// Numbers that the device divides by: the same quotients as the language's.
#include "kernels/base/divisor.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <type_traits>

using mkernel::kernels::Divisor;

namespace {

constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
static_assert(std::is_trivially_copyable_v<Divisor>, "kernels get it by value");

template <class Numerator>
concept Divides = requires(Numerator numerator, Divisor divisor) {
  numerator / divisor;
  numerator % divisor;
};
static_assert(Divides<std::int32_t>);
static_assert(!Divides<double> && !Divides<std::int64_t> && !Divides<std::uint32_t>, "they would be cut");

void check_division(std::int32_t numerator, std::int32_t by) {
  const Divisor divisor = by;
  CAPTURE(numerator);
  CAPTURE(by);
  REQUIRE(numerator / divisor == numerator / by);
  REQUIRE(numerator % divisor == numerator % by);
  REQUIRE(divisor.ceil(numerator) == numerator / by + (numerator % by > 0 ? 1 : 0));
}

}  // namespace

TEST_CASE("a divisor is the number, and divides as the number does") {
  CHECK(Divisor() == 1);
  CHECK(Divisor(0) == 0);
  for (std::int32_t by = 1; by <= 200; ++by) {
    CHECK(Divisor(by) == by);
    for (std::int32_t numerator = 0; numerator <= 2 * by + 1; ++numerator) check_division(numerator, by);
  }
}

TEST_CASE("at the borders of quotients, up to the largest numbers") {
  std::mt19937 random(1);
  std::uniform_int_distribution<std::int32_t> any(1, kMost);
  for (int round = 0; round < 20000; ++round) {
    // As many small divisors as large ones.
    const std::int32_t by = (any(random) >> (round % 31)) + (round % 31 == 0 ? 0 : 1);
    const std::int32_t last = kMost / by * by;
    for (const std::int32_t multiple : {last, any(random) / by * by}) {
      check_division(multiple, by);
      if (multiple > 0) check_division(multiple - 1, by);
    }
    check_division(kMost, by);
    check_division(any(random), by);
  }
  for (int bit = 0; bit < 31; ++bit) {
    const std::int32_t power = 1 << bit;
    for (const std::int32_t by : {power, power - 1, power + 1}) {
      if (by < 1) continue;
      for (const std::int32_t numerator : {0, 1, by - 1, by, kMost / by * by, kMost - 1, kMost})
        check_division(numerator, by);
    }
  }
}
