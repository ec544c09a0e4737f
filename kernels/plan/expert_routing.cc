#include "kernels/plan/expert_routing.h"

namespace mkernel::kernels {

Status RoutingProblem::to_status(std::int32_t rank, std::int32_t experts) const {
  if (kind == kNone) return {};
  const std::string at = "[" + std::to_string(token) + ", " + std::to_string(j) + "]";
  const std::string expert = "topk" + at + " = " + std::to_string(value);
  std::string text = "moe: rank " + std::to_string(rank) + ": ";
  if (kind == kOutOfRange) text += expert + ", but it must be 0.." + std::to_string(experts - 1);
  if (kind == kTwice) text += expert + ", an expert that this token has already";
  if (kind == kNotANumber) text += "weights" + at + " is not a number";
  return {StatusCode::kInvalidArgument, text};
}

ChunkedRouting::ChunkedRouting(const RoutedTokens& routed, const ExpertOwners& owners, std::int32_t rank,
                               std::int32_t chunks)
    : routed_(routed),
      order_{owners, rank},
      chunks_(static_cast<std::size_t>(chunks)),
      pushed_(static_cast<std::size_t>(routed.tokens) * static_cast<std::size_t>(routed.topk)),
      token_order_(static_cast<std::size_t>(routed.tokens)) {}

void ChunkedRouting::count(std::int32_t chunk) {
  Chunk& mine = chunks_[static_cast<std::size_t>(chunk)];
  mine = {{},
          std::vector<std::int32_t>(static_cast<std::size_t>(order_.steps())),
          std::vector<std::int32_t>(static_cast<std::size_t>(order_.owners.max_local()))};
  const Range range = tokens(chunk);
  for (auto token = static_cast<std::int32_t>(range.begin); token < range.end; ++token) {
    for (std::int32_t j = 0; j < routed_.topk; ++j) {
      mine.problem = problem_of(routed_, order_.owners.experts, token, j);
      if (mine.problem.kind != RoutingProblem::kNone) return;
      ++mine.by_step[static_cast<std::size_t>(order_.step(expert_of(token * routed_.topk + j)))];
    }
    ++mine.by_local[static_cast<std::size_t>(last_local(routed_, order_.owners, token))];
  }
}

RoutingProblem ChunkedRouting::problem() const {
  for (const Chunk& chunk : chunks_)
    if (chunk.problem.kind != RoutingProblem::kNone) return chunk.problem;
  return {};
}

std::vector<std::int32_t> ChunkedRouting::counts() const {
  std::vector<std::int32_t> all(static_cast<std::size_t>(order_.owners.experts));
  for (std::int32_t expert = 0; expert < order_.owners.experts; ++expert)
    for (const Chunk& chunk : chunks_)
      all[static_cast<std::size_t>(expert)] += chunk.by_step[static_cast<std::size_t>(order_.step(expert))];
  return all;
}

std::vector<std::int32_t> ChunkedRouting::begin_of(std::int32_t chunk,
                                                   std::vector<std::int32_t> Chunk::*counts) const {
  std::vector<std::int32_t> begins;
  std::int32_t before = 0;
  for (std::size_t kind = 0; kind < (chunks_[0].*counts).size(); ++kind) {
    std::int32_t begin = before;
    for (std::int32_t other = 0; other < chunks(); ++other) {
      const std::int32_t count = (chunks_[static_cast<std::size_t>(other)].*counts)[kind];
      if (other < chunk) begin += count;
      before += count;
    }
    begins.push_back(begin);
  }
  return begins;
}

void ChunkedRouting::place(std::int32_t chunk) {
  std::vector<std::int32_t> next_push = begin_of(chunk, &Chunk::by_step);
  std::vector<std::int32_t> next_token = begin_of(chunk, &Chunk::by_local);
  const Range range = tokens(chunk);
  for (auto token = static_cast<std::int32_t>(range.begin); token < range.end; ++token) {
    for (std::int32_t j = 0; j < routed_.topk; ++j) {
      const std::int32_t entry = token * routed_.topk + j;
      const auto step = static_cast<std::size_t>(order_.step(expert_of(entry)));
      pushed_[static_cast<std::size_t>(next_push[step]++)] = entry;
    }
    const auto last = static_cast<std::size_t>(last_local(routed_, order_.owners, token));
    token_order_[static_cast<std::size_t>(next_token[last]++)] = token;
  }
}

ChunkedRouting::Push ChunkedRouting::push(std::int32_t number) const {
  const std::int32_t entry = pushed_[static_cast<std::size_t>(number)], expert = expert_of(entry);
  const auto first = begin_of(0, &Chunk::by_step)[static_cast<std::size_t>(order_.step(expert))];
  return {entry, expert, number - first};
}

}  // namespace mkernel::kernels
