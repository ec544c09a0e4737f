// AG+GEMM on the host: rows pushed into the slabs of the node's ranks, signals, products of what has arrived.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/lent_workspace.h"
#include "kernels/cuda/gemm/sm90_maps.h"
#include "kernels/ops/ag_gemm/plan.h"
#include "kernels/ops/ag_gemm/roles.cuh"
#include "kernels/plan/cuts.h"
#include "tests/support/on_host/cuda_names.h"
#include "tests/support/on_host/sm90.h"
#include "tests/support/random_tensor.h"
#include "tests/support/require.h"
#include "tests/unit/kernels/roles/host_fabric.h"
#include "tests/unit/kernels/roles/paced_check.h"
#include "tests/unit/kernels/roles/play_launch.h"
#include "tests/unit/kernels/roles/played_tiles.h"
#include "tests/unit/kernels/roles/product_check.h"

namespace mkernel::test {
namespace {

using namespace mkernel::kernels;
using Elements = std::vector<std::uint16_t>;

class GatherRanks {
 public:
  GatherRanks(const GemmShape& shape, const Topology& topology, const AgGemmOptions& options)
      : shape_(shape), topology_(topology), fabric_(topology.world(), 1) {
    for (std::uint32_t r = 0; r < topology.world(); ++r) {
      ranks_.push_back(std::make_unique<Rank>(
          Rank{require(AgGemmPlan::make(shape, topology, r, kH200.with_sms(10), options))}));
      Rank& rank = *ranks_.back();
      half_bytes_ = lent_half_bytes(lent_workspace_bytes(rank.plan.gather.data_bytes()));
      rank.words.resize(rank.plan.gather.word_bytes() / 8 + 1);
      rank.lent.resize(lent_workspace_bytes(half_bytes_) / 128 + 1);
    }
    for (auto& rank : ranks_) describe(*rank);
  }

  const AgGemmPlan& plan() const { return ranks_[0]->plan; }

  /// One launch of every rank with new operands.
  void check(std::uint64_t seed) {
    launch(seed);
    for (const auto& rank : ranks_) {
      CHECK(rank->control.failed == 0);
      rank->links.check(sent_bytes(*rank));
      for (int i = 0; i < products_of(shape_); ++i) verify(*rank, i);
    }
  }
  /// Of a rank alone.
  void two_at_a_time(std::uint64_t seed) {
    const std::uint64_t before = ranks_[0]->control.epoch;
    ranks_[0]->p.endpoint.deadline_ns = kHostTwoLaunchesNs;
    launch(seed, 2);
    check_two_at_a_time(ranks_[0]->control, before, ranks_[0]->p.endpoint.lent);
  }

 private:
  void launch(std::uint64_t seed, int at_a_time = 1) {
    HostGrid grid;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      Rank& rank = *ranks_[r];
      const std::int64_t rows = rank.plan.gather.rows_of(static_cast<std::int32_t>(r));
      rank.a = random_tensor(std::max<std::int64_t>(1, rows) * shape_.k, shape_.dtype, seed * 100 + 10 * r);
      for (int i = 0; i < products_of(shape_); ++i) {
        const std::int64_t n = columns_of(shape_, i);
        rank.b[i] =
            random_tensor(shape_.k * n, shape_.dtype, seed * 100 + 10 * r + static_cast<std::size_t>(i) + 1);
        rank.c[i].assign(static_cast<std::size_t>(shape_.m * n + 8), kPoison);
      }
      describe_operands(rank, rows);
      rank.links.begin();
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

  struct alignas(128) Line {
    std::byte bytes[128];
  };
  struct Rank {
    AgGemmPlan plan;
    std::vector<std::uint64_t> words{};
    std::vector<Line> lent{};
    std::vector<TensorMap> slabs{};
    LaunchControl control{};
    AgGemmParameters p{};
    PlayedLinks links{};
    Elements a{}, b[1 + kMostMoreB]{}, c[1 + kMostMoreB]{};

    std::byte* lent_memory() { return reinterpret_cast<std::byte*>(lent.data()); }
  };

  /// As CudaAgGemm does it.
  void describe(Rank& rank) {
    const PushGatherPlan& gather = rank.plan.gather;
    AgGemmParameters& p = rank.p;
    for (const std::uint64_t launch : {0, 1}) {
      const std::byte* half = rank.lent_memory() + lent_half_at(launch, half_bytes_);
      for (std::int32_t slab = 0; slab < gather.slabs(); ++slab) {
        for (std::int32_t part = 0; part < gather.row.parts; ++part) {
          rank.slabs.push_back(host_tensor_map(
              sm90_a_view(rank.plan.a_box_rows(), shape_.dtype, half + gather.part_offset(slab, part),
                          std::max<std::int64_t>(1, gather.slab_rows(slab)), gather.row.bytes(part) / 2)));
        }
      }
    }
    p.slabs = rank.slabs.data();
    p.links = rank.links.open(rank.plan.machine);
    const auto me = static_cast<std::uint32_t>(rank.plan.steps.rank), node = topology_.node_of(me);
    for (std::uint32_t local = 0; local < topology_.ranks_per_node(); ++local) {
      Rank& there = *ranks_[topology_.rank_at(node, local)];
      p.words[local] = reinterpret_cast<std::byte*>(there.words.data());
      p.lent[local] = there.lent_memory();
    }
    p.half_bytes = half_bytes_;
    p.region = HostFabric::kRegion;
    p.local_rank = static_cast<std::int32_t>(topology_.local_of(me));
    for (std::uint32_t step = 1; step < topology_.nodes(); ++step)
      p.rail[p.rails++] =
          static_cast<std::int32_t>(topology_.rail_peer(me, (node + step) % topology_.nodes()));
    p.gather = gather;
    p.steps = rank.plan.steps;
    p.assignment = rank.plan.assignment;
    p.columns = rank.plan.columns;
    p.read_in_place = gather.shared ? -1 : rank.plan.steps.rank;
    p.k_blocks = static_cast<std::int32_t>(ceil_div(shape_.k, std::int64_t{kSm90TileK}));
    p.comm_ctas = rank.plan.comm_ctas;
    p.a_box_rows = rank.plan.a_box_rows();
    fabric_.open(p.endpoint, me, rank.control);
    p.endpoint.lent = reinterpret_cast<LentControl*>(rank.lent_memory());
  }

  void describe_operands(Rank& rank, std::int64_t rows) {
    AgGemmParameters& p = rank.p;
    p.rows = reinterpret_cast<const std::byte*>(rank.a.data());
    p.a = host_tensor_map(sm90_a_view(rank.plan.a_box_rows(), shape_.dtype, rank.a.data(),
                                      std::max<std::int64_t>(1, rows), shape_.k));
    for (int i = 0; i < products_of(shape_); ++i) {
      const std::int64_t n = columns_of(shape_, i);
      p.b[i] = host_tensor_map(sm90_b_view(shape_.dtype, shape_.b_layout, rank.b[i].data(), n, shape_.k));
      for (const int more : {0, 1}) {
        p.c[i][more] = host_tensor_map(
            sm90_c_view(shape_.dtype, rank.c[i].data(), rank.plan.gather.map_rows(more), n, shape_.m));
      }
    }
  }

  void add(HostGrid& grid, Rank& rank) {
    with_played_tile(rank.plan.tile, shape_, [&]<Sm90Tile kTile, DataType kInput, Layout kLayoutB>() {
      if constexpr (kTile == Sm90Tile::k128x256) {
        if (rank.plan.cluster == Sm90Cluster::kSideBySide)
          return add_kernel<AgGemmConfig<kTile, kInput, kLayoutB, Sm90Cluster::kSideBySide>>(grid, rank);
      }
      add_kernel<AgGemmConfig<kTile, kInput, kLayoutB>>(grid, rank);
    });
  }
  template <class Config>
  static void add_kernel(HostGrid& grid, Rank& rank) {
    const std::size_t bytes = std::max(sm90_shared_bytes<Config>(), sizeof(FanOutShared<FanOutPlan>));
    const std::int32_t ctas = rank.plan.comm_ctas + rank.plan.compute_ctas;
    for (std::int32_t cta = 0; cta < ctas; cta += Config::kCluster) {
      grid.add_cluster(static_cast<std::uint32_t>(cta), Config::kCluster, static_cast<std::uint32_t>(ctas),
                       Config::kThreads, bytes, [&rank] {
                         const HostThread& self = host_thread();
                         ag_gemm<Config>(rank.p, self.cluster_shared[self.cluster_rank]);
                       });
    }
  }

  /// To others of the node: every row once to each.
  static std::int64_t sent_bytes(const Rank& rank) {
    const PushGatherPlan& gather = rank.plan.gather;
    return gather.rows_of(rank.plan.steps.rank) * gather.row.row_bytes * rank.plan.steps.near;
  }

  void verify(const Rank& rank, int product) const {
    GemmShape shape = shape_;
    shape.n = columns_of(shape_, product);
    Elements gathered;
    for (const auto& source : ranks_) {
      const std::int64_t rows = source->plan.gather.rows_of(source->plan.steps.rank);
      gathered.insert(gathered.end(), source->a.begin(), source->a.begin() + rows * shape.k);
    }
    const Elements& c = rank.c[product];
    const std::size_t wrong = wrong_elements(shape, gathered, rank.b[product], c);
    CHECK_MESSAGE(wrong == 0, "rank ", rank.plan.steps.rank, ", product ", product, ": ", wrong,
                  " elements wrong");
    for (std::int64_t at = shape.m * shape.n; at < std::ssize(c); ++at)
      CHECK(c[static_cast<std::size_t>(at)] == kPoison);
  }

  const GemmShape shape_;
  const Topology topology_;
  HostFabric fabric_;
  std::uint64_t half_bytes_ = 0;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

/// Two launches, so that both halves of the lent workspaces are used. `shared`: whether sources share tiles.
void check_launches(const GemmShape& shape, const Topology& topology, const AgGemmOptions& options,
                    std::int32_t parts = 1, bool shared = false) {
  const std::string what = std::to_string(topology.nodes()) + " nodes of " +
                           std::to_string(topology.ranks_per_node()) +
                           " ranks, m = " + std::to_string(shape.m) + ", tile " +
                           std::to_string(options.tile->rows) + "x" + std::to_string(options.tile->columns);
  CAPTURE(what);
  GatherRanks world(shape, topology, options);
  CHECK(world.plan().gather.row.parts == parts);
  REQUIRE(world.plan().gather.shared == shared);
  for (std::uint64_t launch = 0; launch < 2; ++launch) world.check(launch);
}
void check_launches(const GemmShape& shape, std::uint32_t ranks, const AgGemmOptions& options,
                    std::int32_t parts = 1, bool shared = false) {
  check_launches(shape, Topology(1, ranks), options, parts, shared);
}

TEST_CASE("ag_gemm: of two launches at a time one fails and says so") {
  GatherRanks rank({600, 136, 72}, Topology(1, 1),
                   {.tile = Sm90Tile::k128x64, .comm_ctas = 2, .tail_tiles = 0, .late_tiles = 0});
  rank.check(1);
  rank.two_at_a_time(2);
}

TEST_CASE("ag_gemm: links that are modelled carry every row once to each neighbour") {
  check_launches(
      {600, 136, 72}, 3,
      {.tile = Sm90Tile::k128x64, .comm_ctas = 2, .tail_tiles = 0, .late_tiles = 0, .link_gbytes = 0.02});
}

TEST_CASE("ag_gemm: ranks with many rows, with few, with none") {
  for (const Sm90Tile tile : kSm90Tiles) {
    for (const std::int64_t m : {1, 600}) {
      check_launches({m, 136, 72}, 2, {.tile = tile, .comm_ctas = 2, .tail_tiles = 0, .late_tiles = 0});
    }
  }
  check_launches({70, 72, 72, DataType::kF16, Layout::kColumnMajor}, 1,
                 {.tile = Sm90Tile::k128x128, .comm_ctas = 2, .tail_tiles = 0, .late_tiles = 0});
  check_launches({514, 136, 72, DataType::kF16, Layout::kColumnMajor}, 4,
                 {.tile = Sm90Tile::k128x64, .comm_ctas = 2, .tail_tiles = 0, .late_tiles = 0});
}

TEST_CASE("ag_gemm of few rows: tiles hold rows of several sources, b is read once") {
  const auto check = [](const GemmShape& shape, const Topology& topology, const TileSize& tile,
                        std::int32_t parts = 1, std::int32_t late = 0) {
    const std::int32_t tail = has_tail(tile) ? 1 : 0, comm = late > 0 ? 4 : 2;
    check_launches(shape, topology, {.tile = tile, .comm_ctas = comm, .tail_tiles = tail, .late_tiles = late},
                   parts, true);
  };
  const GemmShape column_major{61, 136, 72, DataType::kF16, Layout::kColumnMajor};
  // Fewer rows than ranks, rows that do not divide, a source in both tiles of a cluster, several blocks.
  for (const TileSize tile : {kSm90Tiles[0], kSm90Tiles[1], kSm90Tiles[2], kSm90Tiles[3]})
    check({61, 264, 72}, Topology(1, 2), tile);
  check({2, 72, 72}, Topology(1, 3), Sm90Tile::k128x64);
  check({130, 72, 136, DataType::kF16, Layout::kColumnMajor}, Topology(1, 4), Sm90Tile::k128x64);
  check({400, 136, 72}, Topology(1, 4), Sm90Tile::k128x128);
  check(column_major, Topology(1, 8), Sm90Tile::k128x64);
  // Rows in parts; tiles for those who have pushed.
  check({40, 264, 8200}, Topology(1, 2), Sm90Tile::k128x64, 2, 3);
  check({200, 264, 72}, Topology(1, 2), Sm90Tile::k128x128, 1, 1);
  // Several nodes, with ranks that have no rows.
  check({61, 136, 72}, Topology(2, 2), Sm90Tile::k128x64);
  check(column_major, Topology(2, 1), Sm90Tile::k128x128);
  check({3, 72, 8200}, Topology(2, 2), Sm90Tile::k128x64, 2);
  check({150, 72, 72}, Topology(3, 1), Sm90Tile::k128x64);
}

TEST_CASE("ag_gemm in clusters side by side") {
  const auto check = [](const GemmShape& shape, std::uint32_t ranks, bool shared, std::int32_t tail = 0,
                        std::int32_t late = 0) {
    check_launches(shape, ranks,
                   {.tile = Sm90Tile::k128x256,
                    .cluster = Sm90Cluster::kSideBySide,
                    .comm_ctas = late > 0 ? 4 : 2,
                    .tail_tiles = tail,
                    .late_tiles = late},
                   1, shared);
  };
  // A second CTA without columns, with some; few rows, which the two load half each; more than one block.
  check({61, 136, 72}, 2, true);
  check({128, 520, 200}, 4, true, 1);
  check({600, 264, 72}, 2, false, 0, 1);
  GemmShape two{17, 264, 72};
  two.more_n[0] = 520;
  check(two, 4, true);
}

TEST_CASE("ag_gemm: boxes of a hold the rows that there are") {
  int turn = 0;
  for (const std::int64_t m : {16, 63, 64, 65, 127, 128}) {
    const Sm90Tile tile = kSm90Tiles[turn++ % 4];
    const bool f16 = m <= 64 && (tile == Sm90Tile::k128x64 || tile == Sm90Tile::k128x128);
    const GemmShape shape =
        f16 ? GemmShape{m, 136, 200, DataType::kF16, Layout::kColumnMajor} : GemmShape{m, 136, 200};
    check_launches(shape, 4,
                   {.tile = tile, .comm_ctas = 2, .tail_tiles = has_tail(tile) ? 1 : 0, .late_tiles = 0}, 1,
                   true);
  }
  // Sources with few rows and tiles of their own.
  check_launches({1, 136, 200}, 2,
                 {.tile = Sm90Tile::k128x128, .comm_ctas = 2, .tail_tiles = 0, .late_tiles = 0});
}

TEST_CASE("ag_gemm over several nodes: rows are put to rail peers, which push them on") {
  check_launches({600, 136, 72}, Topology(2, 2),
                 {.tile = Sm90Tile::k128x64, .comm_ctas = 2, .tail_tiles = 0, .late_tiles = 0});
}

TEST_CASE("ag_gemm: parts along k, narrow tiles at the end, tiles for those who have pushed") {
  check_launches({600, 136, 776}, 2,
                 {.tile = Sm90Tile::k128x128, .comm_ctas = 4, .tail_tiles = 2, .late_tiles = 2}, 2);
  check_launches({600, 264, 264}, 2,
                 {.tile = Sm90Tile::k128x256, .comm_ctas = 4, .tail_tiles = 1, .late_tiles = 1});
}

TEST_CASE("ag_gemm: the gathered rows times several b") {
  GemmShape three{600, 136, 72}, four{130, 8, 72, DataType::kF16, Layout::kColumnMajor};
  three.more_n[0] = 64;
  three.more_n[1] = 200;
  std::fill(std::begin(four.more_n), std::end(four.more_n), 72);
  for (const GemmShape& shape : {three, four}) {
    // 130 rows of two sources share a cluster's tiles, and make as many tiles of 128 as each for itself.
    check_launches(shape, 2, {.tile = Sm90Tile::k128x128, .comm_ctas = 4, .tail_tiles = 2, .late_tiles = 1},
                   1, shape.m == 130);
    check_launches(shape, 2, {.tile = Sm90Tile::k128x64, .comm_ctas = 2, .tail_tiles = 0, .late_tiles = 0});
  }
}

}  // namespace
}  // namespace mkernel::test
