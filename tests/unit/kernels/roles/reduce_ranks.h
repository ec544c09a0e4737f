// Ranks of GEMM+RS or GEMM+AR whose whole kernels are played on the host: products, partial tiles into the
// slots of their owners, signals, sums, what crosses nodes, finished sums.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tests/support/on_host/cuda_names.h"

// Device code, behind CUDA's names.
#include "kernels/base/lent_workspace.h"
#include "kernels/cuda/gemm/sm90_maps.h"
#include "kernels/cuda/reduce/slot_views.h"
#include "kernels/ops/gemm_ar/plan.h"
#include "kernels/ops/gemm_ar/roles.cuh"
#include "kernels/ops/gemm_rs/roles.cuh"
#include "kernels/plan/cuts.h"
#include "tests/support/on_host/sm90.h"
#include "tests/support/random_tensor.h"
#include "tests/support/require.h"
#include "tests/unit/kernels/roles/host_fabric.h"
#include "tests/unit/kernels/roles/paced_check.h"
#include "tests/unit/kernels/roles/play_launch.h"
#include "tests/unit/kernels/roles/played_tiles.h"
#include "tests/unit/kernels/roles/product_check.h"

namespace mkernel::test {

using namespace mkernel::kernels;

/// What of a plan's marks is played; the rest has words, as where marks would take too much memory or the
/// product several waves.
enum class Marks { kNone, kSums, kAll };

/// `kKind`: of the operation, whose kernels alone are compiled.
template <OpKind kKind>
class ReduceRanks {
 public:
  ReduceRanks(const GemmShape& shape, const Topology& topology, TileReduceOptions options,
              Marks marks = Marks::kAll)
      : shape_(shape), topology_(topology), fabric_(topology.world(), kLanes), marks_(marks) {
    options.reduce_ctas = 2;
    for (std::uint32_t r = 0; r < topology.world(); ++r) {
      ranks_.push_back(std::make_unique<Rank>(Rank{plan_of(r, options)}));
      Rank& rank = *ranks_.back();
      half_bytes_ = lent_half_bytes(lent_workspace_bytes(rank.plan.data_bytes()));
      rank.words.resize(rank.plan.word_bytes() / 8 + 1);
      rank.lent.resize(lent_workspace_bytes(half_bytes_) / sizeof(Line) + 1);
      rank.marked.resize((marked_end(rank.plan) - marked_begin(rank.plan)) / sizeof(Line) + 1, kMarks);
      rank.counts.resize(2 + static_cast<std::size_t>(rank.plan.product.most_chunks()));
      rank.staged.resize(
          static_cast<std::size_t>(rank.plan.product.units.others * rank.plan.product.most_chunks()));
    }
    for (auto& rank : ranks_) describe(*rank);
  }

  const TileReducePlan& plan() const { return ranks_[0]->plan.product; }
  bool has_marks() const { return plan().reduce.marked || marks_sums(ranks_[0]->plan); }

  using Elements = std::vector<std::uint16_t>;
  /// Called with a rank and its a, after the operands are drawn.
  using Change = std::function<void(std::size_t rank, Elements& a)>;

  /// A launch of every rank with new operands; every element of c.
  void check(std::uint64_t seed, const Change& change = nullptr) {
    for (const auto& rank : ranks_) rank->links.begin();
    launch(seed, change, -1);
    for (const auto& rank : ranks_) rank->links.check(sent_bytes(*rank));
    const std::vector<ProductSum> sums = expected();
    for (const auto& rank : ranks_) verify(*rank, sums);
    // The ranks of an all-reduce hold the same bits.
    for (const auto& rank : ranks_) CHECK((kKind == OpKind::kGemmRs || rank->c == ranks_[0]->c));
  }

  /// A launch in which `missing` does not take part: all others give up and name it. The last rank.
  void check_missing(std::uint64_t seed, std::int32_t missing) {
    // Long against a launch that is played: some warps wait while others still multiply.
    for (auto& rank : ranks_) rank->p.endpoint.deadline_ns = 5000 * kHostRoundNs;
    launch(seed, nullptr, missing);
    for (const auto& rank : ranks_) {
      const bool takes_part = rank->plan.product.rank() != missing;
      CHECK((rank->control.failed != 0) == takes_part);
      CHECK((rank->control.stopped != 0) == takes_part);
      if (!takes_part) continue;
      CHECK(rank->control.site.peer == missing);
      CHECK(rank->control.site.tag == DeviceTag::kTileReady);
      CHECK(rank->control.expected == rank->control.seen + 1);
    }
  }

  /// Two launches of a rank alone at the same time.
  void check_two(std::uint64_t seed) {
    const std::uint64_t before = ranks_[0]->control.epoch;
    ranks_[0]->p.endpoint.deadline_ns = kHostTwoLaunchesNs;
    launch(seed, nullptr, -1, 2);
    check_two_at_a_time(ranks_[0]->control, before, ranks_[0]->p.endpoint.lent);
  }

 private:
  void launch(std::uint64_t seed, const Change& change, std::int32_t missing, int at_a_time = 1) {
    HostGrid grid;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      Rank& rank = *ranks_[r];
      rank.a = random_tensor(shape_.m * shape_.k, shape_.dtype, seed * 100 + 2 * r);
      rank.b = random_tensor(shape_.k * shape_.n, shape_.dtype, seed * 100 + 2 * r + 1);
      if (change) change(r, rank.a);
      rank.c.assign(static_cast<std::size_t>(rows(rank).size() * shape_.n + 8), kPoison);
      rank.p.a = host_tensor_map(
          sm90_a_view(rank.plan.product.a_box_rows(), shape_.dtype, rank.a.data(), shape_.m, shape_.k));
      rank.p.b =
          host_tensor_map(sm90_b_view(shape_.dtype, shape_.b_layout, rank.b.data(), shape_.n, shape_.k));
      rank.p.direct_c = host_tensor_map(sm90_c_view(shape_.dtype, rank.c.data(), shape_.m, shape_.n));
      rank.p.c = reinterpret_cast<std::byte*>(rank.c.data());
      rank.p.own_c = rank.p.c;
      if (kKind == OpKind::kGemmAr)
        rank.p.own_c += rank.plan.product.reduce.first_row(rank.plan.product.rank()) * shape_.n * 2;
      if (static_cast<std::int32_t>(r) == missing) continue;
      for (int i = 0; i < at_a_time; ++i) add(grid, rank);
    }
    grid.add_service(host_copy_engine);
    if (topology_.nodes() > 1) {
      grid.add_service([this] {
        fabric_.deliver([this](std::uint32_t rank) { return ranks_[rank]->lent_memory(); },
                        lent_workspace_bytes(half_bytes_), true);
      });
    }
    grid.run();
  }

  static constexpr std::uint32_t kLanes = 2;
  struct alignas(128) Line {
    std::uint16_t elements[64];
    bool operator==(const Line&) const = default;
  };
  static constexpr Line kMarks = [] {
    Line line{};
    for (std::uint16_t& element : line.elements) element = PushReducePlan::kMark;
    return line;
  }();
  struct Rank {
    GemmArPlan plan;  ///< of GEMM+RS only the product
    std::vector<std::uint64_t> words{};
    std::vector<Line> lent{};
    std::vector<Line> marked{};  ///< the marked part of the workspace: sums, and then slots
    std::vector<OwnerOnDevice> owners{};
    std::vector<TensorMap> slots{};
    std::uint64_t claimed = 0;
    std::vector<std::uint64_t> counts{}, staged{};
    LaunchControl control{};
    GemmArParameters p{};
    PlayedLinks links{};
    Elements a{}, b{}, c{};

    std::byte* lent_memory() { return reinterpret_cast<std::byte*>(lent.data()); }
  };
  /// To others of the node: partial tiles of all their rows, and of an all-reduce the own sums to each.
  std::int64_t sent_bytes(const Rank& rank) const {
    const PushReducePlan& reduce = rank.plan.product.reduce;
    const std::int64_t own = reduce.rows_of(rank.plan.product.rank());
    const std::int64_t sums = kKind == OpKind::kGemmAr ? own * (reduce.sources - 1) : 0;
    return (shape_.m - own + sums) * shape_.n * 2;
  }

  GemmArPlan plan_of(std::uint32_t rank, const TileReduceOptions& options) const {
    const Machine machine = kH200.with_sms(8);
    GemmArPlan plan;
    if (kKind == OpKind::kGemmAr) plan = require(GemmArPlan::make(shape_, topology_, rank, machine, options));
    if (kKind == OpKind::kGemmRs) {
      plan.product = require(TileReducePlan::make(kKind, shape_, topology_, rank, machine, options));
      plan.sums = {.words_begin = plan.product.word_bytes(), .begin = plan.product.data_bytes()};
    }
    plan.product.reduce.marked &= marks_ == Marks::kAll;
    return plan;
  }
  bool marks_sums(const GemmArPlan& plan) const {
    return marks_ != Marks::kNone && kKind == OpKind::kGemmAr && plan.product.marks_sums();
  }
  /// Of a rank's own workspace what is marked.
  std::uint64_t marked_begin(const GemmArPlan& plan) const {
    return marks_sums(plan) ? plan.sums.marked_offset(0) : plan.product.reduce.marked_begin;
  }
  std::uint64_t marked_end(const GemmArPlan& plan) const {
    if (plan.product.reduce.marked) return plan.product.reduce.marked_end();
    return marks_sums(plan) ? plan.sums.marked_end() : plan.product.reduce.marked_begin;
  }
  std::byte* marked_at(Rank& rank, std::uint64_t offset) const {
    return reinterpret_cast<std::byte*>(rank.marked.data()) + offset - marked_begin(rank.plan);
  }
  Rank& rank_at(std::uint32_t node, std::uint32_t local) { return *ranks_[topology_.rank_at(node, local)]; }
  Range rows(const Rank& rank) const {
    if (kKind == OpKind::kGemmAr) return {0, shape_.m};
    return block_range(shape_.m, topology_.world(), static_cast<std::uint32_t>(rank.plan.product.rank()));
  }

  std::byte* slot(Rank& reducer, std::uint64_t half, std::int32_t node_turn, std::int32_t source) const {
    const PushReducePlan& reduce = reducer.plan.product.reduce;
    if (reduce.marked) return marked_at(reducer, reduce.marked_offset(half, source));
    return reducer.lent_memory() + lent_half_at(half, half_bytes_) + reduce.slot_offset(node_turn, source);
  }

  /// As TileReduceOperation does it.
  void describe(Rank& rank) {
    const TileReducePlan& plan = rank.plan.product;
    const auto me = static_cast<std::uint32_t>(plan.rank());
    const auto local = static_cast<std::int32_t>(topology_.local_of(me));
    const std::int32_t turns = plan.tiles.turns();
    const auto reducer = [&](std::int32_t turn) -> Rank& {
      const auto owner = static_cast<std::uint32_t>(plan.owners[static_cast<std::size_t>(turn)]);
      return rank_at(topology_.node_of(me), topology_.local_of(owner));
    };
    TileReduceParameters& p = rank.p;
    for (std::int32_t turn = 0; turn < turns; ++turn) {
      const std::int32_t owner = plan.owners[static_cast<std::size_t>(turn)];
      const std::uint64_t ready = plan.reduce.ready_offset(turn / plan.reduce.sources, local);
      rank.owners.push_back({reducer(turn).words.data() + ready / 8, owner,
                             static_cast<std::int32_t>(plan.reduce.first_row(owner)),
                             static_cast<std::int32_t>(plan.reduce.rows_of(owner))});
      p.first_owners[turn] = rank.owners.back();
    }
    for (const MatrixView& view : slot_views(plan, shape_, [&](std::uint64_t half, std::int32_t turn) {
           return slot(reducer(turn), half, turn / plan.reduce.sources, local);
         })) {
      rank.slots.push_back(host_tensor_map(view));
    }
    fabric_.open(p.endpoint, me, rank.control);
    p.endpoint.lent = reinterpret_cast<LentControl*>(rank.lent_memory());
    p.owners = rank.owners.data();
    p.links = rank.links.open(plan.machine);
    for (std::int32_t source = 0; source < plan.reduce.sources; ++source)
      p.source_rank[source] = static_cast<std::int32_t>(topology_.rank_at(topology_.node_of(me), source));
    p.ready = rank.words.data() + plan.reduce.ready_offset(0, 0) / 8;
    p.ready_words = plan.reduce.ready_offset(0, 1) / 8;
    for (const std::uint64_t half : {0, 1}) p.slots_here[half] = slot(rank, half, 0, 0);
    p.half_bytes = half_bytes_;
    p.slot_bytes = plan.reduce.slot_bytes();
    p.columns = static_cast<std::int32_t>(plan.reduce.columns);
    p.slots = rank.slots.data();
    p.claimed = &rank.claimed;
    p.tiles = plan.tiles;
    p.shared = plan.shared;
    p.marked = plan.reduce.marked;
    p.rows = static_cast<std::int32_t>(shape_.m);
    p.a_box_rows = plan.a_box_rows();
    p.units = plan.units;
    p.k_blocks = static_cast<std::int32_t>(ceil_div(shape_.k, std::int64_t{kSm90TileK}));
    p.reduce_ctas = plan.reduce_ctas;
    describe_wire(rank, p.wire);
    if (kKind == OpKind::kGemmAr) describe_sums(rank);
  }

  void describe_wire(Rank& rank, PartialsWire& wire) {
    const TileReducePlan& plan = rank.plan.product;
    wire.plan = plan.partials;
    wire.lent = rank.lent_memory();
    wire.region = HostFabric::kRegion;
    wire.staged = rank.staged.data();
    wire.chunks = plan.most_chunks();
    for (std::int32_t turn = plan.reduce.sources - 1; turn < plan.tiles.turns(); turn += plan.reduce.sources)
      wire.packed_units[turn / plan.reduce.sources] =
          plan.packed_units(plan.owners[static_cast<std::size_t>(turn)]);
  }

  /// As CudaGemmAr does it.
  void describe_sums(Rank& rank) {
    const TileReducePlan& plan = rank.plan.product;
    const PushSumsPlan& sums = rank.plan.sums;
    const auto me = static_cast<std::uint32_t>(plan.rank());
    const bool marked = marks_sums(rank.plan);
    const auto sums_of = [&](Rank& there, std::int32_t owner) {
      return marked ? marked_at(there, sums.marked_offset(owner))
                    : there.lent_memory() + sums.sums_offset(owner);
    };
    GemmArParameters& p = rank.p;
    for (std::int32_t near = 0; near < plan.reduce.sources - 1; ++near) {
      const auto owner = plan.owners[static_cast<std::size_t>(plan.tiles.far_turns + near)];
      Rank& there = *ranks_[static_cast<std::size_t>(owner)];
      p.sums_there[near] = sums_of(there, plan.rank());
      p.summed_there[near] = there.words.data() + sums.summed_offset(plan.rank()) / 8;
    }
    p.sums_at = sums.sums_offset(0);
    p.sums_here = sums_of(*ranks_[me], 0);
    p.marks_sums = marked;
    p.summed = rank.words.data() + sums.summed_offset(0) / 8;
    p.sums_owner_bytes = sums.sums_offset(1) - sums.sums_offset(0);
    p.copied = rank.counts.data();
    p.forwarded = p.copied + 1;
    p.finished = p.copied + 2;
  }

  template <class Config>
  void play(const Rank& rank) const {
    const HostThread& self = host_thread();
    std::byte* memory = self.cluster_shared[self.cluster_rank];
    if constexpr (kKind == OpKind::kGemmAr) {
      if (!rank.plan.product.reduce.to_all) return tile_reduce<Config, GemmArRoles>(rank.p, memory);
    }
    tile_reduce<Config, GemmRsRoles>(rank.p, memory);
  }

  template <class Config>
  void add_kernel(HostGrid& grid, Rank& rank) {
    const TileReducePlan& plan = rank.plan.product;
    const std::int32_t ctas = plan.reduce_ctas + plan.compute_ctas;
    for (std::int32_t cta = 0; cta < ctas; cta += Config::kCluster) {
      grid.add_cluster(static_cast<std::uint32_t>(cta), Config::kCluster, static_cast<std::uint32_t>(ctas),
                       Config::kThreads, sm90_shared_bytes<Config>(), [this, &rank] { play<Config>(rank); });
    }
  }

  void add(HostGrid& grid, Rank& rank) {
    const TileReducePlan& plan = rank.plan.product;
    with_played_tile(plan.tile, shape_, [&]<Sm90Tile kTile, DataType kInput, Layout kLayoutB>() {
      if constexpr (is_played(kTile)) {
        if (plan.shared.any()) {
          // No kernel shares tiles of 256 rows.
          if constexpr (kTile != Sm90Tile::k256x128)
            add_kernel<SharedTilesConfig<kTile, kInput, kLayoutB>>(grid, rank);
        } else {
          add_kernel<TileReduceConfig<kTile, kInput, kLayoutB>>(grid, rank);
        }
      }
    });
  }

  double value(const Elements& from, std::int64_t at) const {
    return value_of(shape_.dtype, from[static_cast<std::size_t>(at)]);
  }

  std::vector<ProductSum> expected() const {
    std::vector<ProductSum> sums(static_cast<std::size_t>(shape_.m * shape_.n));
    for (const auto& source : ranks_) add_product(shape_, source->a, source->b, sums);
    return sums;
  }

  /// Bound: the READMEs of the operations.
  void verify(const Rank& rank, const std::vector<ProductSum>& sums) const {
    CHECK(rank.control.failed == 0);
    const Range mine = rows(rank);
    const double unit = shape_.dtype == DataType::kBf16 ? 0x1p-8 : 0x1p-11;
    const double roundings = topology_.nodes() > 1 ? 2 : 1;
    std::size_t wrong = 0;
    for (std::int64_t at = mine.begin * shape_.n; at < mine.end * shape_.n; ++at) {
      const ProductSum& sum = sums[static_cast<std::size_t>(at)];
      const double is = value(rank.c, at - mine.begin * shape_.n);
      if (!std::isfinite(sum.sum)) {
        if (std::isnan(sum.sum) ? !std::isnan(is) : is != sum.sum) ++wrong;
        continue;
      }
      const double bound = unit * (std::abs(sum.sum) + roundings * 1.01 * sum.partials) +
                           static_cast<double>(shape_.k) * 0x1p-22 * sum.terms;
      if (!(std::abs(is - sum.sum) <= bound)) ++wrong;
    }
    CHECK_MESSAGE(wrong == 0, "rank ", rank.plan.product.rank(), ": ", wrong, " elements wrong");
    for (std::int64_t at = mine.size() * shape_.n; at < std::ssize(rank.c); ++at)
      CHECK(rank.c[static_cast<std::size_t>(at)] == kPoison);
    const PushReducePlan& reduce = rank.plan.product.reduce;
    if (reduce.rows_of(rank.plan.product.rank()) == 0) check_untouched(rank, reduce);
    // The next launch but one finds marks wherever it looks, and so far nobody has written elsewhere.
    CHECK(
        std::all_of(rank.marked.begin(), rank.marked.end(), [](const Line& line) { return line == kMarks; }));
  }

  /// The slots of an owner without rows.
  void check_untouched(const Rank& rank, const PushReducePlan& reduce) const {
    const auto* lent = reinterpret_cast<const std::byte*>(rank.lent.data());
    const std::int32_t own = reduce.nodes() - 1;
    for (const std::uint64_t half : {0, 1}) {
      const std::byte* slots = lent + lent_half_at(half, half_bytes_) + reduce.slot_offset(own, 0);
      const std::byte* end = slots + static_cast<std::uint64_t>(reduce.sources) * reduce.slot_bytes();
      CHECK(std::all_of(slots, end, [](std::byte byte) { return byte == std::byte{0}; }));
    }
  }

  const GemmShape shape_;
  const Topology topology_;
  HostFabric fabric_;
  const Marks marks_;
  std::uint64_t half_bytes_ = 0;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

/// Two launches, so that both halves of the lent workspaces and their counts are used; of marked data more,
/// which use them again.
template <OpKind kKind>
void check_reduce(const GemmShape& shape, const Topology& topology, const TileReduceOptions& options,
                  bool shared, Marks marks = Marks::kAll) {
  if (options.tile && !is_played(*options.tile)) return;
  ReduceRanks<kKind> world(shape, topology, options, marks);
  REQUIRE(world.plan().shared.any() == shared);
  const std::uint64_t launches = world.has_marks() ? 4 : 2;
  for (std::uint64_t launch = 0; launch < launches; ++launch) world.check(launch);
}

}  // namespace mkernel::test
