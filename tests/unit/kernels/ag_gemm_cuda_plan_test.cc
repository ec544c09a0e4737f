// The cuda executor's plan of AG+GEMM: pure, so it is tested without a GPU.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/ops/ag_gemm/cuda_plan.h"
#include "kernels/schedule/tiles.h"

namespace mkernel::kernels {
namespace {

constexpr std::int32_t kSms = 132;

AgGemmCudaPlan plan_of(const GemmShape& shape, std::uint32_t world, std::uint32_t rank,
                       const AgGemmCudaOptions& options = {}) {
  auto plan = AgGemmCudaPlan::make(shape, Topology(1, world), rank, kSms, options);
  REQUIRE_MESSAGE(plan.ok(), plan.status().to_string());
  return *plan;
}

/// How often each element of c is computed, by the tiles as the kernel's schedule cuts them.
std::vector<int> coverage(const GemmShape& shape, const AgGemmCudaPlan& plan) {
  std::vector<int> times(static_cast<std::size_t>(shape.m * shape.n));
  const std::int64_t height = tile_rows(plan.tile) * tile_cluster(plan.tile), width = tile_columns(plan.tile);
  for (std::int32_t index = 0; index < plan.raster.tiles(); ++index) {
    const RasterPlace place = plan.raster.place(index);
    const ArrivalSteps::Place step = plan.steps.place(place.row);
    const std::int64_t rows = plan.gather.rows_of(step.source);
    for (std::int64_t row = step.block * height; row < std::min(rows, (step.block + 1) * height); ++row) {
      for (std::int64_t column = place.column * width; column < std::min(shape.n, (place.column + 1) * width);
           ++column) {
        ++times[static_cast<std::size_t>((plan.gather.first_row(step.source) + row) * shape.n + column)];
      }
    }
  }
  return times;
}

TEST_CASE("every element of c belongs to one tile, on every rank of any world") {
  for (const std::uint32_t world : {1U, 2U, 3U, 4U, 8U}) {
    for (const GemmShape& shape :
         {GemmShape{1, 8, 8}, GemmShape{5, 136, 64}, GemmShape{1000, 392, 64}, GemmShape{2049, 8, 16}}) {
      for (const Sm90Tile tile : kSm90Tiles) {
        for (std::uint32_t rank = 0; rank < world; ++rank) {
          const auto times = coverage(shape, plan_of(shape, world, rank, {.tile = tile}));
          CHECK(std::all_of(times.begin(), times.end(), [](int n) { return n == 1; }));
        }
      }
    }
  }
}

TEST_CASE("own rows come first, then the blocks of the others in turn, from the next rank on") {
  const AgGemmCudaPlan plan = plan_of({4096, 1024, 4096}, 4, 2, {.tile = Sm90Tile::k128x256});
  REQUIRE(plan.steps.own_blocks == 4);
  REQUIRE(plan.steps.steps() == 16);
  for (std::int32_t step = 0; step < 4; ++step) CHECK(plan.steps.place(step).source == 2);
  for (std::int32_t step = 4; step < 16; ++step) {
    const ArrivalSteps::Place place = plan.steps.place(step);
    CHECK(place.source == (2 + 1 + (step - 4) % 3) % 4);
    CHECK(place.block == (step - 4) / 3);
  }
}

TEST_CASE("the workspace holds words and two slabs that do not overlap, and counts only grow") {
  for (const std::uint32_t world : {1U, 3U, 8U}) {
    const AgGemmCudaPlan plan = plan_of({1003, 64, 72}, world, 0);
    const PushGatherPlan& gather = plan.gather;
    const auto sources = static_cast<std::int32_t>(world);
    CHECK(gather.ready_offset(sources) <= gather.slab_offset(0, 0));
    std::uint64_t end = gather.slab_offset(0, 0);
    for (const std::uint64_t epoch : {0U, 1U}) {
      for (std::int32_t source = 0; source < sources; ++source) {
        CHECK(gather.slab_offset(epoch, source) == end);
        CHECK(gather.slab_offset(epoch + 2, source) == end);
        CHECK(end % 16 == 0);
        CHECK(gather.chunks(source) <= gather.max_chunks());
        end += static_cast<std::uint64_t>(gather.rows_of(source) * gather.row_bytes);
      }
    }
    CHECK(end == gather.workspace_bytes());
    for (std::uint64_t epoch = 0; epoch < 5; ++epoch) {
      CHECK(gather.count(epoch + 1) - gather.count(epoch) == static_cast<std::uint64_t>(gather.parts));
    }
  }
}

TEST_CASE("the grid fits the device, in whole clusters") {
  for (const std::int64_t size : {8, 512, 2048, 8192, 32768}) {
    for (const std::uint32_t world : {1U, 2U, 4U, 8U}) {
      const AgGemmCudaPlan plan = plan_of({size, size / 4 / 8 * 8 + 8, size}, world, 0);
      CHECK(plan.comm_ctas % 2 == 0);
      CHECK(plan.comm_ctas >= 2);
      CHECK(plan.compute_ctas >= tile_cluster(plan.tile));
      CHECK(plan.compute_ctas % tile_cluster(plan.tile) == 0);
      CHECK(plan.comm_ctas + plan.compute_ctas <= kSms);
    }
  }
}

TEST_CASE("what cannot run is refused by name, value and limit") {
  const auto refusal = [](const GemmShape& shape, const Topology& topology,
                          const AgGemmCudaOptions& options = {}) {
    return AgGemmCudaPlan::make(shape, topology, 0, kSms, options).status();
  };
  const Topology node(1, 4);
  for (const auto& [shape, text] : {std::pair{GemmShape{64, 12, 64}, "n = 12, must be a multiple of 8"},
                                    std::pair{GemmShape{64, 64, 9}, "k = 9, must be a multiple of 8"},
                                    std::pair{GemmShape{0, 64, 64}, "m = 0"}}) {
    const Status status = refusal(shape, node);
    CHECK(status.code() == StatusCode::kInvalidArgument);
    CHECK_MESSAGE(status.text().find(text) != std::string::npos, status.text());
  }
  for (const std::int32_t comm_ctas : {-2, 3, 68}) {
    const Status status = refusal({64, 64, 64}, node, {.comm_ctas = comm_ctas});
    CHECK(status.text().find("comm_ctas = " + std::to_string(comm_ctas) + ", must be even, 0..66") !=
          std::string::npos);
  }
  CHECK(refusal({64, 64, 64}, Topology(1, 17)).text().find("world = 17, must be 1..16") != std::string::npos);
  CHECK(refusal({64, 64, 64}, Topology(2, 2)).code() == StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace mkernel::kernels
