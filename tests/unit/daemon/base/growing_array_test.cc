#include "daemon/base/growing_array.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <utility>

namespace mkernel::base {
namespace {

TEST_CASE("a table keeps what was written, and what was not written is zero") {
  GrowingArray<std::uint64_t> table;
  CHECK(table.size() == 0);
  std::size_t size = 0;
  for (const std::size_t more : {1U, 600U, 1U, 100000U, 3000000U}) {
    table.grow(size + more);
    REQUIRE(table.size() == size + more);
    for (std::size_t i = 0; i < size; ++i) REQUIRE(table[i] == i + 1);
    for (std::size_t i = size; i < table.size(); ++i) {
      REQUIRE(table[i] == 0);
      table[i] = i + 1;
    }
    size += more;
  }
  table.grow(5);  // never shrinks
  CHECK(table.size() == size);
  const GrowingArray<std::uint64_t> moved = std::move(table);
  CHECK(moved.size() == size);
  CHECK(moved[size - 1] == size);
  CHECK(static_cast<std::size_t>(moved.end() - moved.begin()) == size);
}

TEST_CASE("a table that the machine has no room for throws, and stays as it is") {
  GrowingArray<std::uint64_t> table;
  table.grow(10);
  table[9] = 4;
  CHECK_THROWS_AS(table.grow(std::size_t{1} << 50), std::bad_alloc);
  CHECK(table.size() == 10);
  CHECK(table[9] == 4);
}

}  // namespace
}  // namespace mkernel::base
