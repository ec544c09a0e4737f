// From a shape of attention to the code that is compiled for it.
#pragma once

#include "kernels/base/types.h"
#include "kernels/cuda/memory/kernel_types.h"

namespace mkernel::kernels {

/// Calls `with.operator()<head_dim, causal, type>()` for those of `shape`, whose head_dim is 64 or 128.
template <class With>
auto with_attention_config(const AttentionShape& shape, const With& with) {
  return with_kernel_type(shape.dtype, [&]<DataType kType>() {
    if (shape.head_dim == 64) {
      return shape.causal ? with.template operator()<64, true, kType>()
                          : with.template operator()<64, false, kType>();
    }
    return shape.causal ? with.template operator()<128, true, kType>()
                        : with.template operator()<128, false, kType>();
  });
}

/// Calls `with.operator()<head_dim, type>()`, likewise.
template <class With>
auto with_attention_heads(const AttentionShape& shape, const With& with) {
  return with_kernel_type(shape.dtype, [&]<DataType kType>() {
    return shape.head_dim == 64 ? with.template operator()<64, kType>()
                                : with.template operator()<128, kType>();
  });
}

/// Calls `with.operator()<head_dim, tile_keys, type>()`, where `tile_keys` is what attention_tile_keys()
/// says.
template <class With>
auto with_attention_tile(const AttentionShape& shape, std::int32_t tile_keys, const With& with) {
  return with_kernel_type(shape.dtype, [&]<DataType kType>() {
    if (shape.head_dim == 64) return with.template operator()<64, 192, kType>();
    return tile_keys == 128 ? with.template operator()<128, 128, kType>()
                            : with.template operator()<128, 160, kType>();
  });
}

}  // namespace mkernel::kernels
