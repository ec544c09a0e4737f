// Counts allocations: for an executable of its own, since it replaces operator new. Included once.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

namespace mkernel::test {
inline std::uint64_t allocations = 0;
}

void* operator new(std::size_t bytes) {
  ++mkernel::test::allocations;
  if (void* const memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
