// A plan of AG+GEMM that must be made, for the tests of such plans.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>

#include "kernels/ops/ag_gemm/plan.h"
#include "kernels/plan/machine.h"

namespace mkernel::kernels {

inline AgGemmPlan ag_gemm_plan_of(const GemmShape& shape, const Topology& topology, std::uint32_t rank,
                                  const AgGemmOptions& options = {}) {
  auto plan = AgGemmPlan::make(shape, topology, rank, kH200, options);
  REQUIRE_MESSAGE(plan.ok(), plan.status().to_string());
  return *plan;
}
inline AgGemmPlan ag_gemm_plan_of(const GemmShape& shape, std::uint32_t world, std::uint32_t rank,
                                  const AgGemmOptions& options = {}) {
  return ag_gemm_plan_of(shape, Topology(1, world), rank, options);
}

}  // namespace mkernel::kernels
