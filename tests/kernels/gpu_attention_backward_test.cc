// The backward pass of attention of a rank alone on the cuda executor: random inputs, poisoned outputs, every
// element against fp64, launches queued and replayed by graphs, the same bits every time.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/launch/operation.h"
#include "kernels/cuda/memory/buffer.h"
#include "kernels/cuda/memory/error.h"
#include "kernels/ops/make.h"
#include "tests/support/attention_backward_reference.h"
#include "tests/support/gpu_world.h"
#include "tests/support/require.h"
#include "tools/mkbench/gpu_matrix.h"
#include "tools/mkbench/gpu_stream.h"

namespace mkernel::test {
namespace {

using namespace std::chrono_literals;

constexpr ExecutorOptions kOptions{.deadline = 10s};

/// A copy on the GPU.
template <class Element>
kernels::DeviceBuffer on_gpu(const std::vector<Element>& tensor) {
  return require(kernels::DeviceBuffer::holding(tensor, "an operand"));
}

/// An operation of a rank alone, bound, with operands on the GPU.
class BackwardRank {
 public:
  BackwardRank(const AttentionShape& shape, AttentionBackwardTensors tensors,
               const kernels::AttentionOptions& options = {})
      : shape_(shape),
        tensors_(std::move(tensors)),
        world_(require(GpuWorld::make(1))),
        operation_(require(kernels::make_cuda_attention_backward(shape, {1, 1}, 0, options))),
        stream_(require(bench::GpuStream::create())),
        q_(on_gpu(tensors_.forward.q)),
        k_(on_gpu(tensors_.forward.k)),
        v_(on_gpu(tensors_.forward.v)),
        out_(on_gpu(tensors_.out)),
        d_out_(on_gpu(tensors_.d_out)),
        lse_(on_gpu(tensors_.lse)) {
    require_ok(operation_->bind(world_->group(0), {}, {}, 1));
    poison();
  }
  BackwardRank(const AttentionShape& shape, std::uint64_t seed)
      : BackwardRank(shape, random_attention_backward(shape, seed, 2)) {}

  kernels::CudaAttentionBackwardOperation& operation() { return *operation_; }
  const bench::GpuStream& stream() const { return stream_; }
  AttentionBackwardArguments arguments() const {
    return {.q = q_.get(),
            .k = k_.get(),
            .v = v_.get(),
            .out = out_.get(),
            .d_out = d_out_.get(),
            .lse = static_cast<const float*>(lse_.get()),
            .d_q = d_q_.get(),
            .d_k = d_k_.get(),
            .d_v = d_v_.get()};
  }
  void poison() {
    const AttentionGradients poisoned = poisoned_gradients(shape_);
    d_q_ = on_gpu(poisoned.d_q);
    d_k_ = on_gpu(poisoned.d_k);
    d_v_ = on_gpu(poisoned.d_v);
  }

  Status enqueue() { return operation_->enqueue(arguments(), kOptions, stream_.get()); }
  AttentionGradients gradients() const {
    require_ok(stream_.synchronize());
    AttentionGradients read = poisoned_gradients(shape_);
    const auto copy = [](const kernels::DeviceBuffer& from, std::vector<std::uint16_t>& to) {
      require_ok(from.read(to.data(), to.size() * 2));
    };
    copy(d_q_, read.d_q);
    copy(d_k_, read.d_k);
    copy(d_v_, read.d_v);
    return read;
  }
  void verify() const { CHECK(wrong_gradients(shape_, tensors_, gradients(), Weights::kRounded) == 0); }
  void run_checked() {
    require_ok(operation_->run(arguments(), kOptions));
    verify();
  }

 private:
  const AttentionShape shape_;
  const AttentionBackwardTensors tensors_;
  std::unique_ptr<GpuWorld> world_;
  std::unique_ptr<kernels::CudaAttentionBackwardOperation> operation_;
  bench::GpuStream stream_;
  kernels::DeviceBuffer q_, k_, v_, out_, d_out_, lse_, d_q_, d_k_, d_v_;
};

/// Every size of heads, mask and type.
void check_all(const AttentionShape& of) {
  for_every_attention(of, [](const AttentionShape& shape) {
    BackwardRank rank(shape, 1);
    CAPTURE(rank.operation().signature());
    rank.run_checked();
  });
}

constexpr AttentionShape kSmall{.batch = 2, .sequence = 200, .heads = 4, .kv_heads = 2, .head_dim = 64};

/// Large, with inputs that no reference has seen: for tests that compare launches.
AttentionBackwardTensors unchecked_tensors(const AttentionShape& shape) {
  AttentionShape one_key = shape;  // so that the reference is quick
  one_key.keys = 1;
  one_key.causal = false;
  AttentionBackwardTensors tensors = random_attention_backward(one_key, 1);
  tensors.forward = random_attention(shape, 1);
  return tensors;
}

}  // namespace

TEST_CASE("attention backward: a shape small enough for tools that watch every access") {
  if (!peers_or_skip(1)) return;
  check_all(kSmall);
}

TEST_CASE("attention backward: sequences of every length, heads that share keys") {
  if (!peers_or_skip(1)) return;
  for (const std::int64_t sequence : {1, 7, 64, 65, 128, 129, 500}) {
    check_all({.batch = 2, .sequence = sequence, .heads = 4, .kv_heads = 4});
    check_all({.batch = 1, .sequence = sequence, .heads = 6, .kv_heads = 2});
  }
  check_all({.batch = 1, .sequence = 1300, .heads = 1, .kv_heads = 1});
}

TEST_CASE("attention backward: keys and queries of different lengths, a mask at every border of a tile") {
  if (!peers_or_skip(1)) return;
  for (const std::int64_t keys : {1, 63, 64, 65, 127, 128, 129, 257}) {
    for (const std::int64_t queries : {1, 65, 300})
      check_all({.batch = 2, .sequence = queries, .heads = 2, .kv_heads = 1, .keys = keys});
  }
}

TEST_CASE("attention backward: large scores overflow nowhere") {
  if (!peers_or_skip(1)) return;
  check_all({.batch = 1, .sequence = 300, .heads = 2, .kv_heads = 2, .scale = 4});
}

TEST_CASE("attention backward: captured in a graph and replayed, and the same bits every time") {
  if (!peers_or_skip(1)) return;
  for (const bool causal : {false, true}) {
    const AttentionShape shape{
        .batch = 2, .sequence = 4100, .heads = 12, .kv_heads = 6, .head_dim = 128, .causal = causal};
    BackwardRank rank(shape, unchecked_tensors(shape));
    require_ok(rank.enqueue());
    const AttentionGradients first = rank.gradients();
    rank.poison();
    const auto graph = require(bench::GpuGraph::capture(rank.stream(), [&] { return rank.enqueue(); }));
    for (int replay = 0; replay < 50; ++replay) {
      require_ok(graph.launch(rank.stream()));
      if (replay % 10 == 0) CHECK(rank.gradients() == first);
    }
    CHECK(rank.gradients() == first);
    require_ok(rank.operation().status());
  }
}

TEST_CASE("attention backward: few multiprocessors compute the same bits as all of them") {
  if (!peers_or_skip(1)) return;
  const AttentionShape shape{
      .batch = 1, .sequence = 1000, .heads = 2, .kv_heads = 2, .head_dim = 64, .causal = true};
  const AttentionBackwardTensors tensors = random_attention_backward(shape, 1, 2);
  BackwardRank all(shape, tensors), few(shape, tensors, {.sms = 5});
  all.run_checked();
  few.run_checked();
  CHECK(all.gradients() == few.gradients());
}

TEST_CASE("attention backward: operands and shapes that the kernel does not take are refused by name") {
  if (!peers_or_skip(1)) return;
  BackwardRank rank(kSmall, 1);
  AttentionBackwardArguments bad = rank.arguments();
  bad.d_k = static_cast<std::byte*>(bad.d_k) + 8;
  CHECK(rank.operation().enqueue(bad, kOptions, rank.stream().get()).to_string() ==
        "INVALID_ARGUMENT: attention_backward: matrix d_k: address modulo 16 is 8, must be 0");
  rank.run_checked();
  AttentionShape shape = kSmall;
  shape.head_dim = 96;
  CHECK(kernels::make_cuda_attention_backward(shape, {1, 1}, 0).status().to_string() ==
        "INVALID_ARGUMENT: attention_backward: head_dim = 96, but it must be 64 or 128 on the cuda executor");
}

}  // namespace mkernel::test
