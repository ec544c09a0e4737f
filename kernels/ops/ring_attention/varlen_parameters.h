// What the kernel of ring attention over sequences of different lengths is given.
#pragma once

#include <cstdint>

#include "kernels/ops/ring_attention/attention/varlen_parameters.h"
#include "kernels/ops/ring_attention/parameters.h"
#include "kernels/plan/attention_sequences.h"

namespace mkernel::kernels {

/// Of what ring attention has, maps are as high as a tile, those of queries and outputs are of part 0, and
/// `tasks`, `counters` and `first_tiles` are not used: the tasks follow from the lengths.
struct RingVarlenParameters : RingAttentionParameters {
  using Scratch = VarlenScratch<AttentionSlot>;

  AttentionLengths lengths;  ///< the same on every rank
  Scratch* scratch;
  std::int32_t section_heads;  ///< RingPlan::section_heads()
};

}  // namespace mkernel::kernels
