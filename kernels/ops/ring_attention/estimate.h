// How long attention takes on the cuda executor: keys and values that arrive, against the pace at which tiles
// of queries sweep them.
#pragma once

namespace mkernel::kernels {

struct AttentionBackwardPlan;
struct AttentionPlan;
struct Machine;
struct RingBackwardPlan;
struct RingGpuPlan;

/// Seconds of a launch on `machine`, by playing the plan: multiprocessors take its tasks in turn, and none is
/// faster than the memory. Packed sequences count as equally long. Not compared with measurements yet.
double estimated_seconds(const AttentionPlan& plan, const Machine& machine);

/// Likewise, on the machine that the plan was made for. Keys and values of other ranks arrive as links and
/// wire (Machine::nic) let them, and a task goes on to those of a source as they come.
double estimated_seconds(const RingGpuPlan& plan);

/// The same of the backward pass, roughly: five products, twice the work of the forward pass on every score,
/// and adds to gradients of queries at the pace of the L2. Without the waits of tasks for each other's adds,
/// which cost most where a causal mask meets heads that share keys.
double estimated_seconds(const AttentionBackwardPlan& plan, const Machine& machine);
double estimated_seconds(const RingBackwardPlan& plan);

}  // namespace mkernel::kernels
