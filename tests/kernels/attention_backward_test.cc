// The backward pass of attention of a rank alone on the cpu executor: every element against fp64, shapes and
// operands that are refused.
#include <doctest/doctest.h>

#include <string>
#include <utility>

#include "kernels/ops/make.h"
#include "mkernel/ops.h"
#include "tests/support/attention_backward_reference.h"
#include "tests/support/attention_cases.h"
#include "tests/support/fake_fabric.h"
#include "tests/support/require.h"

namespace mkernel::test {
namespace {

/// The gradients, of so many threads. Every `step`-th row of them is looked at.
AttentionGradients check_backward(const AttentionShape& shape, const AttentionBackwardTensors& tensors,
                                  int threads, std::int64_t step = 1) {
  FakeFabric fabric({});
  const auto operation =
      require(kernels::make_attention_backward(OpKind::kAttentionBackward, shape, fabric.group(0)));
  CAPTURE(operation->signature());
  require_ok(operation->bind(fabric.group(0), {}, {}, 0));
  AttentionGradients gradients = poisoned_gradients(shape);
  require_ok(operation->run(backward_arguments(tensors, gradients), {.compute_threads = threads}));
  CHECK(wrong_gradients(shape, tensors, gradients, Weights::kFp32, step) == 0);
  return gradients;
}

/// Random operands, and what attention of the same executor makes of them.
AttentionBackwardTensors tensors_of_forward(const AttentionShape& shape, float scale) {
  FakeFabric fabric({});
  const auto forward = require(kernels::make_attention(OpKind::kAttention, shape, fabric.group(0)));
  require_ok(forward->bind(fabric.group(0), {}, {}, 0));
  AttentionBackwardTensors made = random_attention_gradients(shape, 1, scale);
  const AttentionTensors& of = made.forward;
  require_ok(forward->run({of.q.data(), of.k.data(), of.v.data(), made.out.data(), made.lse.data()}, {}));
  return made;
}

constexpr AttentionShape kBackwardShape{
    .batch = 2, .sequence = 150, .heads = 6, .kv_heads = 2, .head_dim = 40};

}  // namespace

TEST_CASE(
    "attention backward: both masks and types, any number of threads, queries and keys of different "
    "lengths") {
  for (const std::int64_t keys : {0, 1, 90, 300}) {
    for (const bool causal : {false, true}) {
      AttentionShape shape = kBackwardShape;
      shape.keys = keys;
      shape.causal = causal;
      shape.dtype = causal ? DataType::kF16 : DataType::kBf16;
      const AttentionBackwardTensors tensors = random_attention_backward(shape, 1, 2);
      CHECK(check_backward(shape, tensors, 1) == check_backward(shape, tensors, 3));
    }
  }
}

TEST_CASE("attention backward: sliding windows, with queries and keys of different lengths") {
  for (const auto& [left, right] : {std::pair{0, 0}, {3, 0}, {0, 9}, {-1, 40}, {127, -1}, {500, 600}}) {
    for (const std::int64_t keys : {90, 300}) {
      AttentionShape shape = kBackwardShape;
      shape.keys = keys;
      shape.causal = left == 3;
      shape.window_left = left;
      shape.window_right = right;
      const AttentionBackwardTensors tensors = random_attention_backward(shape, 1, 2);
      CHECK(check_backward(shape, tensors, 1) == check_backward(shape, tensors, 3));
    }
  }
}

TEST_CASE("attention backward: the cases of both executors") {
  for_every_attention_case(4096, [](const AttentionShape& shape, float scale) {
    const std::int64_t rows = shape.batch * shape.heads * shape.sequence;
    check_backward(shape, tensors_of_forward(shape, scale), 2, sampling_step(rows, 8));
  });
}

TEST_CASE("attention backward: shapes and operands that no launch can take are refused by name") {
  FakeFabric fabric({});
  const auto refusal = [&](const AttentionShape& shape, const kernels::MakeOptions& options = {}) {
    return kernels::make_attention_backward(OpKind::kAttentionBackward, shape, fabric.group(0), options)
        .status()
        .to_string();
  };
  const std::string begin = "INVALID_ARGUMENT: attention_backward: ";
  AttentionShape shape = kBackwardShape;
  shape.head_dim = 0;
  CHECK(refusal(shape) == begin + "head_dim = 0, but it must be 1..4096");
  CHECK(refusal(kBackwardShape, {.plan = {.sms = 4}}) ==
        begin + "the cpu executor has no GemmPlanOptions to override");
  CHECK(refusal(kBackwardShape, {.executor = Executor::kCuda, .plan = {.comm_ctas = 4}}) ==
        begin + "comm_ctas and nic_gbytes must be 0: it does not communicate");
  shape = kBackwardShape;
  shape.window_left = -2;
  CHECK(refusal(shape) == begin + "window_left = -2, but it must be -1..2147483648");

  const auto operation =
      require(kernels::make_attention_backward(OpKind::kAttentionBackward, kBackwardShape, fabric.group(0)));
  require_ok(operation->bind(fabric.group(0), {}, {}, 0));
  const AttentionBackwardTensors tensors = random_attention_backward(kBackwardShape, 1);
  AttentionGradients gradients = poisoned_gradients(kBackwardShape);
  AttentionBackwardArguments arguments = backward_arguments(tensors, gradients);
  arguments.lse = nullptr;
  CHECK(operation->run(arguments, {}).text() ==
        "attention_backward: lse is null, but the backward pass needs every operand");
}

}  // namespace mkernel::test
