// What the routing of one launch makes of the plan: which token goes to which node, which products an expert
// rank computes for the rows of one source. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/ops/moe_dispatch_gemm/plan.h"

namespace mkernel::kernels {

/// By node: the tokens that have an expert there, ascending. Row i of what goes to a node is token list[i].
using SendLists = std::vector<std::vector<std::int64_t>>;

/// Checks topk [tokens, topk]: numbers within 0..experts - 1, none twice within a row. kInvalidArgument
/// names the token, the entry and the value.
Result<SendLists> route_tokens(const MoePlan& plan, std::int64_t tokens, const std::int32_t* topk);

/// Up to MoePlan::kBlockRows rows of one expert and one source: one product.
struct ExpertBlock {
  std::int64_t expert = 0;  ///< among the rank's own
  Range entries;            ///< of SourceWork::row
};

/// What one expert rank does with the rows of one source. An entry is one (row, expert) pair; the entries of
/// an expert lie together, rows ascending. Blocks depend on the routing alone, not on the order of arrival,
/// so every product has the same shape and the same bits on every run.
struct SourceWork {
  std::int64_t rows = 0;
  std::vector<ExpertBlock> blocks;
  std::vector<std::int64_t> row;  ///< by entry

  /// The terms of a row's sum, in topk order: [first_term[row], first_term[row + 1]).
  struct Term {
    std::int64_t entry = 0;
    float weight = 0;
  };
  std::vector<Term> terms;
  std::vector<std::int64_t> first_term;
};

/// `experts`, `weights`: [rows, topk] as in the metadata.
SourceWork route_source(const MoePlan& plan, std::uint32_t rank, std::int64_t rows,
                        const std::int32_t* experts, const float* weights);

/// Local ranks of `node` that own an expert of the row, ascending: the order in which its partial sums are
/// added. `experts`: the row's topk numbers. `out` is overwritten.
void contributors(const MoePlan& plan, std::uint32_t node, const std::int32_t* experts,
                  std::vector<std::uint32_t>& out);

}  // namespace mkernel::kernels
