// What both operations of attention do with the operands of a launch on the cuda executor.
#pragma once

#include <utility>

#include "kernels/cuda/memory/tensor_map.h"
#include "kernels/plan/gemm_shape.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

/// kInvalidArgument naming the operand whose address TMA does not take; null is none.
inline Status check_attention_addresses(OpKind kind, const AttentionArguments& arguments) {
  for (const auto& [data, name] : {std::pair{arguments.q, "q"},
                                   {arguments.k, "k"},
                                   {arguments.v, "v"},
                                   {static_cast<const void*>(arguments.out), "out"}})
    MK_RETURN_IF_ERROR(check_address(data, name).with_context(name_of(kind)));
  return {};
}

/// The map of `view` into `map`; `name` is what errors call it.
inline Status encode_attention_map(OpKind kind, const MatrixView& view, const char* name, TensorMap& map) {
  auto made = encode_tensor_map(view, name);
  if (made.ok()) map = *made;
  return made.status().with_context(name_of(kind));
}

}  // namespace mkernel::kernels
