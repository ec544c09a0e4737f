// What both operations of attention do with the operands of a launch on the cuda executor.
#pragma once

#include <array>
#include <tuple>
#include <utility>

#include "kernels/cuda/memory/packed_map.h"
#include "kernels/cuda/memory/tensor_map.h"
#include "kernels/ops/ring_attention/attention_backward/plan.h"
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

/// Likewise, of a backward pass.
inline Status check_attention_backward_addresses(OpKind kind, const AttentionBackwardArguments& arguments) {
  for (const auto& [data, name] : attention_backward_operands(arguments))
    if (data != arguments.lse) MK_RETURN_IF_ERROR(check_address(data, name).with_context(name_of(kind)));
  return {};
}

/// The map of `view` into `map`; `name` is what errors call it.
inline Status encode_attention_map(OpKind kind, const MatrixView& view, const char* name, TensorMap& map) {
  auto made = encode_tensor_map(view, name);
  if (made.ok()) map = *made;
  return made.status().with_context(name_of(kind));
}

/// Likewise without swizzle, unless the view has no rows: the kernel keeps clear of that one.
inline Status encode_packed_attention_map(OpKind kind, const MatrixView& view, const char* name,
                                          TensorMap& map) {
  map = {};
  if (view.rows == 0) return {};
  auto made = encode_packed_map(view, name);
  if (made.ok()) map = *made;
  return made.status().with_context(name_of(kind));
}

/// What the maps of a kernel's tensors are of.
struct AttentionViews {
  MatrixView q, k, v, out;
};

/// The maps of attention of a rank alone stay until a launch comes with other tensors.
class AttentionMaps {
 public:
  /// The maps of `views`, of the tensors of `arguments`, into `parameters`, which are the same at every call.
  template <class Parameters>
  Status encode(const AttentionArguments& arguments, const AttentionViews& views, Parameters& parameters) {
    const Tensors given{arguments.q, arguments.k, arguments.v, arguments.out};
    if (given == tensors_) return {};
    tensors_ = {};
    constexpr OpKind kKind = OpKind::kAttention;
    MK_RETURN_IF_ERROR(encode_attention_map(kKind, views.q, "q", parameters.q));
    MK_RETURN_IF_ERROR(encode_attention_map(kKind, views.k, "k", parameters.k));
    MK_RETURN_IF_ERROR(encode_attention_map(kKind, views.v, "v", parameters.v));
    MK_RETURN_IF_ERROR(encode_attention_map(kKind, views.out, "out", parameters.out));
    tensors_ = given;
    return {};
  }

 private:
  using Tensors = std::tuple<const void*, const void*, const void*, const void*>;
  Tensors tensors_;
};

/// Likewise, of a backward pass.
struct AttentionBackwardViews {
  MatrixView q, k, v, d_out, d_k, d_v;
};

/// Likewise, of the backward pass of a rank alone.
class AttentionBackwardMaps {
 public:
  /// As AttentionMaps.
  template <class Parameters>
  Status encode(const AttentionBackwardArguments& arguments, const AttentionBackwardViews& views,
                Parameters& parameters) {
    const Tensors given{arguments.q, arguments.k, arguments.v, arguments.d_out, arguments.d_k, arguments.d_v};
    if (given == tensors_) return {};
    tensors_ = {};
    constexpr OpKind kKind = OpKind::kAttentionBackward;
    MK_RETURN_IF_ERROR(encode_attention_map(kKind, views.q, "q", parameters.q));
    MK_RETURN_IF_ERROR(encode_attention_map(kKind, views.k, "k", parameters.k));
    MK_RETURN_IF_ERROR(encode_attention_map(kKind, views.v, "v", parameters.v));
    MK_RETURN_IF_ERROR(encode_attention_map(kKind, views.d_out, "d_out", parameters.d_out));
    MK_RETURN_IF_ERROR(encode_attention_map(kKind, views.d_k, "d_k", parameters.d_k));
    MK_RETURN_IF_ERROR(encode_attention_map(kKind, views.d_v, "d_v", parameters.d_v));
    tensors_ = given;
    return {};
  }

 private:
  using Tensors = std::array<const void*, 6>;
  Tensors tensors_{};
};

}  // namespace mkernel::kernels
