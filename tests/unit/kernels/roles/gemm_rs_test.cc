// GEMM+RS on the host: partial tiles into the slots of their owners, signals, sums.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/lent_workspace.h"
#include "kernels/cuda/gemm/sm90_maps.h"
#include "kernels/cuda/gemm/with_tile.h"
#include "kernels/ops/gemm_rs/roles.cuh"
#include "kernels/plan/cuts.h"
#include "kernels/plan/tile_reduce_plan.h"
#include "tests/support/on_host/cuda_names.h"
#include "tests/support/on_host/sm90.h"
#include "tests/support/random_tensor.h"
#include "tests/support/require.h"

namespace mkernel::test {
namespace {

using namespace mkernel::kernels;
using Elements = std::vector<std::uint16_t>;

/// Ranks of one node.
class ReduceRanks {
 public:
  ReduceRanks(const GemmShape& shape, std::uint32_t ranks, Sm90Tile tile) : shape_(shape), tile_(tile) {
    const Topology topology(1, ranks);
    for (std::uint32_t r = 0; r < ranks; ++r) {
      ranks_.push_back(std::make_unique<Rank>(Rank{require(TileReducePlan::make(
          OpKind::kGemmRs, shape, topology, r, kH200.with_sms(8), {.tile = tile, .reduce_ctas = 2}))}));
      const TileReducePlan& plan = ranks_.back()->plan;
      half_bytes_ = plan.data_bytes();
      ranks_.back()->words.resize(plan.word_bytes() / 8 + 1);
      ranks_.back()->lent.resize(lent_workspace_bytes(half_bytes_) / 128 + 1);
    }
    for (auto& rank : ranks_) describe(*rank);
  }

  void check(std::uint64_t seed) {
    HostGrid grid;
    const auto world = static_cast<std::int64_t>(ranks_.size());
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      Rank& rank = *ranks_[r];
      rank.a = random_tensor(shape_.m * shape_.k, shape_.dtype, seed * 100 + 2 * r);
      rank.b = random_tensor(shape_.k * shape_.n, shape_.dtype, seed * 100 + 2 * r + 1);
      rank.c.assign(static_cast<std::size_t>(rank.plan.reduce.rows_of(rank.plan.rank()) * shape_.n + 8),
                    kPoison);
      rank.p.a = host_tensor_map(sm90_a_view(tile_, shape_.dtype, rank.a.data(), shape_.m, shape_.k));
      rank.p.b =
          host_tensor_map(sm90_b_view(shape_.dtype, shape_.b_layout, rank.b.data(), shape_.n, shape_.k));
      rank.p.direct_c = host_tensor_map(sm90_c_view(shape_.dtype, rank.c.data(), shape_.m, shape_.n));
      rank.p.own_c = reinterpret_cast<std::byte*>(rank.c.data());
      add(grid, rank);
    }
    grid.add_service(host_copy_engine);
    grid.run();
    for (std::int64_t r = 0; r < world; ++r)
      verify(*ranks_[static_cast<std::size_t>(r)], block_range(shape_.m, world, r));
  }

 private:
  struct alignas(128) Line {
    std::byte bytes[128];
  };
  struct Rank {
    TileReducePlan plan;
    std::vector<std::uint64_t> words{};
    std::vector<Line> lent{};
    std::vector<OwnerOnDevice> owners{};
    std::vector<TensorMap> slots{};
    std::uint64_t claimed = 0;
    LaunchControl control{};
    TileReduceParameters p{};
    Elements a{}, b{}, c{};

    std::byte* lent_memory() { return reinterpret_cast<std::byte*>(lent.data()); }
  };

  /// As TileReduceOperation does it.
  void describe(Rank& rank) {
    const TileReducePlan& plan = rank.plan;
    const std::int32_t turns = plan.tiles.turns(), local = plan.rank();
    for (std::int32_t turn = 0; turn < turns; ++turn) {
      const std::int32_t owner = plan.owners[static_cast<std::size_t>(turn)];
      Rank& there = *ranks_[static_cast<std::size_t>(owner)];
      rank.owners.push_back({there.words.data() + plan.reduce.ready_offset(0, local) / 8, owner,
                             static_cast<std::int32_t>(plan.reduce.first_row(owner)),
                             static_cast<std::int32_t>(plan.reduce.rows_of(owner))});
      rank.p.first_owners[turn] = rank.owners.back();
    }
    for (std::int32_t i = 0; i < 2 * turns; ++i) {
      const std::int32_t owner = plan.owners[static_cast<std::size_t>(i % turns)];
      const std::byte* slot = ranks_[static_cast<std::size_t>(owner)]->lent_memory() +
                              lent_half_at(static_cast<std::uint64_t>(i / turns), half_bytes_) +
                              plan.reduce.slot_offset(0, local);
      rank.slots.push_back(host_tensor_map(
          sm90_c_view(shape_.dtype, slot, std::max<std::int64_t>(1, plan.reduce.rows_of(owner)), shape_.n)));
    }
    TileReduceParameters& p = rank.p;
    p.owners = rank.owners.data();
    for (std::int32_t source = 0; source < plan.reduce.sources; ++source) p.source_rank[source] = source;
    p.ready = rank.words.data() + plan.reduce.ready_offset(0, 0) / 8;
    p.ready_words = plan.reduce.ready_offset(0, 1) / 8;
    for (const std::uint64_t half : {0, 1})
      p.slots_here[half] =
          rank.lent_memory() + lent_half_at(half, half_bytes_) + plan.reduce.slot_offset(0, 0);
    p.half_bytes = half_bytes_;
    p.slot_bytes = plan.reduce.slot_bytes();
    p.columns = static_cast<std::int32_t>(plan.reduce.columns);
    p.wire.plan = plan.partials;
    p.slots = rank.slots.data();
    p.claimed = &rank.claimed;
    p.endpoint.rank = static_cast<std::uint32_t>(local);
    p.endpoint.world_size = static_cast<std::uint32_t>(ranks_.size());
    p.endpoint.control = &rank.control;
    p.endpoint.lent = reinterpret_cast<LentControl*>(rank.lent_memory());
    p.endpoint.deadline_ns = 20'000'000'000;
    p.tiles = plan.tiles;
    p.units = plan.units;
    p.k_blocks = static_cast<std::int32_t>(ceil_div(shape_.k, std::int64_t{kSm90TileK}));
    p.reduce_ctas = plan.reduce_ctas;
  }

  void add(HostGrid& grid, Rank& rank) {
    require_ok(with_tile(tile_, "gemm_rs", [&]<Sm90Tile kTile>() -> Status {
      with_types(shape_, [&]<DataType kInput, Layout kLayoutB>() {
        using Config = TileReduceConfig<kTile, kInput, kLayoutB>;
        const std::int32_t ctas = rank.plan.reduce_ctas + rank.plan.compute_ctas;
        for (std::int32_t cta = 0; cta < ctas; cta += Config::kCluster) {
          grid.add_cluster(static_cast<std::uint32_t>(cta), Config::kCluster,
                           static_cast<std::uint32_t>(ctas), Config::kThreads, sm90_shared_bytes<Config>(),
                           [&rank] {
                             const HostThread& self = host_thread();
                             tile_reduce<Config, GemmRsRoles>(rank.p, self.cluster_shared[self.cluster_rank]);
                           });
        }
      });
      return {};
    }));
  }

  void verify(const Rank& rank, Range rows) const {
    CHECK(rank.control.failed == 0);
    const auto value = [&](const Elements& from, std::int64_t at) {
      return value_of(shape_.dtype, from[static_cast<std::size_t>(at)]);
    };
    const double unit = shape_.dtype == DataType::kBf16 ? 0x1p-8 : 0x1p-11;
    std::size_t wrong = 0;
    for (std::int64_t row = rows.begin; row < rows.end; ++row) {
      for (std::int64_t column = 0; column < shape_.n; ++column) {
        double sum = 0, terms = 0, partials = 0;
        for (const auto& source : ranks_) {
          double product = 0;
          for (std::int64_t k = 0; k < shape_.k; ++k) {
            const std::int64_t at =
                shape_.b_layout == Layout::kRowMajor ? k * shape_.n + column : column * shape_.k + k;
            const double term = value(source->a, row * shape_.k + k) * value(source->b, at);
            product += term;
            terms += std::abs(term);
          }
          sum += product;
          partials += std::abs(product);
        }
        const double bound =
            unit * (std::abs(sum) + partials) + static_cast<double>(shape_.k) * 0x1p-22 * terms;
        if (!(std::abs(value(rank.c, (row - rows.begin) * shape_.n + column) - sum) <= bound)) ++wrong;
      }
    }
    CHECK_MESSAGE(wrong == 0, "rank ", rank.plan.rank(), ": ", wrong, " elements wrong");
    for (std::int64_t at = rows.size() * shape_.n; at < std::ssize(rank.c); ++at)
      CHECK(rank.c[static_cast<std::size_t>(at)] == kPoison);
  }

  const GemmShape shape_;
  const Sm90Tile tile_;
  std::uint64_t half_bytes_ = 0;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

TEST_CASE("gemm_rs: owners with few rows, with many, with none") {
  for (const Sm90Tile tile :
       {Sm90Tile::k128x64, Sm90Tile::k128x128, Sm90Tile::k128x256, Sm90Tile::k256x128}) {
    for (const std::int64_t m : {1, 64, 300}) {
      const std::string what = std::to_string(tile_rows(tile)) + "x" + std::to_string(tile_columns(tile)) +
                               ", m = " + std::to_string(m);
      CAPTURE(what);
      ReduceRanks world({m, 136, 72}, 2, tile);
      for (std::uint64_t launch = 0; launch < 2; ++launch) world.check(launch);
    }
  }
}

TEST_CASE("gemm_rs: a rank alone, four ranks") {
  ReduceRanks alone({70, 72, 72, DataType::kF16, Layout::kColumnMajor}, 1, Sm90Tile::k128x128);
  alone.check(1);
  for (const std::int64_t m : {3, 200}) {
    ReduceRanks four({m, 136, 72, DataType::kBf16, Layout::kColumnMajor}, 4, Sm90Tile::k128x64);
    for (std::uint64_t launch = 0; launch < 2; ++launch) four.check(launch);
  }
}

}  // namespace
}  // namespace mkernel::test
