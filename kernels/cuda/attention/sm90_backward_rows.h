// What the backward body of attention is told of the rows of a tile of queries (sm90_backward.cuh).
#pragma once

#include "kernels/plan/attention_backward_tasks.h"

namespace mkernel::kernels {

struct AttentionBackwardRows {
  float lse[kBackwardTileQueries];    ///< log-sum-exps to base 2; infinity where there is no query or no key
  float delta[kBackwardTileQueries];  ///< sums of output x its gradient
};
static_assert(sizeof(AttentionBackwardRows) % 16 == 0, "copied in bulk");

}  // namespace mkernel::kernels
