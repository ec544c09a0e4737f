// The mixture of experts of the cuda executor on every rank of a GpuWorld, bound, with weights and operands.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/launch/operation.h"
#include "kernels/ops/make.h"
#include "tests/support/gpu_world.h"
#include "tests/support/moe_cases.h"
#include "tests/support/moe_reference.h"
#include "tools/mkbench/gpu_matrix.h"
#include "tools/mkbench/gpu_stream.h"

namespace mkernel::test {

/// Far longer than any launch of the tests takes.
inline constexpr ExecutorOptions kMoeGpuOptions{.deadline = std::chrono::milliseconds(10000)};

/// No size is a multiple of a tile's, no number of experts one of a world's.
inline constexpr MoeShape kTinyMoe{
    .max_tokens = 20, .hidden = 72, .n = 88, .intermediate = 40, .experts = 6, .topk = 2};

/// Operands of launches of at most max_tokens tokens, but for the weights.
struct MoeOnGpu {
  bench::GpuBuffer x, topk, weights, shared_weights, y;
};

/// All of a buffer into another one of the same size. Asynchronous.
Status copy_on_gpu(const bench::GpuBuffer& to, const bench::GpuBuffer& from, const bench::GpuStream& stream);

/// Any ranks, also such that share GPUs. Members that name a rank run on that rank's thread: inside each().
/// What they queue goes to the rank's stream.
class GpuMoeRanks {
 public:
  using Tensor = std::vector<std::uint16_t>;
  /// Ends the test case on an error.
  GpuMoeRanks(const FabricOptions& fabric, const MoeShape& shape, const kernels::MoeOptions& options = {});

  GpuWorld& world() { return *world_; }
  int size() const { return world_->size(); }
  Status each(const std::function<Status(int rank)>& body) const { return world_->each(body); }
  const MoeShape& shape() const { return shape_; }
  MoeOperation& operation(int rank) { return *ranks_[rank].operation; }
  const bench::GpuStream& stream(int rank) const { return ranks_[rank].stream; }
  /// Those of check() and of whoever needs no others.
  MoeOnGpu& operands(int rank) { return ranks_[rank].operands; }

  /// From the thread of the test case: whether the next launches have the two halves of w1 as two operands.
  void set_w1_up(bool given);
  /// Of every rank.
  std::vector<MoeInput> inputs(const Router& router, const TokensOfRank& tokens, std::uint64_t seed) const;
  std::vector<MoeInput> inputs(const Router& router, std::int64_t each, std::uint64_t seed) const;

  Result<MoeOnGpu> allocate() const;
  /// Queues the input's way into `to`, and poison into all of y.
  Status fill(int rank, const MoeInput& input, const MoeOnGpu& to) const;
  MoeArguments arguments(int rank, const MoeOnGpu& operands, std::int64_t tokens) const;
  Status enqueue(int rank, const MoeOnGpu& operands, std::int64_t tokens,
                 const ExecutorOptions& options = kMoeGpuOptions);
  /// One launch; waits for it.
  Status run(int rank, std::int64_t tokens, const ExecutorOptions& options = kMoeGpuOptions);
  /// y of so many tokens. kDataLoss when the kernel wrote beyond. Waits for the stream.
  Result<Tensor> output(int rank, const MoeOnGpu& operands, std::int64_t tokens) const;
  /// The same; kDataLoss also when an element is wrong.
  Result<Tensor> verified(int rank, const MoeOnGpu& operands, const MoeInput& input) const;

  /// From the thread of the test case: one launch on all ranks, checked element by element; outputs by rank.
  std::vector<Tensor> run_checked(const std::vector<MoeInput>& inputs);
  /// One launch that every rank refuses with this code and exactly these words, with y as it was.
  void run_refused(const std::vector<MoeInput>& inputs, StatusCode code, const std::string& text);

 private:
  struct Rank {
    bench::GpuStream stream;
    std::unique_ptr<kernels::CudaMoeOperation> operation;
    MoeOnGpu operands;
    bench::GpuBuffer w1, w1_up, w2, shared_w1, shared_w1_up, shared_w2;
  };
  Status make_rank(int rank, kernels::MoeOptions options);

  const MoeShape shape_;
  const MoeWeights weights_;
  std::shared_ptr<GpuWorld> world_;
  std::vector<Rank> ranks_;
  bool w1_up_ = false;
};

}  // namespace mkernel::test
