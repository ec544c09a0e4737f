// How long attention takes on the cuda executor: keys and values that arrive, against the pace at which tiles
// of queries sweep them.
#pragma once

namespace mkernel::kernels {

struct AttentionPlan;
struct Machine;
struct RingGpuPlan;

/// Seconds of a launch on `machine`, by playing the plan: multiprocessors take its tasks in turn, and none is
/// faster than the memory. Packed sequences count as equally long. Not compared with measurements yet.
double estimated_seconds(const AttentionPlan& plan, const Machine& machine);

/// Likewise, on the machine that the plan was made for. Keys and values of other ranks arrive as links and
/// wire (Machine::nic) let them, and a task goes on to those of a source as they come.
double estimated_seconds(const RingGpuPlan& plan);

}  // namespace mkernel::kernels
