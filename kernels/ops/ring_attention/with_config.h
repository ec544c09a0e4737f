// From a shape of attention to the code that is compiled for it.
#pragma once

#include "kernels/base/types.h"
#include "kernels/cuda/memory/kernel_types.h"

namespace mkernel::kernels {

/// Calls `with.operator()<head_dim, causal, type>()` for those of `shape`, whose head_dim is 64 or 128.
template <class With>
auto with_attention_config(const AttentionShape& shape, const With& with) {
  const auto typed = [&]<int kHeadDim, bool kCausal>() {
    return with_kernel_type(
        shape.dtype, [&]<DataType kType>() { return with.template operator()<kHeadDim, kCausal, kType>(); });
  };
  if (shape.head_dim == 64)
    return shape.causal ? typed.template operator()<64, true>() : typed.template operator()<64, false>();
  return shape.causal ? typed.template operator()<128, true>() : typed.template operator()<128, false>();
}

/// Calls `with.operator()<head_dim, tile_keys, type>()`, where `tile_keys` is what attention_tile_keys()
/// says.
template <class With>
auto with_attention_tile(const AttentionShape& shape, std::int32_t tile_keys, const With& with) {
  const auto typed = [&]<int kHeadDim, int kTileKeys>() {
    return with_kernel_type(shape.dtype, [&]<DataType kType>() {
      return with.template operator()<kHeadDim, kTileKeys, kType>();
    });
  };
  if (shape.head_dim == 64) return typed.template operator()<64, 192>();
  return tile_keys == 128 ? typed.template operator()<128, 128>() : typed.template operator()<128, 160>();
}

}  // namespace mkernel::kernels
