// What tests on a GPU share: skipping with a reason when there is none.
#pragma once

namespace mkernel::test {

/// True when GPU 0 is of compute capability 9.0. Else skip()s, once.
bool hopper_or_skip();

/// Of GPU 0.
int multiprocessors();

}  // namespace mkernel::test
