// The whole kernel of the backward pass of attention of sequences of different lengths on the host: its list
// of tasks, tiles that end with their sequence, keys and queries that see nothing, sliding windows, and
// lengths that are refused.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ops/ring_attention/attention_backward/plan.h"
#include "kernels/ops/ring_attention/attention_backward/varlen_roles.cuh"
#include "kernels/ops/ring_attention/with_config.h"
#include "tests/support/on_host/cuda_names.h"
#include "tests/support/on_host/sm90.h"
#include "tests/support/random_tensor.h"
#include "tests/support/require.h"
#include "tests/support/varlen_backward_reference.h"
#include "tests/unit/kernels/roles/play_launch.h"

namespace mkernel::test {
namespace {

using namespace mkernel::kernels;

/// A rank alone.
class HostVarlenBackward {
 public:
  HostVarlenBackward(const AttentionShape& shape, AttentionBackwardTensors tensors, std::uint32_t ctas = 3)
      : plan_(require(AttentionBackwardPlan::make(shape))),
        tensors_(std::move(tensors)),
        ctas_(ctas),
        memory_(static_cast<std::size_t>(varlen_backward_bytes(plan_)) / sizeof(Line)),
        scratch_(std::make_unique<std::byte[]>(
            Scratch::bytes(static_cast<std::int32_t>(ctas), plan_.lengths({}).sequences))),
        p_(varlen_backward_parameters(plan_, memory_.data(), scratch())) {
    require_ok(plan_.check_on_gpu());
    p_.q = host_tensor_map(varlen_backward_q_view(plan_, tensors_.forward.q.data()));
    p_.d_out = host_tensor_map(varlen_backward_q_view(plan_, tensors_.d_out.data()));
    p_.k = host_tensor_map(varlen_backward_k_view(plan_, tensors_.forward.k.data()));
    p_.v = host_tensor_map(varlen_backward_k_view(plan_, tensors_.forward.v.data()));
    p_.row_map = host_packed_map(backward_rows_view(p_));
    p_.out = tensors_.out.data();
    p_.d_out_rows = tensors_.d_out.data();
    p_.lse = tensors_.lse.data();
    p_.preparing = static_cast<std::int32_t>(ctas_);
    p_.endpoint.control = control_.get();
    p_.endpoint.host = {&aborted_, nullptr};
    p_.endpoint.deadline_ns = kHostPatienceNs;
    // Whoever adds before the first one has stored adds to no number.
    const auto tiles = static_cast<std::ptrdiff_t>(p_.all_heads * p_.query_tiles);
    std::fill_n(p_.sums, tiles * kBackwardTileQueries * shape.head_dim,
                std::numeric_limits<float>::quiet_NaN());
  }

  const AttentionBackwardPlan& plan() const { return plan_; }
  const AttentionGradients& gradients() const { return gradients_; }
  /// What CTA 2 has made.
  const AttentionBackwardSlot* slots() const { return scratch()->slots(2, p_.lengths.sequences); }

  void check(const SequenceLengths& lengths) {
    launch(lengths);
    CHECK(refusal().empty());
    CHECK(wrong_varlen_gradients(plan_.shape, lengths, tensors_, gradients_, Weights::kRounded) == 0);
  }
  /// Of sequences of one length.
  void check() {
    launch(nullptr, nullptr);
    CHECK(wrong_gradients(plan_.shape, tensors_, gradients_, Weights::kRounded) == 0);
  }
  void launch(const SequenceLengths& lengths, int at_a_time = 1) {
    launch(lengths.q.data(), lengths.k.data(), at_a_time);
  }
  /// Why the last launch was refused; empty: it was not.
  std::string refusal() const {
    const VarlenRefusal& last = scratch()->refusal;
    return last.launch == control_->epoch ? plan_.refuse(last.why).text() : std::string();
  }

 private:
  using Scratch = VarlenScratch<AttentionBackwardSlot>;
  struct alignas(128) Line {
    float values[32];
  };

  Scratch* scratch() const { return reinterpret_cast<Scratch*>(scratch_.get()); }

  void launch(const std::int32_t* cu_seqlens_q, const std::int32_t* cu_seqlens_k, int at_a_time = 1) {
    if (at_a_time == 2) p_.endpoint.deadline_ns = kHostTwoLaunchesNs;
    gradients_ = poisoned_gradients(plan_.shape);
    p_.d_q = gradients_.d_q.data();
    p_.d_rows[0] = gradients_.d_k.data();
    p_.d_rows[1] = gradients_.d_v.data();
    p_.d_k = host_tensor_map(varlen_backward_d_k_view(plan_, gradients_.d_k.data()));
    p_.d_v = host_tensor_map(varlen_backward_d_k_view(plan_, gradients_.d_v.data()));
    p_.lengths = plan_.lengths({.cu_seqlens_q = cu_seqlens_q, .cu_seqlens_k = cu_seqlens_k});
    HostGrid grid;
    if (has_attention_window(plan_.shape)) {
      with_attention_heads(plan_.shape, [&]<int kHeadDim, DataType kType>() {
        for (int i = 0; i < at_a_time; ++i) add<AttentionBackwardWindowConfig<kHeadDim, kType>>(grid);
      });
    } else {
      with_attention_config(plan_.shape, [&]<int kHeadDim, bool kCausal, DataType kType>() {
        for (int i = 0; i < at_a_time; ++i) add<AttentionBackwardConfig<kHeadDim, kCausal, kType>>(grid);
      });
    }
    play_launch(grid, *control_, at_a_time);
  }

  template <class Config>
  void add(HostGrid& grid) {
    for (std::uint32_t cta = 0; cta < ctas_; ++cta) {
      grid.add_cluster(cta, Config::kCluster, ctas_, Config::kThreads,
                       alone_shared_bytes<AttentionBackwardShared<Config>>(), [this] {
                         const HostThread& self = host_thread();
                         varlen_backward_cta<Config>(p_, self.cluster_shared[self.cluster_rank]);
                       });
    }
  }

  const AttentionBackwardPlan plan_;
  const AttentionBackwardTensors tensors_;
  const std::uint32_t ctas_;
  std::vector<Line> memory_;
  const std::unique_ptr<std::byte[]> scratch_;
  AttentionGradients gradients_;
  const std::unique_ptr<LaunchControl> control_ = std::make_unique<LaunchControl>();
  std::uint32_t aborted_ = 0;
  VarlenBackwardParameters p_;
};

/// Room for a little more than the ragged lengths.
constexpr AttentionShape kRagged{.batch = 1,
                                 .sequence = 760,
                                 .heads = 2,
                                 .kv_heads = 1,
                                 .head_dim = 64,
                                 .keys = 1030,
                                 .max_sequences = 11};

/// What a launch with these lengths is given.
HostVarlenBackward make(const AttentionShape& shape, const SequenceLengths& lengths, std::uint32_t ctas = 3) {
  return {shape, random_varlen_backward(shape, lengths, 1, 2), ctas};
}

}  // namespace

TEST_CASE("varlen backward kernel: ragged sequences of every size of heads, mask and type") {
  for_every_attention(kRagged, [](AttentionShape shape) {
    shape.heads = shape.causal ? 2 : 1;
    CAPTURE(shape.head_dim);
    CAPTURE(shape.causal);
    const SequenceLengths lengths = ragged_lengths(shape.max_sequences);
    make(shape, lengths).check(lengths);
  });
}

TEST_CASE("varlen backward kernel: several heads of keys, in sections") {
  for (const bool causal : {false, true}) {
    AttentionShape shape = kRagged;
    shape.heads = 6;
    shape.kv_heads = 3;
    shape.causal = causal;
    const SequenceLengths lengths = ragged_lengths(shape.max_sequences);
    make(shape, lengths, 5).check(lengths);
  }
}

TEST_CASE("varlen backward kernel: sliding windows, left, right and both, with every border of a tile") {
  for (const auto& window : kBorderWindows) {
    AttentionShape shape = kRagged;
    shape.head_dim = window.first % 2 == 0 ? 64 : 128;
    shape.causal = window.first > 100 && window.second == 0;
    shape.window_left = window.first;
    shape.window_right = window.second;
    CAPTURE(shape.window_left);
    CAPTURE(shape.window_right);
    const SequenceLengths lengths = ragged_lengths(shape.max_sequences);
    make(shape, lengths).check(lengths);
  }
}

TEST_CASE("varlen backward kernel: windows of both types, heads in sections, long sequences and many CTAs") {
  for (const DataType type : {DataType::kBf16, DataType::kF16}) {
    AttentionShape shape = kRagged;
    shape.heads = 6;
    shape.kv_heads = 3;
    shape.causal = type == DataType::kF16;
    shape.window_left = 40;
    shape.dtype = type;
    const SequenceLengths lengths = sequence_lengths({310, 0, 450}, {530, 70, 430}, 11);
    HostVarlenBackward rank = make(shape, lengths, 7);
    rank.check(lengths);
    const AttentionGradients first = rank.gradients();
    rank.launch(lengths);
    CHECK(rank.gradients() == first);
    HostVarlenBackward few = make(shape, lengths, 3);
    few.launch(lengths);
    CHECK(few.gradients() == first);
  }
}

TEST_CASE("varlen backward kernel: a window of sequences of one length") {
  for (const std::int64_t keys : {70, 290, 420}) {
    const AttentionShape shape{.batch = 2,
                               .sequence = 290,
                               .heads = 2,
                               .kv_heads = 2,
                               .head_dim = 64,
                               .causal = keys != 290,
                               .keys = keys,
                               .window_left = keys == 290 ? 140 : 0,
                               .window_right = keys == 290 ? 9 : -1};
    HostVarlenBackward(shape, random_attention_backward(shape, 1, 2)).check();
  }
}

TEST_CASE("varlen backward kernel: no sequence reads another one's rows, nor those behind the last") {
  // What is no number has a weight of zero there, and would still spoil the sums.
  for (const bool causal : {false, true}) {
    AttentionShape shape = kRagged;
    shape.causal = causal;
    const SequenceLengths lengths = ragged_lengths(shape.max_sequences);
    const AttentionBackwardTensors good = random_varlen_backward(shape, lengths, 2, 2);
    HostVarlenBackward rank(shape, good);
    rank.check(lengths);
    AttentionBackwardTensors spoiled = good;
    const auto spoil = [](std::vector<std::uint16_t>& tensor, std::int64_t width, Range rows) {
      std::fill(tensor.begin() + rows.begin * width, tensor.begin() + rows.end * width, kPoison);
    };
    const std::int64_t q_width = shape.heads * shape.head_dim, kv_width = shape.kv_heads * shape.head_dim;
    for (const Range rows : {Range{lengths.q[4], lengths.q[5]}, Range{lengths.q.back(), shape.sequence}}) {
      for (auto* tensor : {&spoiled.forward.q, &spoiled.d_out, &spoiled.out}) spoil(*tensor, q_width, rows);
    }
    for (const Range rows : {Range{lengths.k[4], lengths.k[5]}, Range{lengths.k.back(), shape.keys}}) {
      for (auto* tensor : {&spoiled.forward.k, &spoiled.forward.v}) spoil(*tensor, kv_width, rows);
    }
    HostVarlenBackward other(shape, spoiled);
    other.launch(lengths);
    const auto same = [](const std::vector<std::uint16_t>& a, const std::vector<std::uint16_t>& b,
                         std::int64_t width, Range but) {
      return std::equal(a.begin(), a.begin() + but.begin * width, b.begin()) &&
             std::equal(a.begin() + but.end * width, a.end(), b.begin() + but.end * width);
    };
    const AttentionGradients &before = rank.gradients(), &after = other.gradients();
    CHECK(same(before.d_q, after.d_q, q_width, {lengths.q[4], lengths.q[5]}));
    CHECK(same(before.d_k, after.d_k, kv_width, {lengths.k[4], lengths.k[5]}));
    CHECK(same(before.d_v, after.d_v, kv_width, {lengths.k[4], lengths.k[5]}));
  }
}

TEST_CASE("varlen backward kernel: launches with other lengths, of the same bits for the same lengths") {
  AttentionShape shape = kRagged;
  shape.causal = true;
  const SequenceLengths ragged = ragged_lengths(11);
  HostVarlenBackward rank = make(shape, ragged);
  rank.check(ragged);
  const AttentionGradients first = rank.gradients();
  // Log-sum-exps are those of other lengths, so what comes out may be no number. It is what a rank gets that
  // had no launch before.
  const SequenceLengths whole = sequence_lengths({760}, {1030}, 11);
  rank.launch(whole);
  HostVarlenBackward fresh = make(shape, ragged);
  fresh.launch(whole);
  CHECK(rank.gradients() == fresh.gradients());
  CHECK_FALSE(rank.gradients() == poisoned_gradients(shape));
  rank.launch(sequence_lengths({}, {}, 11));
  CHECK(rank.gradients() == poisoned_gradients(shape));
  rank.check(sequence_lengths({0, 0, 0}, {1, 700, 329}, 11));  // keys alone: zeros
  rank.launch(ragged);
  CHECK(rank.gradients() == first);
  for (const std::uint32_t ctas : {1, 5}) {
    HostVarlenBackward other = make(shape, ragged, ctas);
    other.launch(ragged);
    CHECK(other.gradients() == first);
  }
}

TEST_CASE("varlen backward kernel: bad lengths are refused before anything is written, and the next come") {
  const SequenceLengths good = ragged_lengths(11);
  HostVarlenBackward rank = make(kRagged, good);
  rank.check(good);
  const AttentionGradients first = rank.gradients();
  const auto refuse = [&](bool keys, std::size_t index, std::int32_t value, const std::string& text) {
    SequenceLengths bad = good;
    (keys ? bad.k : bad.q)[index] = value;
    rank.launch(bad);
    CHECK(rank.refusal() == "attention_backward: " + text);
    CHECK(rank.gradients() == poisoned_gradients(kRagged));
  };
  refuse(false, 0, 1, "cu_seqlens_q[0] = 1, but it must be 0..0");
  refuse(false, 11, 761, "cu_seqlens_q[11] = 761, but it must be 746..760");
  refuse(true, 4, 178, "cu_seqlens_k[4] = 178, but it must be 179..1030");
  rank.launch(good);
  CHECK(rank.refusal().empty());
  CHECK(rank.gradients() == first);
}

TEST_CASE("varlen backward kernel: every CTA makes the list of tasks that the plan has") {
  // More sequences than threads, many of equal lengths.
  constexpr std::int32_t kSequences = 1024;
  std::vector<std::int32_t> queries, keys;
  for (std::int32_t i = 0; i < kSequences; ++i) {
    queries.push_back(i % 97 == 5 ? 2 : 0);
    keys.push_back(i * 37 % 11);
  }
  const AttentionShape shape{.batch = 1,
                             .sequence = 40,
                             .heads = 2,
                             .kv_heads = 2,
                             .head_dim = 64,
                             .causal = true,
                             .keys = 6000,
                             .max_sequences = kSequences};
  const SequenceLengths lengths = sequence_lengths(queries, keys, kSequences);
  HostVarlenBackward rank = make(shape, lengths);
  rank.check(lengths);
  const std::vector<AttentionBackwardSlot> wanted = rank.plan().slots(
      rank.plan().lengths({.cu_seqlens_q = lengths.q.data(), .cu_seqlens_k = lengths.k.data()}));
  REQUIRE(wanted.size() == kSequences + 1);
  const auto same = [](const AttentionBackwardSlot& a, const AttentionBackwardSlot& b) {
    const AttentionSlot &first = a, &second = b;
    return std::memcmp(&first, &second, sizeof(AttentionSlot)) == 0 && a.first_tile == b.first_tile;
  };
  CHECK(std::equal(wanted.begin(), wanted.end() - 1, rank.slots(), same));
  CHECK(wanted.back().tasks_before == rank.slots()[kSequences].tasks_before);
}

TEST_CASE(
    "varlen backward kernel: of two launches at a time one fails and says so, with good lengths or bad") {
  for (const bool good : {true, false}) {
    SequenceLengths lengths = ragged_lengths(11);
    HostVarlenBackward rank = make(kRagged, lengths);
    if (!good) lengths.q[0] = 1;
    rank.launch(lengths, 2);
    rank.launch(ragged_lengths(11));
    CHECK(rank.gradients() == poisoned_gradients(kRagged));
  }
}

}  // namespace mkernel::test
