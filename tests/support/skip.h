// Tests that want what this machine does not have.
#pragma once

#include <string>

namespace mkernel::test {

/// Prints why something is not tested here. ctest counts the whole test as skipped, unless something fails.
void skip(const std::string& reason);

}  // namespace mkernel::test
