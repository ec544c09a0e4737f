// The post path takes no memory: an executable of its own, since it replaces operator new.
#include <doctest/doctest.h>

#include <cstdlib>
#include <new>

#include "tests/support/null_verbs.h"

namespace {
std::uint64_t allocations = 0;
}

void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* const memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace mkernel::test {

std::unique_ptr<Wire> make_wire() {
  return nullptr;
}

TEST_CASE("once its regions are known, a stream of puts allocates nothing") {
  for (const std::uint32_t length : {0U, 8U, 4096U}) {
    CAPTURE(length);
    NullVerbs verbs(5);
    verbs.put(1000, length);
    const std::uint64_t before = allocations;
    CHECK(before > 0);
    verbs.put(100000, length);
    CHECK(allocations == before);
  }
}

}  // namespace mkernel::test
