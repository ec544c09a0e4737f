// What the roles of the mixture of experts' kernel are given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda/memory/tensor_map.h"
#include "kernels/plan/expert_exchange_plan.h"
#include "kernels/plan/expert_routing.h"
#include "kernels/plan/layer_tasks.h"
#include "kernels/plan/sm90_tile.h"
#include "mkernel/device_endpoint.h"

namespace mkernel::kernels {

struct MoePlan;

/// What the kernel takes at most.
inline constexpr std::int32_t kMoeMostTopk = 16, kMoeMostExperts = 1024;

/// Why a launch was refused. Written by every rank alike; the host reads it once the stream is done.
struct MoeRefusal {
  std::uint64_t launch = 0;  ///< the last one that was refused, counted from 1; 0: none was
  RoutingProblem problem;    ///< what is wrong with the routing of `rank`; kNone: too many rows
  std::int32_t rank = 0;
  // Too many rows:
  std::int32_t expert = 0;
  std::int32_t rows = 0;    ///< rows of the expert
  std::int32_t padded = 0;  ///< padded rows of its owner's experts, up to and with this one
};
static_assert(sizeof(MoeRefusal) == 40);

/// What launches leave for the host, which reads it once the stream is done.
struct MoeReport {
  MoeRefusal refusal;
  std::uint64_t sent = 0;  ///< bytes that the last launch has put to other nodes
};

/// Which units of a launch are taken next. A launch uses one of two, and zeroes the other.
struct MoeCounters {
  std::uint64_t tasks = 0, staged = 0, pushes = 0, forwarded = 0, crossed_sums = 0, sums = 0;
  std::uint64_t bad = 0;  ///< all ones less the lowest entry that is bad; 0: none is
};

/// Memory of this rank alone, that no other GPU sees: words that only grow, tables of one launch.
struct MoeScratch {
  MoeCounters* counters;       ///< [2], by parity of the epoch
  std::uint64_t* counted;      ///< dispatching CTAs that have counted their chunk
  std::uint64_t* placed;       ///< likewise placed
  std::uint64_t* table_ready;  ///< launches whose table is built
  MoeReport* report;
  std::int32_t* chunk_rows;    ///< [dispatching CTA][experts]: rows of its chunk
  std::int32_t* chunk_tokens;  ///< [dispatching CTA][local experts at most]: tokens, by last local expert
  // By node turn and local expert: tokens that cross there, by the first one that they have there, by the
  // last.
  std::int32_t* chunk_first;    ///< [dispatching CTA][others][local experts at most]
  std::int32_t* chunk_last;     ///< likewise
  std::int32_t* rows;           ///< [experts], of all sources
  std::int32_t* rows_before;    ///< [experts + 1]
  std::int32_t* blocks_before;  ///< [experts + 1]
  /// [1 + others][experts]: where a source's rows of an expert begin in the owner's pool; the sources are
  /// this rank, and its rail peers by node turn.
  std::int32_t* source_rows;
  std::int32_t* near_rows;      ///< [own experts]: ExpertSectionCut
  std::int32_t* part_sections;  ///< [parts + 1]: sections of the parts before
  std::int32_t* part_blocks;    ///< [parts + 1]: likewise blocks
  // ExpertSections, of own experts.
  std::int32_t* section_blocks;   ///< [sections + 1]
  std::int32_t* section_first;    ///< [sections]
  std::int32_t* section_experts;  ///< [sections]
  std::int32_t* followers;        ///< [sections + 1]: ExpertTasks
  std::int32_t* pushed;           ///< [max_tokens * topk]: entries, in the order of PushOrder
  std::int32_t* token_order;      ///< [max_tokens]: tokens, by last local expert
  /// [max_tokens * topk]: of entries for other nodes, ChunkedRouting::Push::index.
  std::int32_t* entry_index;
  std::int32_t* crossing;     ///< [others][max_tokens]: tokens, in the order in which they cross
  std::int32_t* returning;    ///< [others][max_tokens]: by token, ChunkedRouting::returning()
  std::int32_t* crossings;    ///< [others]: own tokens that cross to a node
  std::int32_t* crossed;      ///< [others]: tokens that cross from the rail peer there
  std::int32_t* crossed_row;  ///< [others][max_tokens]: by number of returning, the row of crossing_in[]
};

/// Where parts of the exchange's workspace begin: what the plan computes, once.
struct MoePlaces {
  std::uint64_t counted, arrived, stored, hidden_word, shared_stored, shared_hidden_word, finished_word,
      staged_word, forwarded_word, summed_word;
  std::uint64_t counts[2];  ///< by parity of the epoch
  std::uint64_t counts_bytes;
  std::uint64_t row, origin, finished, crossing_out, crossing_in, sum_out, sum_in;
  std::uint64_t crossing_bytes, row_in_crossing;
};

/// What the products of this rank's experts read and write, or those of the shared expert.
struct MoeOperands {
  TensorMap rows;             ///< the pool: [capacity, hidden]; of the shared expert x: [tokens, hidden]
  TensorMap w1;               ///< [own experts][hidden, intermediate], the gates; of one product [hidden, n]
  TensorMap w1_up;            ///< [own experts][hidden, intermediate]: what the gates let through
  TensorMap hidden_a;         ///< [capacity or max_tokens, intermediate], as an operand of the second product
  TensorMap hidden_c;         ///< and as what the first one stores
  TensorMap w2;               ///< [own experts][intermediate, n]
  std::int32_t intermediate;  ///< 0: there is only one product
  /// Rows of memory from an expert's weights to the next one's, of both products.
  std::int32_t weight_rows1, weight_rows2;
};

/// Bytes of a row that a warp sums at a time.
inline constexpr std::int32_t kMoeSumBytes = 32 * 16;

/// Bytes of a token's row that are one unit of summing.
struct MoeSumPart {
  std::int32_t begin, end;
};
/// Of a row of `bytes` bytes in `parts` parts, which may be more than there is to share out.
MK_HOST_DEVICE inline MoeSumPart moe_sum_part(std::int32_t bytes, std::int32_t parts, std::int32_t part) {
  const std::int32_t steps = (bytes + kMoeSumBytes - 1) / kMoeSumBytes;
  const std::int32_t begin = steps * part / parts * kMoeSumBytes;
  const std::int32_t end = steps * (part + 1) / parts * kMoeSumBytes;
  return {begin, end < bytes ? end : bytes};
}

struct MoeParameters {
  MoeOperands experts, shared;
  device::Endpoint endpoint;
  const std::byte* x;  ///< [tokens, hidden]
  RoutedTokens routed;
  std::byte* y;                 ///< [tokens, n]
  const float* shared_weights;  ///< MoeArguments
  ExpertExchangePlan plan;
  ExpertSectionCut sections;
  MoePlaces places;
  MoeScratch scratch;
  std::byte* workspace[kMaxNodeRanks];  ///< by local rank
  std::uint32_t region;                 ///< region that holds the workspaces, for puts
  std::int32_t rank;
  std::int32_t first_seat;  ///< of this node: RankSeats
  std::int32_t hidden, n;
  std::int32_t pairs1, pairs2;  ///< pairs of columns of tiles, of both products
  std::int32_t shared_pairs1;   ///< likewise of the shared expert's first product
  std::int32_t lead;            ///< ExpertTasks
  /// Steps along k of its probable first tile whose weights a CTA brings into the L2 while tokens travel.
  std::int32_t foreseen_steps;
  std::int32_t dispatch_ctas;
  bool weights_on_input;      ///< MoeShape
  std::int32_t summing_ctas;  ///< the first of them, which sum when they have pushed; the others compute
  std::int32_t sum_parts;     ///< that an own token is cut into, for warps to sum
};

/// The workspace of a rank of this node.
MK_HOST_DEVICE inline std::byte* moe_memory(const MoeParameters& p, std::int32_t rank) {
  return p.workspace[p.plan.seats.seat(rank) - p.first_seat];
}
/// A word or words of it.
MK_HOST_DEVICE inline std::uint64_t* moe_words(const MoeParameters& p, std::int32_t rank, std::uint64_t at) {
  return reinterpret_cast<std::uint64_t*>(moe_memory(p, rank) + at);
}

/// Where the counts of a rank lie in the workspaces of its node.
MK_HOST_DEVICE inline std::uint64_t moe_counts_at(const MoeParameters& p, std::uint64_t epoch,
                                                  std::int32_t rank) {
  return p.places.counts[epoch & 1] + static_cast<std::uint64_t>(rank) * p.places.counts_bytes;
}

/// The table of a launch, in scratch memory.
MK_HOST_DEVICE inline ExpertTable moe_table(const MoeParameters& p) {
  return {p.plan.owners, p.plan.cut, p.scratch.rows, p.scratch.rows_before, p.scratch.blocks_before};
}
/// Once the table is built: some of it is read here.
MK_HOST_DEVICE inline ExpertTasks moe_expert_tasks(const MoeParameters& p) {
  const MoeScratch& scratch = p.scratch;
  const OwnedExperts owned = moe_table(p).of_rank(p.rank);
  const ExpertSections sections{scratch.part_sections[p.sections.parts(owned.experts)],
                                scratch.section_blocks, scratch.section_first, scratch.section_experts};
  return {owned, sections, p.pairs1, p.pairs2, p.lead, scratch.followers};
}
MK_HOST_DEVICE inline SharedExpertTiles moe_shared_tiles(const MoeParameters& p) {
  return {p.plan.shared_blocks(p.routed.tokens), p.shared_pairs1, p.pairs2};
}
MK_HOST_DEVICE inline LayerTasks moe_tasks(const MoeParameters& p) {
  return {moe_shared_tiles(p), moe_expert_tasks(p)};
}

/// Shared memory of a dispatching CTA of `warps` warps, in 32-bit words: by warp its rows of each expert and
/// its tokens by last local expert, and by node turn those that cross; where the steps of pushing and the
/// kinds of tokens begin, and one word.
MK_HOST_DEVICE constexpr std::int32_t moe_routing_words(std::int32_t warps, std::int32_t experts,
                                                        std::int32_t kinds, std::int32_t steps,
                                                        std::int32_t others) {
  return warps * (experts + (1 + 2 * others) * kinds) + experts + (1 + 2 * others) * (kinds + 1) + steps + 1 +
         1;
}

/// Of which a dispatching CTA has at most so many bytes.
inline constexpr std::size_t kMoeMostRoutingBytes = 224 << 10;

/// Bytes of MoeScratch.
std::uint64_t moe_scratch_bytes(const MoePlan& plan);
/// All that is the same in every launch, but for the maps, `lead`, `sum_parts` above 1, `region`, and seats
/// in memory of the device. `workspace`: of the ranks of this node; `scratch`: as many zeroed bytes.
MoeParameters moe_parameters(const MoePlan& plan, std::uint32_t rank, std::span<std::byte* const> workspace,
                             void* scratch);

}  // namespace mkernel::kernels
