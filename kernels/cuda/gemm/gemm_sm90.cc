#include "kernels/cuda/gemm/gemm_sm90.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <string>

#include "kernels/cuda/gemm/sm90_launch.h"
#include "kernels/cuda/gemm/sm90_maps.h"
#include "kernels/cuda/gemm/with_tile.h"
#include "kernels/cuda/memory/hopper.h"
#include "kernels/cuda/memory/kernel_types.h"
#include "kernels/plan/cuts.h"

namespace mkernel::kernels {
namespace {

Status check_dimension(const char* name, std::int64_t value, std::int64_t multiple = 8) {
  constexpr std::int64_t kLimit = std::int64_t{1} << 31;
  if (value < 1 || value >= kLimit) {
    return {StatusCode::kInvalidArgument,
            std::string("gemm: ") + name + " is " + std::to_string(value) + ", must be in [1, 2^31)"};
  }
  if (value % multiple == 0) return {};
  return {StatusCode::kInvalidArgument, std::string("gemm: ") + name + " is " + std::to_string(value) +
                                            ", must be a multiple of " + std::to_string(multiple) +
                                            " (TMA moves rows of whole 16 bytes)"};
}

/// Steps along k.
std::int32_t k_blocks(const GemmShape& shape) {
  return static_cast<std::int32_t>(ceil_div(shape.k, kSm90TileK));
}

Status check_plan(const Sm90Plan& plan) {
  const std::int32_t cluster = plan.cluster_ctas();
  if (plan.whole < 0 || plan.whole > plan.raster.tiles() ||
      (plan.whole < plan.raster.tiles() && !has_tail(plan.tile))) {
    return {StatusCode::kInvalidArgument, "gemm: plan has " + std::to_string(plan.whole) + " of " +
                                              std::to_string(plan.raster.tiles()) +
                                              " cluster tiles whole, which its tile does not allow"};
  }
  if (plan.ctas >= cluster && plan.ctas % cluster == 0 && plan.raster.band() >= 1) return {};
  return {StatusCode::kInvalidArgument, "gemm: plan has " + std::to_string(plan.ctas) +
                                            " CTAs and bands of " + std::to_string(plan.raster.band()) +
                                            " rows, must be a multiple of " + std::to_string(cluster) +
                                            " and at least 1"};
}

Status check_plan(const GemmShape& shape, const Sm90SkinnyPlan& plan) {
  if (std::ranges::find(kSkinnyRows, plan.rows) == std::end(kSkinnyRows) || plan.rows < shape.m) {
    return {StatusCode::kInvalidArgument, "gemm: plan has tiles of " + std::to_string(plan.rows) +
                                              " rows, must be 16, 32 or 64 and at least m, which is " +
                                              std::to_string(shape.m)};
  }
  const std::int64_t most = std::min<std::int64_t>(kSkinnyMostSplit, k_blocks(shape));
  if (plan.split >= 1 && plan.split <= most && std::has_single_bit(static_cast<std::uint32_t>(plan.split)))
    return {};
  return {StatusCode::kInvalidArgument, "gemm: plan splits k over " + std::to_string(plan.split) +
                                            " CTAs, must be a power of two of at most " +
                                            std::to_string(most)};
}

Status run(const GemmArguments& arguments, const GemmShape& shape, const Sm90Plan& plan,
           CUstream_st* stream) {
  MK_RETURN_IF_ERROR(check_plan(plan));
  const std::int32_t box_rows = plan.a_box_rows(shape.m);
  auto a = encode_tensor_map(sm90_a_view(box_rows, shape.dtype, arguments.a, shape.m, shape.k), "a");
  if (!a.ok()) return a.status();
  auto b = encode_tensor_map(sm90_b_view(shape.dtype, shape.b_layout, arguments.b, shape.n, shape.k), "b");
  if (!b.ok()) return b.status();
  auto c = encode_tensor_map(sm90_c_view(shape.dtype, arguments.c, shape.m, shape.n), "c");
  if (!c.ok()) return c.status();

  const Sm90LocalProduct product{
      *a, *b, *c, {plan.raster, plan.whole}, k_blocks(shape), static_cast<std::int32_t>(shape.m), box_rows};
  return with_tile(plan.tile, "gemm",
                   [&]<Sm90Tile kTile>() { return launch_sm90_local<kTile>(shape, product, plan, stream); });
}

Status run(const GemmArguments& arguments, const GemmShape& shape, const Sm90SkinnyPlan& plan,
           CUstream_st* stream) {
  MK_RETURN_IF_ERROR(check_plan(shape, plan));
  auto a = encode_tensor_map(sm90_skinny_a_view(plan, shape, arguments.a), "a");
  if (!a.ok()) return a.status();
  auto b = encode_tensor_map(sm90_b_view(shape.dtype, shape.b_layout, arguments.b, shape.n, shape.k), "b");
  if (!b.ok()) return b.status();
  if (arguments.c == nullptr) return {StatusCode::kInvalidArgument, "matrix c: address is null"};
  MK_RETURN_IF_ERROR(check_address(arguments.c, "c"));

  const Sm90SkinnyProduct product{*a,
                                  *b,
                                  static_cast<std::byte*>(arguments.c),
                                  static_cast<std::int32_t>(shape.m),
                                  static_cast<std::int32_t>(shape.n),
                                  k_blocks(shape),
                                  std::countr_zero(static_cast<std::uint32_t>(plan.split))};
  switch (plan.rows) {
    case 16: return launch_sm90_skinny<16>(shape, product, stream);
    case 32: return launch_sm90_skinny<32>(shape, product, stream);
    default: return launch_sm90_skinny<64>(shape, product, stream);
  }
}

}  // namespace

Status gemm_sm90(const GemmArguments& arguments, const GemmShape& shape,
                 const std::optional<Sm90LocalPlan>& plan, CUstream_st* stream) {
  MK_RETURN_IF_ERROR(check_dimension("m", shape.m, 1));
  MK_RETURN_IF_ERROR(check_dimension("n", shape.n));
  MK_RETURN_IF_ERROR(check_dimension("k", shape.k));
  MK_RETURN_IF_ERROR(check_kernel_type("gemm", shape.dtype));
  const Result<Machine> machine = hopper_machine("gemm");
  if (!machine.ok()) return machine.status();
  return std::visit([&](const auto& chosen) { return run(arguments, shape, chosen, stream); },
                    plan ? *plan : plan_sm90_local(shape, machine.value()));
}

}  // namespace mkernel::kernels
