#include "kernels/plan/chunked_routing.h"

#include <algorithm>
#include <numeric>

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

Status refusal_of(std::span<const RoutingProblem> problems, const HostExpertTable& table,
                  std::int32_t capacity) {
  for (std::size_t rank = 0; rank < problems.size(); ++rank) {
    MK_RETURN_IF_ERROR(
        problems[rank].to_status(static_cast<std::int32_t>(rank), table.view().owners.experts));
  }
  return table.check_capacity(capacity);
}

ChunkedRouting::ChunkedRouting(const RoutedTokens& routed, const PushOrder& order, std::int32_t chunks)
    : routed_(routed),
      order_(order),
      chunks_(static_cast<std::size_t>(chunks)),
      index_(static_cast<std::size_t>(routed.tokens) * static_cast<std::size_t>(routed.topk)),
      pushed_(index_),
      token_order_(static_cast<std::size_t>(routed.tokens)),
      crossing_(static_cast<std::size_t>(routed.tokens) * static_cast<std::size_t>(order.others()), -1),
      returning_(crossing_) {}

std::vector<std::int32_t> ChunkedRouting::entries(std::int32_t node_turn, std::int32_t token) const {
  std::vector<std::int32_t> found;
  for (std::int32_t entry = token * routed_.topk; entry < (token + 1) * routed_.topk; ++entry)
    if (order_.node_turn(routed_.experts[entry]) == node_turn) found.push_back(entry);
  return found;
}

ChunkedRouting::Span ChunkedRouting::span(std::int32_t node_turn, std::int32_t token) const {
  Span found;
  for (std::int32_t entry = token * routed_.topk; entry < (token + 1) * routed_.topk; ++entry) {
    if (order_.node_turn(routed_.experts[entry]) != node_turn) continue;
    const std::int32_t local = order_.owners.local(routed_.experts[entry]);
    found.first = found.first < 0 ? local : std::min(found.first, local);
    found.last = std::max(found.last, local);
  }
  return found;
}

void ChunkedRouting::count(std::int32_t chunk) {
  Chunk& mine = chunks_[static_cast<std::size_t>(chunk)];
  const Kinds far(kind(order_.others(), 0));
  mine = {{}, Kinds(static_cast<std::size_t>(order_.owners.experts)), Kinds(kind(1, 0)), far, far};
  const Range range = tokens(chunk);
  for (auto token = static_cast<std::int32_t>(range.begin); token < range.end; ++token) {
    for (std::int32_t j = 0; j < routed_.topk; ++j) {
      mine.problem = problem_of(routed_, order_.owners.experts, token, j);
      if (mine.problem.kind != RoutingProblem::kNone) return;
      ++mine.by_expert[static_cast<std::size_t>(routed_.experts[token * routed_.topk + j])];
    }
    ++mine.by_local[kind(0, last_local(routed_, order_.owners, token))];
    for (std::int32_t turn = 0; turn < order_.others(); ++turn) {
      const Span there = span(turn, token);
      if (there.first < 0) continue;
      ++mine.by_first[kind(turn, there.first)];
      ++mine.by_last[kind(turn, there.last)];
    }
  }
}

RoutingProblem ChunkedRouting::problem() const {
  for (const Chunk& chunk : chunks_)
    if (chunk.problem.kind != RoutingProblem::kNone) return chunk.problem;
  return {};
}

std::int32_t ChunkedRouting::crossings(std::int32_t node_turn) const {
  const Kinds all = total(&Chunk::by_first);
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(kind(node_turn, 0));
  return std::accumulate(begin, begin + order_.owners.max_local(), 0);
}

std::int32_t ChunkedRouting::pushes_before(std::int32_t steps) const {
  const Kinds all = counts();
  std::int32_t pushes = 0;
  for (std::int32_t step = 0; step < steps; ++step)
    if (const std::int32_t expert = order_.expert(step); expert >= 0)
      pushes += all[static_cast<std::size_t>(expert)];
  return pushes;
}

ChunkedRouting::Kinds ChunkedRouting::total(Kinds Chunk::*counts, std::int32_t end) const {
  Kinds all((chunks_[0].*counts).size());
  for (std::int32_t chunk = 0; chunk < end; ++chunk)
    for (std::size_t kind = 0; kind < all.size(); ++kind)
      all[kind] += (chunks_[static_cast<std::size_t>(chunk)].*counts)[kind];
  return all;
}

ChunkedRouting::Kinds ChunkedRouting::begin_of(std::int32_t chunk, Kinds Chunk::*counts,
                                               std::size_t per_node) const {
  const Kinds all = total(counts);
  Kinds begins = total(counts, chunk);
  std::int32_t before = 0;
  for (std::size_t kind = 0; kind < all.size(); ++kind) {
    if (kind % per_node == 0) before = 0;
    begins[kind] += before;
    before += all[kind];
  }
  return begins;
}

void ChunkedRouting::place(std::int32_t chunk) {
  const Kinds all = counts();
  Kinds first_push(static_cast<std::size_t>(order_.steps()));
  std::int32_t pushes = 0;
  for (std::int32_t step = 0; step < order_.steps(); ++step) {
    first_push[static_cast<std::size_t>(step)] = pushes;
    const std::int32_t expert = order_.expert(step);
    if (expert >= 0) pushes += all[static_cast<std::size_t>(expert)];
  }
  Kinds next_row = total(&Chunk::by_expert, chunk);
  Kinds next_token = begin_of(chunk, &Chunk::by_local, kind(1, 0));
  Kinds next_first = begin_of(chunk, &Chunk::by_first, kind(1, 0));
  Kinds next_last = begin_of(chunk, &Chunk::by_last, kind(1, 0));
  const Range range = tokens(chunk);
  for (auto token = static_cast<std::int32_t>(range.begin); token < range.end; ++token) {
    for (std::int32_t entry = token * routed_.topk; entry < (token + 1) * routed_.topk; ++entry) {
      const std::int32_t expert = routed_.experts[entry];
      const std::int32_t index = next_row[static_cast<std::size_t>(expert)]++;
      index_[static_cast<std::size_t>(entry)] = index;
      if (order_.node_turn(expert) < order_.others()) continue;
      const std::int32_t first = first_push[static_cast<std::size_t>(order_.step(expert))];
      pushed_[static_cast<std::size_t>(first + index)] = entry;
    }
    token_order_[static_cast<std::size_t>(next_token[kind(0, last_local(routed_, order_.owners, token))]++)] =
        token;
    for (std::int32_t turn = 0; turn < order_.others(); ++turn) {
      const Span there = span(turn, token);
      if (there.first < 0) continue;
      crossing_[at(turn, next_first[kind(turn, there.first)]++)] = token;
      returning_[at(turn, token)] = next_last[kind(turn, there.last)]++;
    }
  }
}

}  // namespace mkernel::kernels
