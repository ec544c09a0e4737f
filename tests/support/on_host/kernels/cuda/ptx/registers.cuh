// Stands in for kernels/cuda/ptx/registers.cuh (tests/support/on_host/cuda_names.h).
#pragma once

namespace mkernel::kernels::ptx {

template <int kRegisters>
void setmaxnreg_inc() {}
template <int kRegisters>
void setmaxnreg_dec() {}
template <class Value>
void compute_now(Value&) {}

}  // namespace mkernel::kernels::ptx
