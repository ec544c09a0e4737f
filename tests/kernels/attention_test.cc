// Attention of a rank alone on the cpu executor: every element against fp64, shapes that are refused.
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "kernels/ops/make.h"
#include "mkernel/ops.h"
#include "tests/support/attention_cases.h"
#include "tests/support/attention_reference.h"
#include "tests/support/fake_fabric.h"
#include "tests/support/require.h"

namespace mkernel::test {
namespace {

/// The outputs, of so many threads. Every `step`-th row of them is looked at.
std::vector<std::uint16_t> check(const AttentionShape& shape, int threads, float scale = 2,
                                 std::int64_t step = 1) {
  FakeFabric fabric({});
  const auto operation = require(kernels::make_attention(OpKind::kAttention, shape, fabric.group(0)));
  CAPTURE(operation->signature());
  require_ok(operation->bind(fabric.group(0), {}, {}, 0));
  const AttentionTensors tensors = random_attention(shape, 1, scale);
  auto out = poisoned_output(shape);
  auto lse = poisoned_lse(shape);
  require_ok(operation->run({tensors.q.data(), tensors.k.data(), tensors.v.data(), out.data(), lse.data()},
                            {.compute_threads = threads}));
  CHECK(wrong_attention(shape, tensors, out, lse, Weights::kFp32, step) == 0);
  return out;
}

constexpr AttentionShape kShape{.batch = 2, .sequence = 150, .heads = 6, .kv_heads = 2, .head_dim = 40};

}  // namespace

TEST_CASE("attention: both masks and types, any number of threads, queries and keys of different lengths") {
  for (const std::int64_t keys : {0, 1, 90, 300}) {
    for (const bool causal : {false, true}) {
      AttentionShape shape = kShape;
      shape.keys = keys;
      shape.causal = causal;
      shape.dtype = causal ? DataType::kF16 : DataType::kBf16;
      CHECK(check(shape, 1) == check(shape, 3));
    }
  }
}

TEST_CASE("attention: the cases of both executors") {
  for_every_attention_case(4096, [](const AttentionShape& shape, float scale) {
    check(shape, 2, scale, sampling_step(shape.batch * shape.heads * shape.sequence, 16));
  });
}

TEST_CASE("attention: a long sequence" * doctest::skip()) {  // tests/kernels/CMakeLists.txt
  AttentionShape shape = kLongAttention;
  shape.sequence = 66003;  // half of the time; pairs of positions do not fit 32 bits either
  check(shape, 0, 2, sampling_step(shape.sequence, 256));
}

TEST_CASE("attention: shapes and operands that no launch can take are refused by name") {
  FakeFabric fabric({});
  const auto refusal = [&](const AttentionShape& shape, const kernels::MakeOptions& options = {}) {
    return kernels::make_attention(OpKind::kAttention, shape, fabric.group(0), options).status().to_string();
  };
  const std::string begin = "INVALID_ARGUMENT: attention: ";
  AttentionShape shape = kShape;
  shape.keys = -1;
  CHECK(refusal(shape) == begin + "keys = -1, but it must be 0..1073741824");
  shape = kShape;
  shape.kv_heads = 4;
  CHECK(refusal(shape) == begin + "heads = 6, but it must be a multiple of kv_heads = 4");
  shape = kShape;
  shape.batch = 1 << 29;
  CHECK(refusal(shape).find("batch * sequence") != std::string::npos);
  CHECK(refusal(kShape, {.plan = {.sms = 4}}) ==
        begin + "the cpu executor has no GemmPlanOptions to override");
  CHECK(refusal(kShape, {.executor = Executor::kCuda, .plan = {.comm_ctas = 4}}) ==
        begin + "comm_ctas and nic_gbytes must be 0: it does not communicate");
  CHECK(refusal(kShape, {.executor = Executor::kCuda, .plan = {.link_gbytes = 1}}) ==
        begin + "link_gbytes = 1.000000, must be 0: its kernels do not wait for such links");
  CHECK(kernels::make_attention(OpKind::kGemmAr, kShape, fabric.group(0)).status().text() ==
        "make_attention: kind is gemm_ar, must be ring_attention or attention");

  const auto operation = require(kernels::make_attention(OpKind::kAttention, kShape, fabric.group(0)));
  require_ok(operation->bind(fabric.group(0), {}, {}, 0));
  CHECK(operation->run({}, {}).text() == "attention: q is null, but this rank holds 150 positions");
}

}  // namespace mkernel::test
