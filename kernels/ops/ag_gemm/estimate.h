// How long a plan of AG+GEMM takes: the arrival of the rows against the pace of the product. Pure.
#pragma once

#include "kernels/ops/ag_gemm/plan.h"

namespace mkernel::kernels {

/// Seconds on the plan's machine, by playing the plan: rows arrive as links and wire (Machine::nic) let
/// them, every cluster takes its tiles in turn, each as soon as the parts of its rows are there. Within about
/// 5 % of what was measured where links and product matter (tests/perf/notes.md).
double estimated_seconds(const GemmShape& shape, const AgGemmPlan& plan);

/// How many tiles one of the plan's pushing clusters has time for after its last push, before the product
/// ends without it.
std::int32_t tiles_after_pushing(const GemmShape& shape, const AgGemmPlan& plan);

}  // namespace mkernel::kernels
