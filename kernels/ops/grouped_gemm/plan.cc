#include "kernels/ops/grouped_gemm/plan.h"

#include <tuple>
#include <utility>

#include "kernels/plan/cuts.h"
#include "kernels/plan/gemm_shape.h"

namespace mkernel::kernels {
namespace {

constexpr std::int64_t kMost = (std::int64_t{1} << 31) - 1;

Status refused(const std::string& field, std::int64_t value, const std::string& limit) {
  return {StatusCode::kInvalidArgument, std::string(name_of(OpKind::kGroupedGemm)) + ": " + field + " = " +
                                            std::to_string(value) + ", but it must be " + limit};
}

}  // namespace

Result<GroupedGemmPlan> GroupedGemmPlan::make(const GroupedGemmShape& shape) {
  for (const auto& [name, value, most] : {std::tuple{"max_rows", shape.max_rows, kMostRows},
                                          {"n", shape.n, kMost},
                                          {"k", shape.k, kMost},
                                          {"groups", shape.groups, kMostGroups}})
    if (value < 1 || value > most) return refused(name, value, "1.." + std::to_string(most));
  // Where a group's b begins is a coordinate of a tensor map.
  for (const auto& [name, value] : {std::pair{"n * groups", shape.n}, {"k * groups", shape.k}}) {
    const std::int64_t all = value * shape.groups;
    if (all > kMost) return refused(name, all, "at most " + std::to_string(kMost));
  }
  GroupedGemmPlan plan{shape};
  MK_RETURN_IF_ERROR(check_shape(OpKind::kGroupedGemm, plan.product()));
  return plan;
}

Status GroupedGemmPlan::check_on_gpu(std::int32_t sms) const {
  const std::string here = " on the cuda executor";
  for (const auto& [name, value] : {std::pair{"n", shape.n}, {"k", shape.k}})
    if (value % 8 != 0) return refused(name, value, "a multiple of 8" + here);
  if (sms < kGroupedGemmCluster)
    return refused("sms", sms, "at least " + std::to_string(kGroupedGemmCluster) + here);
  const std::int64_t blocks = ceil_div(shape.max_rows, tile_rows(kGroupedGemmTile)) + shape.groups;
  if (ceil_div(shape.n, 2 * tile_columns(kGroupedGemmTile)) > kMost / blocks)
    return refused("n", shape.n, "so small that tiles have 32-bit numbers" + here);
  return {};
}

std::string GroupedGemmPlan::signature() const {
  return std::string(name_of(OpKind::kGroupedGemm)) + " max_rows=" + std::to_string(shape.max_rows) +
         " n=" + std::to_string(shape.n) + " k=" + std::to_string(shape.k) +
         " groups=" + std::to_string(shape.groups) + (shape.dtype == DataType::kBf16 ? " bf16" : " f16") +
         (shape.b_layout == Layout::kRowMajor ? " row-major" : " column-major");
}

Status GroupedGemmPlan::check(const GroupedGemmArguments& arguments) const {
  for (const auto& [name, data] : {std::pair<const char*, const void*>{"a", arguments.a},
                                   {"ends", arguments.ends},
                                   {"b", arguments.b},
                                   {"c", arguments.c}}) {
    if (data != nullptr) continue;
    return {StatusCode::kInvalidArgument,
            std::string(name_of(OpKind::kGroupedGemm)) + ": " + name + " is null"};
  }
  return {};
}

Status GroupedGemmPlan::refuse(const BadEnd& bad) const {
  if (bad.group < 0) return {};
  return refused("ends[" + std::to_string(bad.group) + "]", bad.end,
                 std::to_string(bad.begin) + ".." + std::to_string(shape.max_rows));
}

}  // namespace mkernel::kernels
