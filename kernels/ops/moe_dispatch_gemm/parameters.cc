#include "kernels/ops/moe_dispatch_gemm/parameters.h"

#include <algorithm>
#include <cstddef>

#include "kernels/ops/moe_dispatch_gemm/plan.h"
#include "kernels/plan/cuts.h"

namespace mkernel::kernels {
namespace {

/// Carves a buffer into parts that begin at whole 128 bytes; without one it counts.
class Parts {
 public:
  explicit Parts(void* base) : base_(static_cast<std::byte*>(base)) {}
  template <class Part>
  void take(Part*& part, std::size_t count) {
    if (base_ != nullptr) part = reinterpret_cast<Part*>(base_ + bytes_);
    bytes_ += whole_lines(count * sizeof(Part));
  }
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::byte* const base_;
  std::uint64_t bytes_ = 0;
};

std::uint64_t carve(const MoePlan& moe, void* base, MoeScratch& scratch) {
  const ExpertExchangePlan& plan = moe.exchange;
  const auto experts = static_cast<std::size_t>(plan.owners.experts);
  const auto kinds = static_cast<std::size_t>(plan.owners.max_local());
  const auto ctas = static_cast<std::size_t>(moe.dispatch_ctas);
  const auto tokens = static_cast<std::size_t>(plan.max_tokens);
  const auto others = static_cast<std::size_t>(plan.others());
  const std::size_t entries = tokens * static_cast<std::size_t>(plan.topk);
  const auto section_parts = static_cast<std::size_t>(moe.sections.parts(plan.owners.max_local()));
  const auto sections =
      static_cast<std::size_t>(moe.sections.most_sections(plan.owners.max_local(), plan.max_blocks()));
  Parts parts(base);
  parts.take(scratch.counters, 2);
  parts.take(scratch.counted, 1);
  parts.take(scratch.placed, 1);
  parts.take(scratch.table_ready, 1);
  parts.take(scratch.report, 1);
  parts.take(scratch.chunk_rows, ctas * experts);
  parts.take(scratch.chunk_tokens, ctas * kinds);
  parts.take(scratch.chunk_first, ctas * others * kinds);
  parts.take(scratch.chunk_last, ctas * others * kinds);
  parts.take(scratch.rows, experts);
  parts.take(scratch.rows_before, experts + 1);
  parts.take(scratch.blocks_before, experts + 1);
  parts.take(scratch.source_rows, (1 + others) * experts);
  parts.take(scratch.near_rows, kinds);
  parts.take(scratch.part_sections, section_parts + 1);
  parts.take(scratch.part_blocks, section_parts + 1);
  parts.take(scratch.section_blocks, sections + 1);
  parts.take(scratch.section_first, sections);
  parts.take(scratch.section_experts, sections);
  parts.take(scratch.followers, sections + 1);
  parts.take(scratch.pushed, entries);
  parts.take(scratch.token_order, tokens);
  parts.take(scratch.entry_index, others > 0 ? entries : 0);
  parts.take(scratch.crossing, others * tokens);
  parts.take(scratch.returning, others * tokens);
  parts.take(scratch.crossings, others);
  parts.take(scratch.crossed, others);
  parts.take(scratch.crossed_row, others * tokens);
  return parts.bytes();
}

}  // namespace

std::uint64_t moe_scratch_bytes(const MoePlan& plan) {
  MoeScratch scratch{};
  return carve(plan, nullptr, scratch);
}

MoeParameters moe_parameters(const MoePlan& plan, std::uint32_t rank, std::span<std::byte* const> workspace,
                             void* scratch) {
  const ExpertExchangePlan& exchange = plan.exchange;
  MoeParameters p{};
  carve(plan, scratch, p.scratch);
  p.plan = exchange;
  p.places = {.counted = exchange.counted(0),
              .arrived = exchange.arrived(0),
              .stored = exchange.stored(0),
              .hidden_word = exchange.hidden_word(0, 0),
              .shared_stored = exchange.shared_stored(0),
              .shared_hidden_word = exchange.shared_hidden_word(0, 0),
              .finished_word = exchange.finished_word(0),
              .staged_word = exchange.staged_word(0, 0),
              .forwarded_word = exchange.forwarded_word(0, 0),
              .summed_word = exchange.summed_word(0, 0),
              .counts = {exchange.counts(0, 0), exchange.counts(1, 0)},
              .counts_bytes = exchange.counts_bytes(),
              .row = exchange.row(0),
              .origin = exchange.origin(0),
              .finished = exchange.finished(0),
              .crossing_out = exchange.crossing_out(0, 0),
              .crossing_in = exchange.crossing_in(0, 0),
              .sum_out = exchange.sum_out(0, 0),
              .sum_in = exchange.sum_in(0, 0),
              .crossing_bytes = exchange.crossing_bytes(),
              .row_in_crossing = exchange.row_in_crossing()};
  std::copy(workspace.begin(), workspace.end(), p.workspace);
  p.rank = static_cast<std::int32_t>(rank);
  const PushOrder order = exchange.order(p.rank);
  p.first_seat = order.node(p.rank) * exchange.ranks_per_node;
  p.hidden = static_cast<std::int32_t>(plan.shape.hidden);
  p.experts.intermediate = static_cast<std::int32_t>(plan.shape.intermediate);
  p.shared.intermediate = static_cast<std::int32_t>(plan.shape.shared_intermediate);
  p.n = static_cast<std::int32_t>(plan.shape.n);
  p.pairs1 = (exchange.columns1 + 1) / 2;
  p.pairs2 = (exchange.columns2 + 1) / 2;
  p.shared_pairs1 = (exchange.shared_columns1 + 1) / 2;
  p.sections = plan.sections;
  p.dispatch_ctas = plan.dispatch_ctas;
  p.sum_parts = 1;
  p.weights_on_input = plan.shape.weights_on_input;
  return p;
}

}  // namespace mkernel::kernels
