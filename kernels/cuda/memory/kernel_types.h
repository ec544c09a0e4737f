// The element types that this build has kernels of, and from a type to the code that is compiled for it.
#pragma once

#include <string>
#include <string_view>

#include "kernels/base/types.h"
#include "proto/abi/status.h"

namespace mkernel::kernels {

/// Whether there are kernels of fp16: the option MKERNEL_F16_KERNELS of the build. They are half of the
/// kernels.
#if defined(MKERNEL_NO_F16_KERNELS)
constexpr bool kHasF16Kernels = false;
#else
constexpr bool kHasF16Kernels = true;
#endif

/// kUnimplemented, begun by `who`, of a type that the build has no kernels of.
inline Status check_kernel_type(std::string_view who, DataType type, bool has_f16 = kHasF16Kernels) {
  if (type != DataType::kF16 || has_f16) return {};
  return {
      StatusCode::kUnimplemented,
      std::string(who) + ": dtype = f16, but this build has kernels of bf16 only (MKERNEL_F16_KERNELS=OFF)"};
}

/// Calls `with.operator()<type>()`. `type`: one that check_kernel_type() accepts.
template <class With>
auto with_kernel_type(DataType type, const With& with) {
  if constexpr (kHasF16Kernels) {
    if (type == DataType::kF16) return with.template operator()<DataType::kF16>();
  }
  return with.template operator()<DataType::kBf16>();
}

}  // namespace mkernel::kernels
