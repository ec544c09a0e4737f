#include "kernels/cpu/gemm/tile_size.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/plan/cuts.h"
#include "kernels/plan/reduce_units.h"

namespace mkernel::kernels {
namespace {

constexpr std::int64_t kMostRows = 256, kFewestColumns = 64, kMostColumns = 1024;
// Units of sums lie in one tile (plan/reduce_units.h).
constexpr std::int64_t kFewestRows = kReduceUnitElements / kFewestColumns;

std::int64_t power_of_two(std::int64_t at_least) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(at_least)));
}

}  // namespace

TileSize host_tile(const GemmShape& shape, const Topology& topology) {
  const std::int64_t rows = ceil_div(shape.m, topology.world());
  std::int64_t columns = std::clamp(power_of_two(shape.n), kFewestColumns, kMostColumns);
  const auto padded = [&] { return ceil_div(shape.n, columns) * columns - shape.n; };
  while (topology.nodes() > 1 && columns > kFewestColumns && padded() > shape.n / 8) columns /= 2;
  return {static_cast<std::int32_t>(std::clamp(power_of_two(rows), kFewestRows, kMostRows)),
          static_cast<std::int32_t>(columns), 1};
}

}  // namespace mkernel::kernels
