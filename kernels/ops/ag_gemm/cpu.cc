// AG+GEMM on the cpu executor: threads play the CTAs of roles.cuh, on the same plan. See README.md.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/base/signal.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/launch/gemm_operation.h"
#include "kernels/cpu/memory/convert.h"
#include "kernels/cpu/memory/floats.h"
#include "kernels/cpu/sync/launch.h"
#include "kernels/ops/ag_gemm/plan.h"
#include "kernels/ops/make.h"
#include "kernels/plan/push_gather_plan.h"

namespace mkernel::kernels {
namespace {

/// Room for the tiles of one thread in fp32: a block of rows of a, and a tile of c.
struct Room {
  Room(const AgGemmPlan& plan, const GemmShape& shape)
      : rows(make_floats(plan.tile.block_rows() * shape.k)),
        product(make_floats(std::int64_t{plan.tile.block_rows()} * plan.tile.columns)) {}
  Floats rows, product;
};

/// One of the products of the gathered rows.
struct Product {
  CpuGemm& gemm;
  OperandB b;
  std::uint16_t* c;
  std::int64_t n;
};

/// The roles of one launch, and what they share.
class AgGemmLaunch {
 public:
  AgGemmLaunch(const AgGemmPlan& plan, const GemmShape& shape, const Topology& topology,
               const SymmetricView& workspace, const SymmetricView& lent, Endpoint& endpoint,
               std::deque<Product>& products, const GemmArguments& arguments, const Launch& launch)
      : plan_(plan),
        shape_(shape),
        topology_(topology),
        workspace_(workspace),
        lent_(lent),
        endpoint_(endpoint),
        products_(products),
        arguments_(arguments),
        launch_(launch),
        me_(plan.steps.rank),
        whole_(plan.assignment.tiles(0, 1)),
        narrow_(plan.assignment.tail_tiles(0, 1, tail_parts(plan.tile))) {
    const auto rank = static_cast<std::uint32_t>(me_);
    for (std::uint32_t step = 1; step < topology.nodes(); ++step)
      rail_peers_.push_back(topology.rail_peer(rank, (topology.node_of(rank) + step) % topology.nodes()));
  }

  /// compute: tiles of c in the order of the plan, and the narrow ones after them.
  Status compute(int thread);

  /// intra_comm, then inter_recv: pushes share `share` of every chunk to the ranks of the node: own rows,
  /// then those that rail peers put here. Then computes, if its cluster is one of the assignment's late ones.
  Status push(std::int32_t share);

  /// inter_send: own chunks to all rail peers, as they become whole in the own slab. Ends when their sources
  /// may be overwritten.
  Status send();

  /// When all roles are through: the rows of all sources, which are here then, to where the caller wants
  /// them.
  void copy_gathered() const;

 private:
  const PushGatherPlan& gather() const { return plan_.gather; }
  std::uint64_t& ready(std::byte* workspace, std::int32_t source, std::int32_t chunk) const {
    return reinterpret_cast<std::uint64_t*>(workspace + gather().ready_offset(source))[chunk];
  }
  /// The data of a rank's lent workspace that this launch uses.
  std::byte* half(std::byte* lent) const { return lent + launch_.half_at; }
  /// Until a part of the rows [begin, end) of a row block's slab is here.
  Status wait_rows(const ArrivalSteps::Place& block, Range rows, std::int32_t part) const;
  Status wait_chunk(std::int32_t source, std::int32_t chunk, const char* role) const;
  Status wait_empty() const;
  void push_share(std::int32_t source, std::int32_t chunk, std::int32_t share) const;
  /// A tile of the assignment: the whole one, or the narrow one of `width` columns that is its part
  /// `at.part`.
  Status tile(const TileAssignment::Place& at, std::int64_t width, const Room& room) const;
  Status late_tiles(std::int32_t cluster);

  const AgGemmPlan& plan_;
  const GemmShape& shape_;
  const Topology& topology_;
  const SymmetricView& workspace_;
  const SymmetricView& lent_;
  Endpoint& endpoint_;
  std::deque<Product>& products_;
  const GemmArguments& arguments_;
  const Launch& launch_;
  const std::int32_t me_;
  std::vector<std::uint32_t> rail_peers_;  ///< from the next node on
  WorkCounter whole_, narrow_;
};

/// Over several nodes chunks come through others, whose own waits end before this one.
Status AgGemmLaunch::wait_chunk(std::int32_t source, std::int32_t chunk, const char* role) const {
  const auto from = static_cast<std::uint32_t>(source), to = static_cast<std::uint32_t>(me_);
  return wait_at_least(ready(workspace_.mine, source, chunk), gather().count(launch_.epoch),
                       {.role = role, .tag = "a chunk", .peer = source, .via = topology_.via(from, to)},
                       launch_.at_stage(plan_.rails() > 0 ? 1 : 0));
}

/// A launch ends when at least one chunk of every source was seen. Tiles wait for those with rows.
Status AgGemmLaunch::wait_empty() const {
  for (std::int32_t source = 0; source < gather().world; ++source) {
    if (source == me_ || gather().rows_of(source) > 0) continue;
    MK_RETURN_IF_ERROR(wait_chunk(source, 0, "intra_comm"));
  }
  return {};
}

void AgGemmLaunch::push_share(std::int32_t source, std::int32_t chunk, std::int32_t share) const {
  const std::int32_t part = chunk % gather().row.parts;
  const std::int64_t part_bytes = gather().row.bytes(part);
  const auto rows =
      static_cast<std::int32_t>(static_cast<std::int64_t>(gather().chunk_bytes(source, chunk)) / part_bytes);
  const std::int32_t begin = rows * share / gather().shares, end = rows * (share + 1) / gather().shares;
  const std::uint64_t at = gather().chunk_offset(source, chunk);
  // Own rows are whole, those of others lie here in parts.
  const std::int64_t first = chunk / gather().row.parts * std::int64_t{gather().block_rows};
  const auto* a = static_cast<const std::byte*>(arguments_.a);
  const auto row_at = [&](std::int64_t row) {
    return source == me_ ? a + (first + row) * gather().row.row_bytes + gather().row.begin(part)
                         : half(lent_.mine) + at + row * part_bytes;
  };
  const std::uint32_t ranks = topology_.ranks_per_node();
  const std::uint32_t local = topology_.local_of(static_cast<std::uint32_t>(me_));
  // Everybody begins with the next: no rank is written by all.
  for (std::uint32_t turn = 1; turn <= ranks; ++turn) {
    const std::uint32_t target = (local + turn) % ranks;
    const bool here = turn == ranks;
    // The product reads own rows from a itself, unless they lie with those of others.
    if (here && source == me_ && plan_.stores() == plan_.steps.near) break;
    for (std::int64_t row = begin; row < end && !(here && source != me_); ++row)
      std::memcpy(half(lent_.node[target]) + at + row * part_bytes, row_at(row),
                  static_cast<std::size_t>(part_bytes));
    signal_add(ready(workspace_.node[target], source, chunk), 1);
  }
}

Status AgGemmLaunch::push(std::int32_t share) {
  const std::int32_t rails = plan_.rails();
  const bool alone = plan_.stores() == 0;
  const StreamTurns order{alone ? 0 : gather().chunks(me_), rails, gather().max_chunks()};
  for (std::int32_t i = 0; i < order.turns(); ++i) {
    const auto [stream, chunk] = order.turn(i);
    // The node before this one begins with it.
    const std::int32_t source =
        stream == 0 ? me_ : static_cast<std::int32_t>(rail_peers_[static_cast<std::size_t>(rails - stream)]);
    const std::int32_t chunks = gather().chunks(source);
    if (chunk >= chunks) continue;
    if (stream > 0) {
      const std::uint64_t before = launch_.epoch * static_cast<std::uint64_t>(chunks);
      MK_RETURN_IF_ERROR(endpoint_.wait_arrival(static_cast<std::uint32_t>(source), 0,
                                                before + static_cast<std::uint64_t>(chunk) + 1, "inter_recv",
                                                launch_.scope));
    }
    push_share(source, chunk, share);
  }
  if (share == 0) MK_RETURN_IF_ERROR(wait_empty());
  const std::int32_t cluster = plan_.tile.cluster;
  if (plan_.assignment.late == 0 || share < cluster || share % cluster != 0) return {};
  return late_tiles((share - plan_.comm_ctas) / cluster);
}

Status AgGemmLaunch::send() {
  const std::int32_t chunks = gather().chunks(me_);
  for (std::int32_t chunk = 0; chunk < chunks; ++chunk) {
    MK_RETURN_IF_ERROR(wait_chunk(me_, chunk, "inter_send"));
    const Place place{lent_.region, launch_.half_at + gather().chunk_offset(me_, chunk)};
    for (const std::uint32_t peer : rail_peers_) {
      MK_RETURN_IF_ERROR(endpoint_.put(peer, 0, place, place, gather().chunk_bytes(me_, chunk), "inter_send",
                                       launch_.scope));
    }
  }
  const std::uint64_t puts = (launch_.epoch + 1) * static_cast<std::uint64_t>(chunks);
  for (const std::uint32_t peer : rail_peers_)
    MK_RETURN_IF_ERROR(endpoint_.wait_completed(peer, 0, puts, "inter_send", launch_.scope));
  return {};
}

void AgGemmLaunch::copy_gathered() const {
  auto* out = static_cast<std::byte*>(arguments_.gathered);
  const RowParts& row = gather().row;
  for (std::int32_t source = 0; source < gather().world; ++source) {
    const auto rows = static_cast<std::size_t>(gather().rows_of(source));
    if (source == me_ && rows > 0)
      std::memcpy(out, arguments_.a, rows * static_cast<std::size_t>(row.row_bytes));
    for (std::int32_t part = 0; source != me_ && part < row.parts; ++part) {
      const auto bytes = static_cast<std::size_t>(row.bytes(part));
      const std::byte* from = half(lent_.mine) + gather().row_offset(source, 0, part);
      for (std::size_t r = 0; r < rows; ++r, from += bytes)
        std::memcpy(out + static_cast<std::int64_t>(r) * row.row_bytes + row.begin(part), from, bytes);
    }
    out += static_cast<std::int64_t>(rows) * row.row_bytes;
  }
}

Status AgGemmLaunch::wait_rows(const ArrivalSteps::Place& block, Range rows, std::int32_t part) const {
  if (!gather().shared) return wait_chunk(block.source, block.block * gather().row.parts + part, "compute");
  Status waited;
  gather().each_source(rows.begin, rows.end, [&](std::int32_t source) {
    waited = wait_chunk(source, part, "compute");
    return waited.ok();
  });
  return waited;
}

Status AgGemmLaunch::tile(const TileAssignment::Place& at, std::int64_t width, const Room& room) const {
  float* rows = room.rows.get();
  float* product = room.product.get();
  const auto [index, column] =
      plan_.columns.place(at.tile.column * plan_.tile.columns + at.part * static_cast<std::int32_t>(width));
  const Product& of = products_[static_cast<std::size_t>(index)];
  const ArrivalSteps::Place block = plan_.row_block(at.tile.row);
  const std::int32_t slab = block.source;
  const bool in_place = !gather().shared && slab == me_;
  const RowParts& row = gather().row;
  const std::int64_t first = block.block * std::int64_t{gather().block_rows};
  const std::int64_t count = std::min<std::int64_t>(gather().block_rows, gather().slab_rows(slab) - first);
  const Range columns{column, std::min(of.n, column + width)};
  if (count <= 0 || columns.size() <= 0) return {};
  if (in_place) {
    widen(shape_.dtype, static_cast<const std::uint16_t*>(arguments_.a) + first * shape_.k, rows,
          static_cast<std::size_t>(count * shape_.k));
  }
  for (std::int32_t part = 0; !in_place && part < row.parts; ++part) {
    MK_RETURN_IF_ERROR(wait_rows(block, {first, first + count}, part));
    const std::byte* from = half(lent_.mine) + gather().part_offset(slab, part) + first * row.bytes(part);
    for (std::int64_t r = 0; r < count; ++r, from += row.bytes(part)) {
      widen(shape_.dtype, from, rows + r * shape_.k + row.begin(part) / 2,
            static_cast<std::size_t>(row.bytes(part) / 2));
    }
  }
  of.gemm.product(rows, count, columns, product, columns.size());
  std::uint16_t* c = of.c + (gather().slab_row(slab) + first) * of.n;
  for (std::int64_t r = 0; r < count; ++r) {
    narrow(shape_.dtype, product + r * columns.size(), c + r * of.n + columns.begin,
           static_cast<std::size_t>(columns.size()));
  }
  return {};
}

Status AgGemmLaunch::compute(int thread) {
  for (Product& product : products_) MK_RETURN_IF_ERROR(product.b.widen_part(launch_, thread));
  const Room room(plan_, shape_);
  // All threads together are the assignment's one cluster: each takes the next tile when it has time.
  for (std::int32_t i = whole_.next(); i < whole_.all(); i = whole_.next())
    MK_RETURN_IF_ERROR(tile(plan_.assignment.place(i, 0, 1), plan_.tile.columns, room));
  const std::int32_t parts = tail_parts(plan_.tile);
  for (std::int32_t i = narrow_.next(); i < narrow_.all(); i = narrow_.next())
    MK_RETURN_IF_ERROR(tile(plan_.assignment.tail_place(i, 0, 1, parts), kSm90TailColumns, room));
  return {};
}

Status AgGemmLaunch::late_tiles(std::int32_t cluster) {
  for (const Product& product : products_) MK_RETURN_IF_ERROR(product.b.wait(launch_));
  const Room room(plan_, shape_);
  for (std::int32_t i = 0; i < plan_.assignment.tiles(cluster, 1); ++i)
    MK_RETURN_IF_ERROR(tile(plan_.assignment.place(i, cluster, 1), plan_.tile.columns, room));
  return {};
}

class CpuAgGemm final : public CpuGemmOperation {
 public:
  CpuAgGemm(const AgGemmPlan& plan, const GemmShape& shape, Topology topology)
      : CpuGemmOperation(OpKind::kAgGemm, shape, std::move(topology)), plan_(plan) {}

  Requirements requirements() const override {
    return {plan_.gather.word_bytes(), plan_.gather.data_bytes(), plan_.lanes()};
  }

 private:
  void attach() override {}

  void launch(const GemmArguments& arguments, Launch& launch) override {
    std::deque<Product> products;  // a deque: their signals stay where they are
    for (int i = 0; i < products_of(shape()); ++i) {
      products.push_back({gemm(i), OperandB(gemm(i), b_of(arguments, i)),
                          static_cast<std::uint16_t*>(c_of(arguments, i)), columns_of(shape(), i)});
    }
    AgGemmLaunch roles(plan_, shape(), topology(), workspace(), lent(), endpoint(), products, arguments,
                       launch);
    for (std::int32_t share = 0; share < plan_.comm_ctas; ++share)
      launch.roles.start("intra_comm", [&roles, share] { return roles.push(share); });
    if (plan_.rails() > 0) launch.roles.start("inter_send", [&roles] { return roles.send(); });
    for (int thread = 0; thread < launch.compute_threads; ++thread)
      launch.roles.start("compute", [&roles, thread] { return roles.compute(thread); });
    if (launch.roles.join().ok() && arguments.gathered != nullptr) roles.copy_gathered();
  }

  const AgGemmPlan plan_;
};

}  // namespace

Result<std::unique_ptr<GemmOperation>> make_cpu_ag_gemm(const GemmShape& shape, Topology topology,
                                                        std::uint32_t rank, AgGemmOptions options) {
  if (!options.tile) {
    options.tile = host_tile(shape, topology);
    options.late_tiles = options.tail_tiles = 0;
    options.comm_ctas = 1;
  }
  auto plan = AgGemmPlan::make(shape, topology, rank, kHostMachine, options);
  if (!plan.ok()) return plan.status();
  return std::unique_ptr<GemmOperation>(std::make_unique<CpuAgGemm>(*plan, shape, std::move(topology)));
}

}  // namespace mkernel::kernels
