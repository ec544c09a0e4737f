// What a test program is asked for besides doctest's own options.
#pragma once

#include <string_view>

namespace mkernel::test {

/// Whether `option`, such as "--host-buffers", is among the program's arguments.
bool is_asked_for(std::string_view option);

}  // namespace mkernel::test
