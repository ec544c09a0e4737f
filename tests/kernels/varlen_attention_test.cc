// Attention of sequences of different lengths, its backward pass, and sliding windows, on the cpu executor:
// every element against fp64, lengths and shapes that are refused.
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ops/make.h"
#include "mkernel/ops.h"
#include "tests/support/fake_fabric.h"
#include "tests/support/random_tensor.h"
#include "tests/support/require.h"
#include "tests/support/varlen_backward_reference.h"
#include "tests/support/varlen_reference.h"

namespace mkernel::test {
namespace {

constexpr AttentionShape kRagged{.batch = 1,
                                 .sequence = 760,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .head_dim = 40,
                                 .keys = 1030,
                                 .max_sequences = 11};

/// An operation of a rank alone, with its operands.
class Varlen {
 public:
  explicit Varlen(const AttentionShape& shape)
      : shape_(shape),
        tensors_(random_attention(shape, 1, 2)),
        operation_(require(kernels::make_attention(OpKind::kAttention, shape, fabric_.group(0)))) {
    require_ok(operation_->bind(fabric_.group(0), {}, {}, 0));
  }

  AttentionOperation& operation() { return *operation_; }
  AttentionArguments arguments(const SequenceLengths& lengths) {
    return {tensors_.q.data(), tensors_.k.data(), tensors_.v.data(), out_.data(),
            lse_.data(),       lengths.q.data(),  lengths.k.data()};
  }
  Status run(const SequenceLengths& lengths, int threads = 2) {
    out_ = poisoned_output(shape_);
    lse_ = poisoned_lse(shape_);
    return operation_->run(arguments(lengths), {.compute_threads = threads});
  }
  const std::vector<std::uint16_t>& check(const SequenceLengths& lengths, int threads) {
    CAPTURE(operation_->signature());
    require_ok(run(lengths, threads));
    CHECK(wrong_varlen(shape_, lengths, tensors_, out_, lse_, Weights::kFp32) == 0);
    return out_;
  }

 private:
  const AttentionShape shape_;
  const AttentionTensors tensors_;
  std::vector<std::uint16_t> out_;
  std::vector<float> lse_;
  FakeFabric fabric_{{}};
  const std::unique_ptr<AttentionOperation> operation_;
};

/// The backward pass of a rank alone, with operands of these lengths.
class VarlenBackward {
 public:
  VarlenBackward(const AttentionShape& shape, const SequenceLengths& lengths)
      : shape_(shape),
        tensors_(random_varlen_backward(shape, lengths, 1, 2)),
        operation_(
            require(kernels::make_attention_backward(OpKind::kAttentionBackward, shape, fabric_.group(0)))) {
    require_ok(operation_->bind(fabric_.group(0), {}, {}, 0));
  }

  AttentionBackwardOperation& operation() { return *operation_; }
  AttentionBackwardArguments arguments(const SequenceLengths& lengths) {
    AttentionBackwardArguments made = backward_arguments(tensors_, gradients_);
    made.cu_seqlens_q = lengths.q.data();
    made.cu_seqlens_k = lengths.k.data();
    return made;
  }
  Status run(const SequenceLengths& lengths, int threads = 2) {
    gradients_ = poisoned_gradients(shape_);
    return operation_->run(arguments(lengths), {.compute_threads = threads});
  }
  const AttentionGradients& check(const SequenceLengths& lengths, int threads) {
    CAPTURE(operation_->signature());
    require_ok(run(lengths, threads));
    CHECK(wrong_varlen_gradients(shape_, lengths, tensors_, gradients_, Weights::kFp32) == 0);
    return gradients_;
  }
  bool nothing_is_written() const { return gradients_ == poisoned_gradients(shape_); }

 private:
  const AttentionShape shape_;
  const AttentionBackwardTensors tensors_;
  AttentionGradients gradients_;
  FakeFabric fabric_{{}};
  const std::unique_ptr<AttentionBackwardOperation> operation_;
};

}  // namespace

TEST_CASE("varlen attention: ragged sequences, both masks and types, launches with other lengths") {
  for (const bool causal : {false, true}) {
    AttentionShape shape = kRagged;
    shape.causal = causal;
    shape.dtype = causal ? DataType::kF16 : DataType::kBf16;
    Varlen rank(shape);
    const auto first = rank.check(ragged_lengths(11), 1);
    rank.check(sequence_lengths({760}, {1030}, 11), 2);
    rank.check(sequence_lengths({}, {}, 11), 2);
    CHECK(rank.check(ragged_lengths(11), 3) == first);
  }
}

TEST_CASE("varlen attention: sliding windows") {
  for (const auto& [left, right] :
       {std::pair{0, 0}, {0, -1}, {-1, 3}, {127, 0}, {128, 0}, {100, 70}, {300, 5}}) {
    AttentionShape shape = kRagged;
    shape.window_left = left;
    shape.window_right = right;
    Varlen(shape).check(ragged_lengths(11), 2);
  }
}

TEST_CASE("varlen attention: a launch with bad lengths is refused by name, and the next one comes") {
  Varlen rank(kRagged);
  SequenceLengths bad = ragged_lengths(11);
  bad.k[4] = 178;
  CHECK(rank.run(bad).to_string() ==
        "INVALID_ARGUMENT: attention: cu_seqlens_k[4] = 178, but it must be 179..1030");
  CHECK(rank.operation().refused());
  rank.check(ragged_lengths(11), 2);
  CHECK_FALSE(rank.operation().refused());
  AttentionArguments none = rank.arguments(bad);
  none.cu_seqlens_q = nullptr;
  CHECK(rank.operation().run(none, {}).text() == "attention: cu_seqlens_q is null, but max_sequences = 11");
}

TEST_CASE("varlen attention: shapes that no launch can take are refused by name") {
  FakeFabric fabric({});
  const auto refusal = [&](AttentionShape shape, OpKind kind = OpKind::kAttention) {
    return kernels::make_attention(kind, shape, fabric.group(0)).status().text();
  };
  AttentionShape shape = kRagged;
  shape.max_sequences = 1025;
  CHECK(refusal(shape) == "attention: max_sequences = 1025, but it must be 0..1024");
  shape = kRagged;
  shape.batch = 2;
  CHECK(refusal(shape) == "attention: batch = 2, but it must be 1 with max_sequences");
  shape = kRagged;
  shape.window_left = -2;
  CHECK(refusal(shape) == "attention: window_left = -2, but it must be -1..2147483648");
  shape = kRagged;
  shape.causal = true;
  shape.window_right = 4;
  CHECK(refusal(shape) == "attention: window_right = 4, but it must be -1 or 0 with causal");
  shape = kRagged;
  shape.keys = 0;
  shape.max_sequences = 0;
  shape.window_left = 5;
  CHECK(refusal(shape, OpKind::kRingAttention) == "ring_attention: window_left = 5, but it must be -1");
}

TEST_CASE("varlen attention backward: ragged sequences, both masks and types, any number of threads") {
  for (const bool causal : {false, true}) {
    AttentionShape shape = kRagged;
    shape.causal = causal;
    shape.dtype = causal ? DataType::kF16 : DataType::kBf16;
    const SequenceLengths lengths = ragged_lengths(11);
    VarlenBackward rank(shape, lengths);
    const AttentionGradients first = rank.check(lengths, 1);
    rank.check(sequence_lengths({}, {1, 0, 700}, 11), 2);  // keys alone: zeros
    require_ok(rank.run(sequence_lengths({}, {}, 11)));
    CHECK(rank.nothing_is_written());
    CHECK(rank.check(lengths, 3) == first);
  }
}

TEST_CASE("varlen attention backward: sliding windows") {
  for (const auto& [left, right] :
       {std::pair{0, 0}, {0, -1}, {-1, 3}, {127, 0}, {128, 0}, {100, 70}, {300, 5}, {2000, 2000}}) {
    AttentionShape shape = kRagged;
    shape.causal = left == 127;
    shape.window_left = left;
    shape.window_right = right;
    const SequenceLengths lengths = ragged_lengths(11);
    VarlenBackward rank(shape, lengths);
    const AttentionGradients first = rank.check(lengths, 1);
    CHECK(rank.check(lengths, 3) == first);
  }
}

TEST_CASE("varlen attention backward: bad lengths are refused by name, and the next launch comes") {
  const SequenceLengths good = ragged_lengths(11);
  VarlenBackward rank(kRagged, good);
  SequenceLengths bad = good;
  bad.q[3] = 4;
  CHECK(rank.run(bad).to_string() ==
        "INVALID_ARGUMENT: attention_backward: cu_seqlens_q[3] = 4, but it must be 5..760");
  CHECK(rank.operation().refused());
  CHECK(rank.nothing_is_written());
  rank.check(good, 2);
  CHECK_FALSE(rank.operation().refused());
  AttentionBackwardArguments none = rank.arguments(good);
  none.cu_seqlens_k = nullptr;
  CHECK(rank.operation().run(none, {}).text() ==
        "attention_backward: cu_seqlens_k is null, but max_sequences = 11");

  FakeFabric fabric({});
  const auto refusal = [&](const AttentionShape& shape, OpKind kind) {
    return kernels::make_attention_backward(kind, shape, fabric.group(0)).status().text();
  };
  AttentionShape shape = kRagged;
  shape.causal = true;
  shape.window_right = 7;
  CHECK(refusal(shape, OpKind::kAttentionBackward) ==
        "attention_backward: window_right = 7, but it must be -1 or 0 with causal");
  shape = kRagged;
  shape.keys = 0;
  CHECK(refusal(shape, OpKind::kRingAttentionBackward) ==
        "ring_attention_backward: max_sequences = 11, but it must be 0");
}

}  // namespace mkernel::test
