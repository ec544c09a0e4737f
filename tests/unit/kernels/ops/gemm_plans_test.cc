// The plans of AG+GEMM, GEMM+RS and GEMM+AR: every element once, counts that agree, no overlap in memory, no
// deadlock, on every world.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ops/ag_gemm/plan.h"
#include "kernels/ops/gemm_ar/plan.h"
#include "kernels/ops/gemm_rs/plan.h"
#include "tests/unit/kernels/plan/simulation.h"

using namespace mkernel;
using namespace mkernel::kernels;

namespace {

const Topology kWorlds[] = {{1, 1}, {1, 4}, {2, 2}, {2, 4}, {3, 2}, {4, 8}};
const GemmShape kShapes[] = {{1, 1, 1}, {3, 5, 7}, {61, 37, 29}, {640, 48, 16}};
const ReduceOptions kSmall{Partial::kIoType, 8, 16, 300, 2};
const AgGemmOptions kSmallAg{8, 16, 300};

void for_all(const std::function<void(const Topology&, const GemmShape&)>& check) {
  for (const Topology& topology : kWorlds) {
    for (const GemmShape& shape : kShapes) {
      CAPTURE(topology.nodes());
      CAPTURE(topology.ranks_per_node());
      CAPTURE(shape.m);
      check(topology, shape);
    }
  }
}

/// Counts how often each element of an [m, n] matrix is covered.
class Cover {
 public:
  explicit Cover(const GemmShape& shape) : n_(shape.n), seen_(static_cast<std::size_t>(shape.m * shape.n)) {}
  void add(std::int64_t first_row, const Tile& tile) {
    for (std::int64_t row = tile.rows.begin; row < tile.rows.end; ++row) {
      for (std::int64_t column = tile.columns.begin; column < tile.columns.end; ++column) {
        ++seen_[static_cast<std::size_t>((first_row + row) * n_ + column)];
      }
    }
  }
  bool each(int times) const {
    return std::all_of(seen_.begin(), seen_.end(), [=](int count) { return count == times; });
  }

 private:
  std::int64_t n_;
  std::vector<int> seen_;
};

/// Intervals [begin, end) of bytes that must not overlap.
class Layout1D {
 public:
  void add(std::uint64_t begin, std::uint64_t bytes) {
    if (bytes > 0) parts_.emplace_back(begin, begin + bytes);
  }
  bool disjoint_within(std::uint64_t end) {
    std::sort(parts_.begin(), parts_.end());
    for (std::size_t i = 1; i < parts_.size(); ++i) {
      if (parts_[i].first < parts_[i - 1].second) return false;
    }
    return parts_.empty() || parts_.back().second <= end;
  }

 private:
  std::vector<std::pair<std::uint64_t, std::uint64_t>> parts_;
};

void lay_out(Layout1D& layout, const GatherPlan& plan) {
  for (std::uint32_t source = 0; source < plan.sources(); ++source) {
    layout.add(plan.ready_offset(source), sizeof(SignalWord));
    for (std::uint64_t i = 0; i < plan.chunks(source); ++i) {
      for (const std::uint64_t epoch : {4, 5}) {
        layout.add(plan.slab_offset(epoch) + plan.chunk(source, i).offset, plan.chunk(source, i).bytes);
      }
    }
  }
}

void lay_out(Layout1D& layout, const ReducePlan& plan, const Topology& topology, std::uint32_t rank) {
  for (std::uint32_t local = 0; local < topology.ranks_per_node(); ++local) {
    layout.add(plan.consumed_offset(local), sizeof(SignalWord));
    for (std::int64_t slot = 0; slot < plan.window(); ++slot) {
      const auto position = static_cast<std::uint64_t>(slot);
      layout.add(plan.slot_ready_offset(local, position), sizeof(SignalWord));
      layout.add(plan.slot_offset(local, position), static_cast<std::uint64_t>(plan.tile_elements()) * 4);
    }
  }
  const auto tiles = [&](std::uint64_t begin, std::uint32_t owner) {
    for (std::int64_t tile = 0; tile < plan.grid(owner).tiles(); ++tile) {
      const auto elements = static_cast<std::uint64_t>(plan.grid(owner).tile(tile).elements());
      layout.add(begin + plan.tile_offset({owner, tile}), elements * plan.partial_bytes());
    }
  };
  for (std::uint32_t node = 0; node < topology.nodes(); ++node) {
    tiles(plan.staged_offset(node), topology.rail_peer(rank, node));
    for (const std::uint64_t epoch : {4, 5}) tiles(plan.partial_offset(epoch, node), rank);
  }
}

}  // namespace

TEST_CASE("ag_gemm: every element of c once, every row of a in one chunk") {
  for_all([](const Topology& topology, const GemmShape& shape) {
    const auto plan = AgGemmPlan::make(shape, topology, kSmallAg);
    REQUIRE(plan.ok());
    Cover cover(shape);
    for (std::uint32_t source = 0; source < topology.world(); ++source) {
      const Range rows = plan.value().rows(source);
      std::uint64_t needed = 1;
      for (std::int64_t tile = 0; tile < plan.value().grid(source).tiles(); ++tile) {
        cover.add(rows.begin, plan.value().grid(source).tile(tile));
        // What a tile needs covers its rows, and grows with the tiles.
        const std::uint64_t chunks = plan.value().chunks_needed(source, tile);
        CHECK(chunks >= needed);
        CHECK(chunks <= plan.value().gather().chunks(source));
        CHECK(plan.value().chunk_rows(source, chunks - 1).end >=
              plan.value().grid(source).tile(tile).rows.end);
        needed = chunks;
      }
      const std::uint64_t row_bytes = static_cast<std::uint64_t>(shape.k) * 2;
      std::int64_t at = 0;
      for (std::uint64_t i = 0; i < plan.value().gather().chunks(source); ++i) {
        const Range chunk = plan.value().chunk_rows(source, i);
        CHECK(chunk.begin == at);
        CHECK(plan.value().gather().chunk(source, i).bytes ==
              static_cast<std::uint64_t>(chunk.size()) * row_bytes);
        at = chunk.end;
      }
      CHECK(at == rows.size());
    }
    CHECK(cover.each(1));
    Layout1D layout;
    lay_out(layout, plan.value().gather());
    CHECK(layout.disjoint_within(plan.value().workspace_bytes()));
  });
}

TEST_CASE("gemm_rs: every rank computes every tile once, own node's tiles last; streams agree") {
  for_all([](const Topology& topology, const GemmShape& shape) {
    const auto made = GemmRsPlan::make(shape, topology, kSmall);
    REQUIRE(made.ok());
    const ReducePlan& plan = made.value().reduce();
    for (std::uint32_t rank = 0; rank < topology.world(); ++rank) {
      Cover cover(shape);
      bool own_node = false;
      std::map<std::uint32_t, std::vector<OwnedTile>> by_reducer;
      for (const OwnedTile tile : plan.compute_order(rank)) {
        cover.add(made.value().rows(tile.owner).begin, plan.grid(tile.owner).tile(tile.tile));
        const bool mine = topology.node_of(tile.owner) == topology.node_of(rank);
        CHECK((mine || !own_node));  // once at the own node's tiles, no other's follow
        own_node |= mine;
        by_reducer[topology.rail_peer(tile.owner, topology.node_of(rank))].push_back(tile);
      }
      CHECK(cover.each(1));
      for (const auto& [reducer, tiles] : by_reducer) {
        CHECK(tiles == plan.stream(reducer));
        for (std::size_t i = 0; i < tiles.size(); ++i) {
          CHECK(plan.position(topology.node_of(rank), tiles[i]) == static_cast<std::int64_t>(i));
        }
      }
      Layout1D layout;
      lay_out(layout, plan, topology, rank);
      CHECK(layout.disjoint_within(made.value().workspace_bytes()));
    }
  });
}

TEST_CASE("gemm_ar: the finished chunks are the owner's tiles, packed, and share no byte with the sums") {
  for_all([](const Topology& topology, const GemmShape& shape) {
    const auto made = GemmArPlan::make(shape, topology, kSmall);
    REQUIRE(made.ok());
    for (std::uint32_t owner = 0; owner < topology.world(); ++owner) {
      const ChunkSplit split = made.value().reduce().chunks(owner);
      CHECK(made.value().gather().chunks(owner) == static_cast<std::uint64_t>(split.chunks()));
      std::uint64_t bytes = 0;
      for (std::uint64_t i = 0; i < made.value().gather().chunks(owner); ++i) {
        bytes += made.value().gather().chunk(owner, i).bytes;
      }
      CHECK(bytes == static_cast<std::uint64_t>(made.value().rows(owner).size() * shape.n) * 2);
      Layout1D layout;
      lay_out(layout, made.value().reduce(), topology, owner);
      lay_out(layout, made.value().gather());
      CHECK(layout.disjoint_within(made.value().workspace_bytes()));
    }
  });
}

TEST_CASE("a chunk aims at a mebibyte") {
  const auto plan = GemmRsPlan::make({4096, 4096, 64}, {2, 2});
  REQUIRE(plan.ok());
  const ChunkSplit split = plan.value().reduce().chunks(0);
  const std::uint64_t bytes = plan.value().reduce().tile_offset({0, split.chunk(0).end});
  CHECK(bytes == 1U << 20);
  const auto gather = AgGemmPlan::make({4096, 64, 4096}, {2, 2});
  REQUIRE(gather.ok());
  CHECK(gather.value().gather().chunk(0, 0).bytes == 1U << 20);
}

TEST_CASE("one node sums in fp32: nothing travels, nothing is rounded twice") {
  CHECK(GemmRsPlan::make({64, 64, 64}, {1, 4}).value().reduce().partial() == Partial::kFloat);
  CHECK(GemmRsPlan::make({64, 64, 64}, {2, 4}).value().reduce().partial() == Partial::kIoType);
}
