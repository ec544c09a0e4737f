#include "tests/support/gpu_moe_ranks.h"

#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include "kernels/cuda/memory/error.h"
#include "kernels/plan/topology.h"
#include "tests/support/require.h"

namespace mkernel::test {
namespace {

constexpr std::uint16_t kUntouched = 0xffff;  // of bench::poison()

/// Memory of no bytes has no address.
Status allocate_elements(bench::GpuBuffer& buffer, std::int64_t elements, std::size_t bytes_each) {
  const auto bytes = static_cast<std::uint64_t>(elements) * bytes_each;
  auto made = bench::GpuBuffer::allocate(std::max<std::uint64_t>(bytes, 16));
  if (made.ok()) buffer = std::move(*made);
  return made.status();
}

Status copy(void* to, const void* from, std::size_t bytes, CUstream_st* stream) {
  if (bytes == 0) return {};
  return kernels::cuda_status(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "operands");
}

template <class Elements>
Status upload(const bench::GpuBuffer& to, const Elements& from, const bench::GpuStream& stream) {
  return copy(to.get(), from.data(), from.size() * sizeof(*from.data()), stream.get());
}

}  // namespace

Status copy_on_gpu(const bench::GpuBuffer& to, const bench::GpuBuffer& from, const bench::GpuStream& stream) {
  return copy(to.get(), from.get(), from.bytes(), stream.get());
}

GpuMoeRanks::GpuMoeRanks(const FabricOptions& fabric, const MoeShape& shape,
                         const kernels::MoeOptions& options)
    : shape_(shape),
      weights_(random_weights(shape, 17)),
      world_(require(GpuWorld::make(fabric))),
      ranks_(static_cast<std::size_t>(world_->size())) {
  require_ok(each([&](int rank) { return make_rank(rank, options); }));
  const auto workspace = require(world_->symmetric(operation(0).requirements().workspace_bytes));
  require_ok(each([&](int rank) {
    return operation(rank).bind(world_->group(rank), workspace[static_cast<std::size_t>(rank)], {}, 1);
  }));
  set_w1_up(false);
}

Status GpuMoeRanks::make_rank(int rank, kernels::MoeOptions options) {
  Rank& me = ranks_[static_cast<std::size_t>(rank)];
  const auto topology = kernels::Topology::of(world_->group(rank));
  if (!topology.ok()) return topology.status();
  if (options.sms == 0) options.sms = world_->sms();
  auto made = kernels::make_cuda_moe(shape_, topology.value(), static_cast<std::uint32_t>(rank), options);
  if (!made.ok()) return made.status();
  me.operation = std::move(*made);
  me.operation->use_rings(world_->rings(rank));
  auto stream = bench::GpuStream::create();
  if (!stream.ok()) return stream.status();
  me.stream = std::move(*stream);
  auto operands = allocate();
  if (!operands.ok()) return operands.status();
  me.operands = std::move(*operands);
  const std::int64_t mine = block_range(shape_.experts, size(), rank).size();
  const std::int64_t inner = shape_.intermediate, columns = inner > 0 ? 2 * inner : shape_.n;
  MK_RETURN_IF_ERROR(allocate_elements(me.w1, mine * shape_.hidden * columns, 2));
  MK_RETURN_IF_ERROR(allocate_elements(me.w1_up, mine * shape_.hidden * inner, 2));
  MK_RETURN_IF_ERROR(allocate_elements(me.w2, mine * inner * shape_.n, 2));
  const std::int64_t shared = shape_.shared_intermediate;
  MK_RETURN_IF_ERROR(allocate_elements(me.shared_w1, shape_.hidden * 2 * shared, 2));
  MK_RETURN_IF_ERROR(allocate_elements(me.shared_w1_up, shape_.hidden * shared, 2));
  return allocate_elements(me.shared_w2, shared * shape_.n, 2);
}

void GpuMoeRanks::set_w1_up(bool given) {
  w1_up_ = given;
  const MoeWeightOperands operands = weight_operands(shape_, weights_, given);
  require_ok(each([&](int rank) -> Status {
    const Rank& me = ranks_[static_cast<std::size_t>(rank)];
    const auto mine = [&](const Tensor& all) {
      return own_experts(shape_, static_cast<std::uint32_t>(size()), static_cast<std::uint32_t>(rank), all);
    };
    MK_RETURN_IF_ERROR(upload(me.w1, mine(operands.w1), me.stream));
    MK_RETURN_IF_ERROR(upload(me.w1_up, mine(operands.w1_up), me.stream));
    MK_RETURN_IF_ERROR(upload(me.w2, mine(operands.w2), me.stream));
    MK_RETURN_IF_ERROR(upload(me.shared_w1, operands.shared_w1, me.stream));
    MK_RETURN_IF_ERROR(upload(me.shared_w1_up, operands.shared_w1_up, me.stream));
    MK_RETURN_IF_ERROR(upload(me.shared_w2, operands.shared_w2, me.stream));
    return me.stream.synchronize();
  }));
}

std::vector<MoeInput> GpuMoeRanks::inputs(const Router& router, const TokensOfRank& tokens,
                                          std::uint64_t seed) const {
  return random_inputs(shape_, static_cast<std::uint32_t>(size()), router, tokens, seed);
}

std::vector<MoeInput> GpuMoeRanks::inputs(const Router& router, std::int64_t each, std::uint64_t seed) const {
  return inputs(
      router, [each](std::uint32_t) { return each; }, seed);
}

Result<MoeOnGpu> GpuMoeRanks::allocate() const {
  MoeOnGpu made;
  const std::int64_t tokens = shape_.max_tokens;
  MK_RETURN_IF_ERROR(allocate_elements(made.x, tokens * shape_.hidden, 2));
  MK_RETURN_IF_ERROR(allocate_elements(made.topk, tokens * shape_.topk, 4));
  MK_RETURN_IF_ERROR(allocate_elements(made.weights, tokens * shape_.topk, 4));
  MK_RETURN_IF_ERROR(allocate_elements(made.shared_weights, tokens, 4));
  MK_RETURN_IF_ERROR(allocate_elements(made.y, tokens * shape_.n, 2));
  return Result<MoeOnGpu>(std::move(made));
}

Status GpuMoeRanks::fill(int rank, const MoeInput& input, const MoeOnGpu& to) const {
  MK_RETURN_IF_ERROR(upload(to.x, input.x, stream(rank)));
  MK_RETURN_IF_ERROR(upload(to.topk, input.topk, stream(rank)));
  MK_RETURN_IF_ERROR(upload(to.weights, input.weights, stream(rank)));
  const std::vector<float> ones(static_cast<std::size_t>(input.tokens), 1.0F);
  const auto& factors = input.shared_weights.empty() ? ones : input.shared_weights;
  MK_RETURN_IF_ERROR(upload(to.shared_weights, factors, stream(rank)));
  return bench::poison(to.y, stream(rank).get());
}

MoeArguments GpuMoeRanks::arguments(int rank, const MoeOnGpu& operands, std::int64_t tokens) const {
  const Rank& me = ranks_[static_cast<std::size_t>(rank)];
  MoeArguments arguments{.tokens = tokens,
                         .x = operands.x.get(),
                         .topk = static_cast<const std::int32_t*>(operands.topk.get()),
                         .weights = static_cast<const float*>(operands.weights.get()),
                         .y = operands.y.get()};
  if (shape_.shared_intermediate > 0) {
    arguments.shared_w1 = me.shared_w1.get();
    if (w1_up_) arguments.shared_w1_up = me.shared_w1_up.get();
    arguments.shared_w2 = me.shared_w2.get();
    arguments.shared_weights = static_cast<const float*>(operands.shared_weights.get());
  }
  // A rank without experts has no weights to point at.
  if (block_range(shape_.experts, size(), rank).size() == 0) return arguments;
  arguments.w1 = me.w1.get();
  if (w1_up_) arguments.w1_up = me.w1_up.get();
  if (shape_.intermediate > 0) arguments.w2 = me.w2.get();
  return arguments;
}

Status GpuMoeRanks::enqueue(int rank, const MoeOnGpu& operands, std::int64_t tokens,
                            const ExecutorOptions& options) {
  return operation(rank).enqueue(arguments(rank, operands, tokens), options, stream(rank).get());
}

Status GpuMoeRanks::run(int rank, std::int64_t tokens, const ExecutorOptions& options) {
  if (world_->shares_gpus()) {
    // As GpuRanks::run(): a launch on another stream may wait for the ranks that wait for this one.
    MK_RETURN_IF_ERROR(enqueue(rank, operands(rank), tokens, options));
    MK_RETURN_IF_ERROR(stream(rank).synchronize());
    return operation(rank).status();
  }
  MK_RETURN_IF_ERROR(stream(rank).synchronize());  // run() has a stream of its own
  return operation(rank).run(arguments(rank, operands(rank), tokens), options);
}

Result<GpuMoeRanks::Tensor> GpuMoeRanks::output(int rank, const MoeOnGpu& operands,
                                                std::int64_t tokens) const {
  Tensor y(static_cast<std::size_t>(shape_.max_tokens * shape_.n));
  MK_RETURN_IF_ERROR(copy(y.data(), operands.y.get(), y.size() * sizeof(y[0]), stream(rank).get()));
  MK_RETURN_IF_ERROR(stream(rank).synchronize());
  const auto end = y.begin() + static_cast<std::ptrdiff_t>(tokens * shape_.n);
  const std::ptrdiff_t written = std::count_if(end, y.end(), [](auto bits) { return bits != kUntouched; });
  if (written > 0) {
    return Status(StatusCode::kDataLoss, std::to_string(written) + " elements are written beyond the tokens");
  }
  y.erase(end, y.end());
  return y;
}

Result<GpuMoeRanks::Tensor> GpuMoeRanks::verified(int rank, const MoeOnGpu& operands,
                                                  const MoeInput& input) const {
  auto y = output(rank, operands, input.tokens);
  if (!y.ok()) return y;
  const std::size_t wrong = wrong_elements(shape_, weights_, input, *y);
  if (wrong == 0) return y;
  return Status(StatusCode::kDataLoss,
                std::to_string(wrong) + " of " + std::to_string(y->size()) + " elements wrong");
}

std::vector<GpuMoeRanks::Tensor> GpuMoeRanks::run_checked(const std::vector<MoeInput>& inputs) {
  CAPTURE(operation(0).signature());
  std::vector<Tensor> y(inputs.size());
  std::vector<std::uint64_t> sent;
  for (std::uint32_t rank = 0; rank < inputs.size(); ++rank)
    sent.push_back(world_->fabric().wire_bytes(rank));
  // All launches are over before anything that may wait for a whole device.
  require_ok(each([&](int rank) -> Status {
    const MoeInput& input = inputs[static_cast<std::size_t>(rank)];
    MK_RETURN_IF_ERROR(fill(rank, input, operands(rank)));
    return run(rank, input.tokens);
  }));
  require_ok(each([&](int rank) -> Status {
    auto checked = verified(rank, operands(rank), inputs[static_cast<std::size_t>(rank)]);
    if (checked.ok()) y[static_cast<std::size_t>(rank)] = std::move(*checked);
    return checked.status();
  }));
  for (std::uint32_t rank = 0; rank < inputs.size(); ++rank) {
    const MoeOperation& mine = operation(static_cast<int>(rank));
    CHECK_FALSE(mine.refused());
    CHECK(mine.wire_bytes() == world_->fabric().wire_bytes(rank) - sent[rank]);
  }
  CHECK(world_->fabric().error() == "");
  return y;
}

void GpuMoeRanks::run_refused(const std::vector<MoeInput>& inputs, StatusCode code, const std::string& text) {
  CAPTURE(text);
  std::vector<Status> said(inputs.size());
  require_ok(each([&](int rank) -> Status {
    const MoeInput& input = inputs[static_cast<std::size_t>(rank)];
    MK_RETURN_IF_ERROR(fill(rank, input, operands(rank)));
    said[static_cast<std::size_t>(rank)] = run(rank, input.tokens);
    return {};
  }));
  for (int rank = 0; rank < size(); ++rank) {
    CHECK(said[static_cast<std::size_t>(rank)].to_string() == Status(code, text).to_string());
    CHECK(operation(rank).refused());
  }
  // As if there were no tokens: nothing of y is written.
  require_ok(each([&](int rank) { return output(rank, operands(rank), 0).status(); }));
  // It was told, and it is over.
  for (int rank = 0; rank < size(); ++rank) {
    CHECK(operation(rank).status().to_string() == "OK");
    CHECK_FALSE(operation(rank).refused());
  }
  CHECK(world_->fabric().error() == "");
}

}  // namespace mkernel::test
