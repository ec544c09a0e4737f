// A CUDA runtime and driver that compute nothing and count what is asked of them, for an executable of its
// own: it links tests/support/counted_cuda.cc, whose functions come before those of the runtime. Device
// memory is host memory, copies are made at once, and a launch returns without having run.
#pragma once

#include <map>
#include <string>

namespace mkernel::test {

/// Calls by the name of the function since the last reset, without those that were not called.
using CudaCalls = std::map<std::string, int>;
CudaCalls cuda_calls();
void reset_cuda_calls();

/// From now on `memory` lies on `device`; everything else lies on device 0. Links between devices have peer
/// access, and native atomics only after set_native_atomics(true).
void place_on_device(const void* memory, int device);
void set_native_atomics(bool has);

/// Of two devices, 0 and 1, the one whose context is current on this thread; `kNoCudaDevice` where none is,
/// as on a thread that has not used CUDA.
constexpr int kNoCudaDevice = -1;
int current_cuda_device();

}  // namespace mkernel::test
