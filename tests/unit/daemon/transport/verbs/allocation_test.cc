// The post path takes no memory.
#include <doctest/doctest.h>

#include "tests/support/counted_new.h"
#include "tests/support/null_verbs.h"

namespace mkernel::test {

std::unique_ptr<Wire> make_wire() {
  return nullptr;
}

TEST_CASE("once its regions are known, a stream of puts allocates nothing") {
  for (const std::uint32_t length : {0U, 8U, 4096U}) {
    CAPTURE(length);
    NullPair pair(5, null_verbs());
    pair.put(10000, length);
    const std::uint64_t before = allocations;
    CHECK(before > 0);
    pair.put(100000, length);
    CHECK(allocations == before);
  }
}

}  // namespace mkernel::test
