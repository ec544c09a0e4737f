#include "kernels/ops/moe_dispatch_gemm/plan.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <utility>

#include "kernels/plan/cuts.h"
#include "proto/abi/version.h"

namespace mkernel::kernels {
namespace {

constexpr std::int64_t kMost = (std::int64_t{1} << 31) - 1;   // of a number with 32 bits, and of a BLAS call
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 48;  // offsets in a work slot have 48 bits
constexpr std::int64_t kUnitRows = 64;                        // as low as the lowest tile of a GPU
constexpr std::int64_t kMostBlockRows = 256, kFewestColumns = 64, kMostColumns = 512;
constexpr std::int64_t kMostPieces = 256;  // a launch puts them all, whatever its routing
constexpr std::int32_t kDispatchCtas = 2;
constexpr std::int32_t kLead = 16;

Status refuse(const std::string& field, std::int64_t value, const std::string& limit) {
  return {StatusCode::kInvalidArgument,
          "moe: " + field + " = " + std::to_string(value) + ", but it must be " + limit};
}

Status check_range(const char* field, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value >= least && value <= most) return {};
  return refuse(field, value, std::to_string(least) + ".." + std::to_string(most));
}

std::int64_t power_of_two(std::int64_t at_least) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(at_least)));
}

/// Bytes of a row of 16-bit elements: whole 16 bytes.
std::uint64_t bytes_of(std::int64_t elements) {
  return static_cast<std::uint64_t>(elements * 2 + 15) / 16 * 16;
}

Status check_shape(const MoeShape& shape, const Topology& topology) {
  const std::int64_t world = topology.world();
  MK_RETURN_IF_ERROR(check_range("max_tokens", shape.max_tokens, 1, kMostRows));
  // counts[world][experts] has indices of 32 bits.
  MK_RETURN_IF_ERROR(
      check_range("experts", shape.experts, 1, std::min(std::int64_t{1} << 20, kMost / world)));
  MK_RETURN_IF_ERROR(check_range("topk", shape.topk, 1, shape.experts));
  // What crosses for one token is at most one put.
  const std::int64_t row = abi::kMaxPutBytes - static_cast<std::int64_t>(sizeof(CrossingHead)) -
                           shape.topk * static_cast<std::int64_t>(sizeof(CrossingEntry));
  MK_RETURN_IF_ERROR(check_range("hidden", shape.hidden, 1, row / 2));
  MK_RETURN_IF_ERROR(check_range("n", shape.n, 1, abi::kMaxPutBytes / 2));
  MK_RETURN_IF_ERROR(check_range("intermediate", shape.intermediate, 0, kMost / 2));
  MK_RETURN_IF_ERROR(check_range("shared_intermediate", shape.shared_intermediate, 0, kMost / 2));
  if (shape.shared_intermediate > 0 && shape.intermediate == 0)
    return refuse("shared_intermediate", shape.shared_intermediate, "0 with intermediate = 0");
  MK_RETURN_IF_ERROR(check_range("capacity", shape.capacity, 0, kMost));
  if (shape.dtype != DataType::kBf16 && shape.dtype != DataType::kF16)
    return refuse("dtype", static_cast<std::int64_t>(shape.dtype), "bf16 (1) or f16 (2)");
  if (shape.w_layout != Layout::kRowMajor && shape.w_layout != Layout::kColumnMajor)
    return refuse("w_layout", static_cast<std::int64_t>(shape.w_layout), "row-major (0) or column-major (1)");
  return {};
}

/// Seats by rank, then ranks by seat; null when every rank is its own seat.
std::shared_ptr<const std::vector<std::int32_t>> seats_of(const Topology& topology) {
  const std::uint32_t world = topology.world(), ranks = topology.ranks_per_node();
  std::vector<std::int32_t> seats(std::size_t{2} * world);
  bool own = true;
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    const std::uint32_t seat = topology.node_of(rank) * ranks + topology.local_of(rank);
    seats[rank] = static_cast<std::int32_t>(seat);
    seats[world + seat] = static_cast<std::int32_t>(rank);
    own = own && seat == rank;
  }
  return own ? nullptr : std::make_shared<const std::vector<std::int32_t>>(std::move(seats));
}

Status check_options(const MoeOptions& options, const MoeShape& shape) {
  MK_RETURN_IF_ERROR(check_range("unit_rows", options.unit_rows, 0, kMostBlockRows));
  MK_RETURN_IF_ERROR(check_range("block_rows", options.block_rows, 0, kMostBlockRows));
  MK_RETURN_IF_ERROR(check_range("tile_columns", options.tile_columns, 0, kMost / 2));
  MK_RETURN_IF_ERROR(check_range("gated_columns", options.gated_columns, 0, kMost / 2));
  MK_RETURN_IF_ERROR(check_range("dispatch_ctas", options.dispatch_ctas, 0, 1024));
  MK_RETURN_IF_ERROR(check_range("pieces", options.pieces, 0, std::min(kMostPieces, shape.max_tokens)));
  if (options.section_blocks < 0 || options.section_blocks % 2 != 0)
    return refuse("section_blocks", options.section_blocks, "even, 0 or more");
  const std::int64_t unit = options.unit_rows > 0 ? options.unit_rows : kUnitRows;
  if (options.block_rows % unit == 0) return {};
  return refuse("block_rows", options.block_rows, "a multiple of " + std::to_string(unit));
}

ExpertBlockRows cut_of(const MoeShape& shape, const Topology& topology, const MoeOptions& options) {
  const std::int64_t unit = options.unit_rows > 0 ? options.unit_rows : kUnitRows;
  const std::int64_t rows = std::min(kMostBlockRows, ceil_div(shape.max_tokens, shape.experts) * shape.topk *
                                                         std::int64_t{topology.world()});
  const std::int64_t block =
      options.block_rows > 0 ? options.block_rows : ceil_div(power_of_two(rows), unit) * unit;
  return {static_cast<std::int32_t>(block), static_cast<std::int32_t>(unit)};
}

/// Before the exchange exists: what it numbers with 32 bits. Of the rows of all experts with their padding
/// follow pool rows, blocks and entries of finished[].
Status check_numbers(const MoeShape& shape, const Topology& topology, const ExpertBlockRows& cut) {
  const std::int64_t padding = shape.experts * (cut.unit - 1) + cut.block;
  const std::int64_t shared = shape.shared_intermediate > 0 ? 1 : 0;
  const std::int64_t most = (kMost - padding) / (shape.topk * std::int64_t{topology.world()} + shared);
  if (shape.max_tokens > most) {
    return refuse("max_tokens", shape.max_tokens,
                  "1.." + std::to_string(most) + " with topk = " + std::to_string(shape.topk) + " on " +
                      std::to_string(topology.world()) + " ranks: rows of all experts have 32-bit numbers");
  }
  const std::int64_t crossing = kMost / (2 * std::int64_t{topology.nodes()});
  if (shape.max_tokens > crossing) {
    return refuse("max_tokens", shape.max_tokens,
                  "1.." + std::to_string(crossing) + " on " + std::to_string(topology.nodes()) +
                      " nodes: tokens that cross have 32-bit numbers");
  }
  return {};
}

/// Padded rows of a pool: in the worst case all ranks send all their rows to one owner.
std::int32_t capacity_of(const MoeShape& shape, const ExpertExchangePlan& exchange) {
  const std::int64_t most_experts = exchange.owners.max_local(), unit = exchange.cut.unit;
  const std::int64_t rows =
      exchange.owners.world * shape.max_tokens * std::min<std::int64_t>(shape.topk, most_experts);
  const std::int64_t worst = (rows + std::min(most_experts, rows) * (unit - 1)) / unit;
  const std::int64_t wanted = shape.capacity > 0 ? ceil_div(shape.capacity, unit) : worst;
  return static_cast<std::int32_t>(std::min(wanted, worst) * unit);
}

/// About kChunkBytes each when all tokens cross, and each one put.
std::int32_t pieces_of(const ExpertExchangePlan& exchange, const MoeOptions& options) {
  const auto bytes = static_cast<std::int64_t>(std::max(exchange.crossing_bytes(), exchange.finished_bytes));
  const std::int64_t tokens = exchange.max_tokens;
  const std::int64_t fewest = ceil_div(tokens, abi::kMaxPutBytes / bytes);
  const std::int64_t wanted = options.pieces > 0
                                  ? options.pieces
                                  : std::min({ceil_div(tokens * bytes, kChunkBytes), kMostPieces, tokens});
  return static_cast<std::int32_t>(std::max(fewest, wanted));
}

Status check_exchange(const MoeShape& shape, const ExpertExchangePlan& exchange) {
  const std::int64_t columns = std::int64_t{exchange.columns1} + exchange.columns2;
  const std::int64_t shared_columns = std::int64_t{exchange.shared_columns1} + exchange.columns2;
  const std::int32_t blocks = exchange.max_blocks(), shared = exchange.shared_blocks(exchange.max_tokens);
  if (columns * blocks + shared_columns * shared > kMost) {
    return refuse(
        "max_tokens", shape.max_tokens,
        "so small that " + std::to_string(columns) + " columns of tiles of each of " +
            std::to_string(blocks) + " blocks" +
            (shared > 0 ? ", and " + std::to_string(shared_columns) + " of " + std::to_string(shared) : "") +
            " have 32-bit numbers");
  }
  // Of less than 2^31 rows of at most 2^31 bytes: the sum itself fits 64 bits.
  if (exchange.bytes() >= kMostBytes) {
    return refuse("max_tokens", shape.max_tokens, "so small that the workspace stays below 2^48 bytes");
  }
  return {};
}

}  // namespace

Result<MoePlan> MoePlan::make(const MoeShape& shape, const Topology& topology, const MoeOptions& options) {
  MK_RETURN_IF_ERROR(check_shape(shape, topology));
  MK_RETURN_IF_ERROR(check_options(options, shape));
  const ExpertBlockRows cut = cut_of(shape, topology, options);
  MK_RETURN_IF_ERROR(check_numbers(shape, topology, cut));
  MoePlan plan{.shape = shape, .topology = topology, .lead = kLead};
  const std::int64_t widest = std::max({shape.n, shape.intermediate, shape.shared_intermediate});
  plan.tile_columns =
      options.tile_columns > 0
          ? options.tile_columns
          : static_cast<std::int32_t>(std::clamp(power_of_two(widest), kFewestColumns, kMostColumns));
  plan.gated_columns = options.gated_columns > 0 ? options.gated_columns : plan.tile_columns;
  plan.dispatch_ctas = options.dispatch_ctas > 0 ? options.dispatch_ctas : kDispatchCtas;

  ExpertExchangePlan& exchange = plan.exchange;
  exchange.owners = {static_cast<std::int32_t>(shape.experts), static_cast<std::int32_t>(topology.world())};
  exchange.ranks_per_node = static_cast<std::int32_t>(topology.ranks_per_node());
  plan.seats = seats_of(topology);
  if (plan.seats != nullptr) exchange.seats = {plan.seats->data(), plan.seats->data() + topology.world()};
  exchange.cut = cut;
  exchange.max_tokens = static_cast<std::int32_t>(shape.max_tokens);
  exchange.topk = static_cast<std::int32_t>(shape.topk);
  const auto last = static_cast<std::int32_t>(ceil_div(shape.n, plan.tile_columns));
  exchange.columns1 =
      plan.gated() ? static_cast<std::int32_t>(ceil_div(shape.intermediate, plan.gated_columns)) : last;
  exchange.columns2 = plan.gated() ? last : 0;
  exchange.shared_columns1 =
      static_cast<std::int32_t>(ceil_div(shape.shared_intermediate, plan.gated_columns));
  exchange.row_bytes = bytes_of(shape.hidden);
  exchange.hidden_bytes = bytes_of(shape.intermediate);
  exchange.shared_bytes = bytes_of(shape.shared_intermediate);
  exchange.finished_bytes = bytes_of(shape.n);
  exchange.capacity_rows = capacity_of(shape, exchange);
  plan.sections = {options.section_blocks > 0
                       ? options.section_blocks
                       : most_blocks_of_band(cut.block, std::max(shape.hidden, shape.intermediate)),
                   options.apart.value_or(exchange.others() > 0)};
  exchange.pieces = pieces_of(exchange, options);
  MK_RETURN_IF_ERROR(check_exchange(shape, exchange));
  return plan;
}

Status MoePlan::check(std::uint32_t rank, const MoeArguments& arguments) const {
  if (arguments.tokens < 0 || arguments.tokens > shape.max_tokens) {
    return {StatusCode::kInvalidArgument, "moe: tokens = " + std::to_string(arguments.tokens) +
                                              ", but it must be 0.." + std::to_string(shape.max_tokens)};
  }
  const bool tokens = arguments.tokens > 0;
  const bool any = experts(rank).size() > 0;
  const struct {
    const char* name;
    const void* data;
    bool needed;
  } operands[] = {{"x", arguments.x, tokens},
                  {"topk", arguments.topk, tokens},
                  {"weights", arguments.weights, tokens},
                  {"y", arguments.y, tokens},
                  {"w1", arguments.w1, any},
                  {"w2", arguments.w2, any && gated()},
                  {"shared_w1", arguments.shared_w1, shared()},
                  {"shared_w2", arguments.shared_w2, shared()}};
  for (const auto& [name, data, needed] : operands) {
    if (!needed || data != nullptr) continue;
    return {StatusCode::kInvalidArgument, std::string("moe: ") + name + " is null"};
  }
  for (const auto& [name, data] : {std::pair{"shared_w1", arguments.shared_w1},
                                   {"shared_w1_up", arguments.shared_w1_up},
                                   {"shared_w2", arguments.shared_w2},
                                   {"shared_weights", static_cast<const void*>(arguments.shared_weights)}}) {
    if (shared() || data == nullptr) continue;
    return {StatusCode::kInvalidArgument, std::string("moe: ") + name +
                                              " is given, but with shared_intermediate = 0 there is no "
                                              "shared expert"};
  }
  if (arguments.w1_up != nullptr && !gated()) {
    return {StatusCode::kInvalidArgument,
            "moe: w1_up is given, but with intermediate = 0 there is no second half of w1"};
  }
  return {};
}

std::string MoePlan::signature() const {
  return "moe max_tokens=" + std::to_string(shape.max_tokens) + " hidden=" + std::to_string(shape.hidden) +
         " n=" + std::to_string(shape.n) + " intermediate=" + std::to_string(shape.intermediate) +
         " experts=" + std::to_string(shape.experts) + " topk=" + std::to_string(shape.topk) +
         (shape.dtype == DataType::kBf16 ? " bf16" : " f16") +
         (shape.w_layout == Layout::kColumnMajor ? " column-major" : "") +
         (shape.capacity > 0 ? " capacity=" + std::to_string(shape.capacity) : "") +
         (shape.weights_on_input ? " weights on input" : "") +
         (shape.shared_intermediate > 0 ? " shared=" + std::to_string(shape.shared_intermediate) : "");
}

Requirements MoePlan::requirements() const {
  return {.workspace_bytes = exchange.bytes(), .lanes = topology.nodes() > 1 ? 2U : 0U};
}

Range MoePlan::columns(const ExpertTasks::Task& tile) const {
  const bool hidden = gated() && !tile.second;
  const std::int64_t of_tile = hidden ? gated_columns : tile_columns, begin = tile.column * of_tile;
  const std::int64_t of_hidden = tile.shared ? shape.shared_intermediate : shape.intermediate;
  return {begin, std::min(hidden ? of_hidden : shape.n, begin + of_tile)};
}

SharedExpertTiles MoePlan::shared_expert_tiles(std::int64_t tokens) const {
  return {exchange.shared_blocks(static_cast<std::int32_t>(tokens)), exchange.shared_columns1,
          exchange.columns2};
}

}  // namespace mkernel::kernels
