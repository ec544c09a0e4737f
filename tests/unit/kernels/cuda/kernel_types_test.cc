#include "kernels/cuda/memory/kernel_types.h"

#include <doctest/doctest.h>

namespace mkernel::kernels {
namespace {

TEST_CASE("a build without kernels of fp16 refuses that type by name, and no other") {
  for (const bool has_f16 : {false, true}) CHECK(check_kernel_type("ag_gemm", DataType::kBf16, has_f16).ok());
  CHECK(check_kernel_type("ag_gemm", DataType::kF16, true).ok());
  const Status status = check_kernel_type("ag_gemm", DataType::kF16, false);
  CHECK(status.code() == StatusCode::kUnimplemented);
  CHECK(status.text() ==
        "ag_gemm: dtype = f16, but this build has kernels of bf16 only (MKERNEL_F16_KERNELS=OFF)");
}

TEST_CASE("from a type to the code that is compiled for it") {
  const auto same = [](DataType type) {
    return with_kernel_type(type, [&]<DataType kType>() { return kType == type; });
  };
  CHECK(same(DataType::kBf16));
  CHECK(same(DataType::kF16));
}

}  // namespace
}  // namespace mkernel::kernels
