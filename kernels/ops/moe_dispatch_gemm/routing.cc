#include "kernels/ops/moe_dispatch_gemm/routing.h"

#include <algorithm>
#include <string>

namespace mkernel::kernels {
namespace {

Status refuse_entry(std::int64_t token, std::int64_t entry, std::int32_t value, const std::string& why) {
  return {StatusCode::kInvalidArgument, "moe: topk[" + std::to_string(token) + ", " + std::to_string(entry) +
                                            "] = " + std::to_string(value) + why};
}

}  // namespace

Result<SendLists> route_tokens(const MoePlan& plan, std::int64_t tokens, const std::int32_t* topk) {
  const MoeShape& shape = plan.shape();
  SendLists lists(plan.topology().nodes());
  std::vector<std::int64_t> chosen_by(static_cast<std::size_t>(shape.experts), -1);  // last token, by expert
  for (std::int64_t token = 0; token < tokens; ++token) {
    for (std::int64_t j = 0; j < shape.topk; ++j) {
      const std::int32_t expert = topk[token * shape.topk + j];
      if (expert < 0 || expert >= shape.experts) {
        return refuse_entry(token, j, expert, ", but it must be 0.." + std::to_string(shape.experts - 1));
      }
      if (chosen_by[static_cast<std::size_t>(expert)] == token) {
        return refuse_entry(token, j, expert, ", an expert that this token has already");
      }
      chosen_by[static_cast<std::size_t>(expert)] = token;
      auto& list = lists[plan.owner_node(expert)];
      if (list.empty() || list.back() != token) list.push_back(token);
    }
  }
  return lists;
}

SourceWork route_source(const MoePlan& plan, std::uint32_t rank, std::int64_t rows,
                        const std::int32_t* experts, const float* weights) {
  const Range own = plan.experts(rank);
  const std::int64_t topk = plan.shape().topk;
  SourceWork work;
  work.rows = rows;
  // Entries before each expert: counted first, then each entry takes the next place of its expert.
  std::vector<std::int64_t> place(static_cast<std::size_t>(own.size()) + 1, 0);
  for (std::int64_t i = 0; i < rows * topk; ++i) {
    if (experts[i] >= own.begin && experts[i] < own.end)
      ++place[static_cast<std::size_t>(experts[i] - own.begin) + 1];
  }
  for (std::size_t i = 1; i < place.size(); ++i) place[i] += place[i - 1];
  for (std::int64_t expert = 0; expert < own.size(); ++expert) {
    const std::int64_t end = place[static_cast<std::size_t>(expert) + 1];
    for (std::int64_t begin = place[static_cast<std::size_t>(expert)]; begin < end;
         begin += MoePlan::kBlockRows) {
      work.blocks.push_back({expert, {begin, std::min(begin + MoePlan::kBlockRows, end)}});
    }
  }
  work.row.resize(static_cast<std::size_t>(place.back()));
  work.first_term.push_back(0);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = row * topk; i < (row + 1) * topk; ++i) {
      if (experts[i] < own.begin || experts[i] >= own.end) continue;
      const std::int64_t entry = place[static_cast<std::size_t>(experts[i] - own.begin)]++;
      work.row[static_cast<std::size_t>(entry)] = row;
      work.terms.push_back({entry, weights[i]});
    }
    work.first_term.push_back(static_cast<std::int64_t>(work.terms.size()));
  }
  return work;
}

void contributors(const MoePlan& plan, std::uint32_t node, const std::int32_t* experts,
                  std::vector<std::uint32_t>& out) {
  out.clear();
  for (std::int64_t j = 0; j < plan.shape().topk; ++j) {
    const std::uint32_t rank = plan.owner(experts[j]);
    if (plan.topology().node_of(rank) == node) out.push_back(plan.topology().local_of(rank));
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
}

}  // namespace mkernel::kernels
