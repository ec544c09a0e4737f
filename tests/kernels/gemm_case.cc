#include "tests/kernels/gemm_case.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>

#include "kernels/base/lent_workspace.h"
#include "kernels/cpu/memory/convert.h"
#include "kernels/ops/make.h"
#include "kernels/plan/product_columns.h"
#include "kernels/plan/topology.h"
#include "tests/support/random_tensor.h"

namespace mkernel::test {
namespace {

/// in: [rows, columns]
std::vector<float> transposed(const std::vector<float>& in, std::int64_t rows, std::int64_t columns) {
  std::vector<float> out(in.size());
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column)
      out[static_cast<std::size_t>(column * rows + row)] =
          in[static_cast<std::size_t>(row * columns + column)];
  }
  return out;
}

Result<std::unique_ptr<GemmOperation>> make(OpKind kind, const GemmShape& shape,
                                            const kernels::GroupView& group, const Cut& cut) {
  auto topology = kernels::Topology::of(group);
  if (!topology.ok()) return topology.status();
  if (!cut.tile) return kernels::make_gemm(kind, shape, group);
  if (kind == OpKind::kAgGemm) {
    return kernels::make_cpu_ag_gemm(shape, *topology, group.rank(),
                                     {.tile = cut.tile,
                                      .comm_ctas = cut.comm_ctas,
                                      .tail_tiles = cut.tail_tiles,
                                      .late_tiles = cut.late_tiles});
  }
  const kernels::TileReduceOptions reduce{
      .tile = cut.tile, .reduce_ctas = cut.comm_ctas, .to_all = cut.to_all};
  return kind == OpKind::kGemmRs ? kernels::make_cpu_gemm_rs(shape, *topology, group.rank(), reduce)
                                 : kernels::make_cpu_gemm_ar(shape, *topology, group.rank(), reduce);
}

}  // namespace

GemmCase::GemmCase(OpKind kind, const GemmShape& shape, const FabricOptions& fabric, const Cut& cut)
    : GemmCase(kind, shape, std::make_shared<FakeFabric>(fabric), cut) {
  bind(fabric_->symmetric(kernels::lent_workspace_bytes(requirements().lent_bytes)), 1);
}

GemmCase::GemmCase(OpKind kind, const GemmShape& shape, std::shared_ptr<FakeFabric> fabric, const Cut& cut)
    : kind_(kind), shape_(shape), fabric_(std::move(fabric)), n_(first_column(kernels::products_of(shape))) {
  for (std::uint32_t rank = 0; rank < fabric_->world(); ++rank) {
    auto operation = make(kind, shape, fabric_->group(rank), cut);
    REQUIRE_MESSAGE(operation.ok(), operation.status().to_string());
    operations_.push_back(std::move(operation).value());
  }
  a_.resize(fabric_->world());
  b_.resize(fabric_->world());
  c_.resize(fabric_->world());
  gathered_.resize(fabric_->world());
  wide_a_.resize(fabric_->world());
  wide_b_.resize(fabric_->world());
}

void GemmCase::bind(const std::vector<kernels::SymmetricView>& lent, std::uint32_t first_lane) {
  const auto workspace = fabric_->symmetric(requirements().workspace_bytes);
  for (std::uint32_t rank = 0; rank < fabric_->world(); ++rank)
    REQUIRE(operations_[rank]->bind(fabric_->group(rank), workspace[rank], lent[rank], first_lane).ok());
}

std::int64_t GemmCase::rows(std::uint32_t rank) const {
  return block_range(shape_.m, fabric_->world(), rank).size();
}

std::int64_t GemmCase::rows_of_c(std::uint32_t rank) const {
  return kind_ == OpKind::kGemmRs ? rows(rank) : shape_.m;
}

std::int64_t GemmCase::first_column(int product) const {
  std::int64_t columns = 0;
  for (int before = 0; before < product; ++before) columns += kernels::columns_of(shape_, before);
  return columns;
}

void GemmCase::fill(std::uint64_t seed) {
  for (std::uint32_t rank = 0; rank < fabric_->world(); ++rank) {
    std::mt19937_64 random(seed * 1000 + rank);
    const auto draw = [&](std::vector<std::uint16_t>& to, std::vector<float>& wide, std::int64_t count) {
      wide.resize(static_cast<std::size_t>(count));
      for (float& value : wide) value = uniform(random, 1.0F);
      to.resize(wide.size());
      kernels::narrow(shape_.dtype, wide.data(), to.data(), wide.size());
      kernels::widen(shape_.dtype, to.data(), wide.data(), wide.size());  // what is left of the values
    };
    draw(a_[rank], wide_a_[rank], (kind_ == OpKind::kAgGemm ? rows(rank) : shape_.m) * shape_.k);
    draw(b_[rank], wide_b_[rank], shape_.k * n_);
    for (int product = 0; product < kernels::products_of(shape_); ++product) {
      if (shape_.b_layout == Layout::kColumnMajor) break;
      const std::int64_t n = kernels::columns_of(shape_, product);
      const auto begin = wide_b_[rank].begin() + shape_.k * first_column(product);
      const auto columns = transposed({begin, begin + shape_.k * n}, shape_.k, n);
      std::copy(columns.begin(), columns.end(), begin);
    }
    c_[rank].assign(static_cast<std::size_t>(rows_of_c(rank) * n_), kPoison);
    if (kind_ == OpKind::kAgGemm)
      gathered_[rank].assign(static_cast<std::size_t>(shape_.m * shape_.k), kPoison);
  }
}

Status GemmCase::run_rank(std::uint32_t rank, const ExecutorOptions& options) {
  GemmArguments arguments{a_[rank].data(), b_[rank].data(), c_[rank].data()};
  for (int more = 0; more + 1 < kernels::products_of(shape_); ++more) {
    arguments.more_b[more] = b_[rank].data() + shape_.k * first_column(more + 1);
    arguments.more_c[more] = c_[rank].data() + rows_of_c(rank) * first_column(more + 1);
  }
  if (kind_ == OpKind::kAgGemm) arguments.gathered = gathered_[rank].data();
  return operations_[rank]->run(arguments, options);
}

std::vector<Status> GemmCase::run(const ExecutorOptions& options, const std::vector<bool>& starts) {
  return run_ranks(fabric_->world(), [&](std::uint32_t rank) {
    return starts.empty() || starts[rank] ? run_rank(rank, options) : Status();
  });
}

GemmCase::Dot GemmCase::dot(std::uint32_t rank, std::int64_t row, std::uint32_t b_rank,
                            std::int64_t column) const {
  const float* a = wide_a_[rank].data() + row * shape_.k;
  const float* b = wide_b_[b_rank].data() + column * shape_.k;
  using Four = double __attribute__((vector_size(32)));  // a single sum would wait for every addition
  using FourFloats = float __attribute__((vector_size(16)));
  const auto read = [](const float* from, Four& to) {
    FourFloats floats;
    std::memcpy(&floats, from, sizeof floats);
    to = __builtin_convertvector(floats, Four);
  };
  Four of_a, of_b, sums = {}, magnitudes = {};
  std::int64_t k = 0;
  for (; k + 4 <= shape_.k; k += 4) {
    read(a + k, of_a);
    read(b + k, of_b);
    const Four product = of_a * of_b;
    sums += product;
    magnitudes += product < 0 ? -product : product;
  }
  Dot dot{sums[0] + sums[1] + sums[2] + sums[3],
          magnitudes[0] + magnitudes[1] + magnitudes[2] + magnitudes[3]};
  for (; k < shape_.k; ++k) {
    const double product = static_cast<double>(a[k]) * b[k];
    dot.sum += product;
    dot.magnitude += std::abs(product);
  }
  return dot;
}

/// Bound: one rounding to the operation's type of the result; one of every rank's partial; one of every other
/// node's sum, where there is more than one node; fp32 sums of `terms` products, each off by at most 2^-24
/// relative to the sum of magnitudes. All magnitudes taken before rounding, hence the factor just above one.
std::string GemmCase::judge_element(std::uint32_t rank, std::int64_t row, std::int64_t column) const {
  const std::uint32_t world = fabric_->world();
  const double unit = kernels::rounding_unit(shape_.dtype);
  double expected = 0, magnitude = 0, partials = 0;
  double terms = static_cast<double>(shape_.k);
  if (kind_ == OpKind::kAgGemm) {
    std::uint32_t source = 0;
    while (row >= block_range(shape_.m, world, source).end) ++source;
    const std::int64_t source_row = row - block_range(shape_.m, world, source).begin;
    const Dot whole = dot(source, source_row, rank, column);
    expected = whole.sum;
    magnitude = whole.magnitude;
  } else {
    terms = terms * world + 2;
    const std::int64_t a_row =
        row + (kind_ == OpKind::kGemmRs ? block_range(shape_.m, world, rank).begin : 0);
    for (std::uint32_t node = 0; node < fabric_->options().nodes; ++node) {
      double of_node = 0;
      for (std::uint32_t local = 0; local < fabric_->options().ranks_per_node; ++local) {
        const std::uint32_t source = node * fabric_->options().ranks_per_node + local;
        const Dot partial = dot(source, a_row, source, column);
        magnitude += partial.magnitude;
        of_node += partial.sum;
        partials += std::abs(partial.sum);
      }
      expected += of_node;
      if (fabric_->options().nodes > 1) partials += std::abs(of_node);
    }
  }
  const double denormal =
      shape_.dtype == DataType::kF16 ? 0x1p-24 * (fabric_->world() + fabric_->options().nodes + 1) : 0;
  const double bound =
      1.02 * (unit * (std::abs(expected) + partials) + terms * 0x1p-24 * magnitude) + denormal;
  int product = 0;
  while (column >= first_column(product + 1)) ++product;
  const std::int64_t at = rows_of_c(rank) * first_column(product) +
                          row * kernels::columns_of(shape_, product) + column - first_column(product);
  const double seen = value_of(shape_.dtype, c_[rank][static_cast<std::size_t>(at)]);
  if (std::abs(seen - expected) <= bound) return "";  // false for NaN
  return "rank " + std::to_string(rank) + " c[" + std::to_string(row) + ", " + std::to_string(column) +
         "] = " + std::to_string(seen) + ", expected " + std::to_string(expected) + " +- " +
         std::to_string(bound);
}

std::vector<std::uint16_t> GemmCase::gathered() const {
  std::vector<std::uint16_t> rows;
  for (const auto& a : a_) rows.insert(rows.end(), a.begin(), a.end());
  return rows;
}

std::string GemmCase::judge() const {
  for (std::uint32_t rank = 0; rank < fabric_->world(); ++rank) {
    if (kind_ == OpKind::kAgGemm && gathered_[rank] != gathered())
      return "rank " + std::to_string(rank) + " has not gathered the rows of all ranks";
    if (kind_ == OpKind::kGemmAr && rank > 0) {  // all hold the bits of rank 0
      if (c_[rank] != c_[0]) return "rank " + std::to_string(rank) + " holds another c than rank 0";
      continue;
    }
    for (std::int64_t row = 0; row < rows_of_c(rank); ++row) {
      for (std::int64_t column = 0; column < n_; ++column) {
        if (std::string off = judge_element(rank, row, column); !off.empty()) return off;
      }
    }
  }
  return "";
}

}  // namespace mkernel::test
