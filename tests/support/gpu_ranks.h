// One GEMM operation of the cuda executor on every rank of a GpuWorld, bound, with operands.
#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/cuda/launch/gemm_operation.h"
#include "kernels/ops/make.h"
#include "kernels/plan/topology.h"
#include "tests/support/gpu_world.h"
#include "tests/support/require.h"
#include "tools/mkbench/gpu_gemm_case.h"
#include "tools/mkbench/gpu_stream.h"

namespace mkernel::test {

/// The operations, for TEST_CASE_TEMPLATE.
struct AgGemm {
  using Options = kernels::AgGemmOptions;
  static constexpr auto make = kernels::make_cuda_ag_gemm;
};
struct GemmRs {
  using Options = kernels::TileReduceOptions;
  static constexpr auto make = kernels::make_cuda_gemm_rs;
};
struct GemmAr {
  using Options = kernels::TileReduceOptions;
  static constexpr auto make = kernels::make_cuda_gemm_ar;
};

/// Far longer than any launch of the tests takes.
inline constexpr ExecutorOptions kGpuOptions{.deadline = std::chrono::milliseconds(10000)};

/// Any ranks of a GpuWorld, also such that share GPUs. Members that name a rank run on that rank's thread:
/// inside each(). What they queue goes to the rank's stream.
class GpuRanks {
 public:
  using Make = std::function<Result<std::unique_ptr<kernels::CudaGemmOperation>>(const GpuWorld& world,
                                                                                 std::uint32_t rank)>;
  /// A world and workspaces of its own. Ends the test case on an error, as the next two do.
  GpuRanks(const FabricOptions& fabric, const GemmShape& shape, const Make& make);
  /// In a world that others use as well, to be bound.
  GpuRanks(std::shared_ptr<GpuWorld> world, const GemmShape& shape, const Make& make);
  /// To the lent workspaces of all ranks and a workspace of its own.
  void bind(const std::vector<kernels::SymmetricView>& lent, std::uint32_t first_lane);

  GpuWorld& world() { return *world_; }
  int size() const { return world_->size(); }
  Status each(const std::function<Status(int rank)>& body) const { return world_->each(body); }
  kernels::CudaGemmOperation& operation(int rank) { return *ranks_[rank].operation; }
  GemmArguments arguments(int rank) const { return ranks_[rank].operands->arguments(0); }
  const bench::GpuStream& stream(int rank) const { return ranks_[rank].stream; }

  /// New operands of `iteration`, the same on all ranks; poisoned result. Asynchronous.
  Status fill(int rank, std::uint64_t iteration) { return ranks_[rank].operands->fill(0, iteration); }
  /// One launch; waits for it.
  Status run(int rank, const ExecutorOptions& options = kGpuOptions);
  /// Every element of what the last launch left, for all iterations that were filled alike.
  Status verify(int rank);
  /// Of the result; ranks with the same result have the same.
  Result<std::uint64_t> digest(int rank) const { return ranks_[rank].operands->digest(0); }

  /// From the thread of the test case: `launches` with new operands each time, all verified, and nothing
  /// wrong on the wire.
  void check(int launches);
  /// Likewise, with a graph of a launch for each rank: `rounds` times `replays` with new operands, which are
  /// filled on the stream, so that nothing else orders them. The last replay of a round is verified.
  void check_replays(int rounds, int replays);

 private:
  struct Rank {
    bench::GpuStream stream;
    std::unique_ptr<kernels::CudaGemmOperation> operation;
    std::optional<bench::GpuGemmCase> operands;
  };
  Status make_rank(int rank, const GemmShape& shape, const Make& make);

  std::shared_ptr<GpuWorld> world_;
  std::vector<Rank> ranks_;
};

template <class Op>
GpuRanks::Make maker(const GemmShape& shape, typename Op::Options options) {
  return [shape, options](const GpuWorld& world, std::uint32_t rank) mutable {
    if (options.sms == 0) options.sms = world.sms();
    return Op::make(shape, world.topology(), rank, options);
  };
}
/// In a world of its own.
template <class Op>
GpuRanks gpu_ranks(const FabricOptions& fabric, const GemmShape& shape,
                   const typename Op::Options& options = {}) {
  return {fabric, shape, maker<Op>(shape, options)};
}
/// In a world that others use as well.
template <class Op>
GpuRanks gpu_ranks(std::shared_ptr<GpuWorld> world, const GemmShape& shape,
                   const typename Op::Options& options = {}) {
  return {std::move(world), shape, maker<Op>(shape, options)};
}
/// Of one node.
template <class Op>
GpuRanks gpu_ranks(int ranks, const GemmShape& shape, const typename Op::Options& options = {}) {
  return gpu_ranks<Op>(FabricOptions{.ranks_per_node = static_cast<std::uint32_t>(ranks)}, shape, options);
}

/// `launches` of one operation, every one verified. `world`: ranks of one node, or a fabric's options.
template <class Op, typename World>
void check_gpu_case(const World& world, const GemmShape& shape, const typename Op::Options& options = {},
                    int launches = 3) {
  gpu_ranks<Op>(world, shape, options).check(launches);
}

}  // namespace mkernel::test

TYPE_TO_STRING(mkernel::test::AgGemm);
TYPE_TO_STRING(mkernel::test::GemmRs);
TYPE_TO_STRING(mkernel::test::GemmAr);
