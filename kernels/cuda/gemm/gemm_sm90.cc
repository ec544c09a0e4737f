#include "kernels/cuda/gemm/gemm_sm90.h"

#include <string>

#include "kernels/cuda/gemm/sm90_launch.h"
#include "kernels/cuda/gemm/sm90_maps.h"
#include "kernels/cuda/gemm/with_tile.h"
#include "kernels/cuda/memory/hopper.h"

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

}  // namespace

Status gemm_sm90(const GemmArguments& arguments, const GemmShape& shape, const std::optional<Sm90Plan>& plan,
                 CUstream_st* stream) {
  MK_RETURN_IF_ERROR(check_dimension("m", shape.m, 1));
  MK_RETURN_IF_ERROR(check_dimension("n", shape.n));
  MK_RETURN_IF_ERROR(check_dimension("k", shape.k));
  const Result<Machine> machine = hopper_machine("gemm");
  if (!machine.ok()) return machine.status();
  const Sm90Plan chosen = plan ? *plan : plan_sm90_any_cluster(shape, machine.value());
  MK_RETURN_IF_ERROR(check_plan(chosen));

  auto a = encode_tensor_map(
      sm90_a_view(chosen.tile, shape.dtype, arguments.a, shape.m, shape.k, 0, chosen.cluster), "a");
  if (!a.ok()) return a.status();
  auto b = encode_tensor_map(sm90_b_view(shape.dtype, shape.b_layout, arguments.b, shape.n, shape.k), "b");
  if (!b.ok()) return b.status();
  auto c = encode_tensor_map(sm90_c_view(shape.dtype, arguments.c, shape.m, shape.n), "c");
  if (!c.ok()) return c.status();

  const Sm90LocalProduct product{*a,
                                 *b,
                                 *c,
                                 {chosen.raster, chosen.whole},
                                 static_cast<std::int32_t>((shape.k + kSm90TileK - 1) / kSm90TileK)};
  return with_tile(chosen.tile, "gemm", [&]<Sm90Tile kTile>() {
    return launch_sm90_local<kTile>(shape, product, chosen, stream);
  });
}

}  // namespace mkernel::kernels
