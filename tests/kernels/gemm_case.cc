#include "tests/kernels/gemm_case.h"

#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <utility>

#include "kernels/cpu/memory/convert.h"
#include "kernels/ops/make.h"
#include "kernels/plan/topology.h"

namespace mkernel::test {
namespace {

constexpr std::uint16_t kPoison = 0x7fc1;  // NaN in bf16 and in fp16

double value_of(DataType type, std::uint16_t bits) {
  return type == DataType::kBf16 ? kernels::bf16_to_float(bits) : kernels::f16_to_float(bits);
}

Result<std::unique_ptr<GemmOperation>> make(OpKind kind, const GemmShape& shape,
                                            const kernels::GroupView& group, const Cut& cut) {
  auto topology = kernels::Topology::of(group);
  if (!topology.ok()) return topology.status();
  const kernels::ReduceOptions reduce{cut.partial, cut.tile_rows, cut.tile_columns, cut.chunk_bytes,
                                      cut.window};
  if (kind == OpKind::kAgGemm) {
    return kernels::make_cpu_ag_gemm(shape, *topology, {cut.tile_rows, cut.tile_columns, cut.chunk_bytes});
  }
  return kind == OpKind::kGemmRs ? kernels::make_cpu_gemm_rs(shape, *topology, reduce)
                                 : kernels::make_cpu_gemm_ar(shape, *topology, reduce);
}

}  // namespace

GemmCase::GemmCase(OpKind kind, const GemmShape& shape, const FabricOptions& fabric, const Cut& cut)
    : kind_(kind), shape_(shape), options_(fabric), cut_(cut), fabric_(fabric) {
  for (std::uint32_t rank = 0; rank < fabric_.world(); ++rank) {
    auto operation = make(kind, shape, fabric_.group(rank), cut);
    REQUIRE_MESSAGE(operation.ok(), operation.status().to_string());
    operations_.push_back(std::move(operation).value());
  }
  const auto workspace = fabric_.symmetric(operations_[0]->requirements().workspace_bytes);
  for (std::uint32_t rank = 0; rank < fabric_.world(); ++rank) {
    REQUIRE(operations_[rank]->bind(fabric_.group(rank), workspace[rank], 1).ok());
  }
  a_.resize(fabric_.world());
  b_.resize(fabric_.world());
  c_.resize(fabric_.world());
}

std::int64_t GemmCase::rows(std::uint32_t rank) const {
  return block_range(shape_.m, fabric_.world(), rank).size();
}

void GemmCase::fill(std::uint64_t seed) {
  for (std::uint32_t rank = 0; rank < fabric_.world(); ++rank) {
    std::mt19937_64 random(seed * 1000 + rank);
    std::uniform_real_distribution<float> uniform(-1.0F, 1.0F);
    const auto draw = [&](std::vector<std::uint16_t>& to, std::int64_t count) {
      std::vector<float> values(static_cast<std::size_t>(count));
      for (float& value : values) value = uniform(random);
      to.resize(values.size());
      kernels::narrow(shape_.dtype, values.data(), to.data(), values.size());
    };
    draw(a_[rank], (kind_ == OpKind::kAgGemm ? rows(rank) : shape_.m) * shape_.k);
    draw(b_[rank], shape_.k * shape_.n);
    c_[rank].assign(static_cast<std::size_t>((kind_ == OpKind::kGemmRs ? rows(rank) : shape_.m) * shape_.n),
                    kPoison);
  }
}

Status GemmCase::run_rank(std::uint32_t rank, const ExecutorOptions& options) {
  return operations_[rank]->run({a_[rank].data(), b_[rank].data(), c_[rank].data()}, options);
}

std::vector<Status> GemmCase::run(const ExecutorOptions& options, const std::vector<bool>& starts) {
  return run_ranks(fabric_.world(), [&](std::uint32_t rank) {
    return starts.empty() || starts[rank] ? run_rank(rank, options) : Status();
  });
}

double GemmCase::element(std::uint32_t rank, std::int64_t row, std::int64_t k) const {
  return value_of(shape_.dtype, a_[rank][static_cast<std::size_t>(row * shape_.k + k)]);
}

double GemmCase::b_element(std::uint32_t rank, std::int64_t k, std::int64_t column) const {
  const std::int64_t at =
      shape_.b_layout == Layout::kRowMajor ? k * shape_.n + column : column * shape_.k + k;
  return value_of(shape_.dtype, b_[rank][static_cast<std::size_t>(at)]);
}

/// Bound: one rounding to the operation's type of the result; one of every node's partial when it travels so
/// and there is more than one node; fp32 sums of `terms` products, each off by at most 2^-24 relative to the
/// sum of magnitudes. All magnitudes taken before rounding, hence the factor just above one.
std::string GemmCase::judge_element(std::uint32_t rank, std::int64_t row, std::int64_t column) const {
  const std::uint32_t world = fabric_.world();
  const double unit = kernels::rounding_unit(shape_.dtype);
  double expected = 0, magnitude = 0, partials = 0;
  double terms = static_cast<double>(shape_.k);
  if (kind_ == OpKind::kAgGemm) {
    std::uint32_t source = 0;
    while (row >= block_range(shape_.m, world, source).end) ++source;
    const std::int64_t source_row = row - block_range(shape_.m, world, source).begin;
    for (std::int64_t k = 0; k < shape_.k; ++k) {
      const double product = element(source, source_row, k) * b_element(rank, k, column);
      expected += product;
      magnitude += std::abs(product);
    }
  } else {
    terms = terms * world + 2;
    const std::int64_t a_row =
        row + (kind_ == OpKind::kGemmRs ? block_range(shape_.m, world, rank).begin : 0);
    for (std::uint32_t node = 0; node < options_.nodes; ++node) {
      double partial = 0;
      for (std::uint32_t local = 0; local < options_.ranks_per_node; ++local) {
        const std::uint32_t source = node * options_.ranks_per_node + local;
        for (std::int64_t k = 0; k < shape_.k; ++k) {
          const double product = element(source, a_row, k) * b_element(source, k, column);
          partial += product;
          magnitude += std::abs(product);
        }
      }
      expected += partial;
      if (options_.nodes > 1 && cut_.partial == kernels::Partial::kIoType) partials += std::abs(partial);
    }
  }
  const double denormal = shape_.dtype == DataType::kF16 ? 0x1p-24 * (options_.nodes + 1) : 0;
  const double bound =
      1.02 * (unit * (std::abs(expected) + partials) + terms * 0x1p-24 * magnitude) + denormal;
  const double seen = value_of(shape_.dtype, c_[rank][static_cast<std::size_t>(row * shape_.n + column)]);
  if (std::abs(seen - expected) <= bound) return "";  // false for NaN
  return "rank " + std::to_string(rank) + " c[" + std::to_string(row) + ", " + std::to_string(column) +
         "] = " + std::to_string(seen) + ", expected " + std::to_string(expected) + " +- " +
         std::to_string(bound);
}

std::string GemmCase::judge() const {
  for (std::uint32_t rank = 0; rank < fabric_.world(); ++rank) {
    const auto c_rows = static_cast<std::int64_t>(c_[rank].size()) / shape_.n;
    for (std::int64_t row = 0; row < c_rows; ++row) {
      for (std::int64_t column = 0; column < shape_.n; ++column) {
        if (std::string off = judge_element(rank, row, column); !off.empty()) return off;
      }
    }
  }
  return "";
}

}  // namespace mkernel::test
