// The whole kernel of attention of sequences of different lengths on the host: its list of tasks, tiles that
// end with their sequence, sliding windows, and lengths that are refused.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/ops/ring_attention/attention/plan.h"
#include "kernels/ops/ring_attention/attention/varlen_roles.cuh"
#include "kernels/ops/ring_attention/with_config.h"
#include "tests/support/attention_reference.h"
#include "tests/support/on_host/cuda_names.h"
#include "tests/support/on_host/sm90.h"
#include "tests/support/random_tensor.h"
#include "tests/support/require.h"
#include "tests/support/varlen_reference.h"
#include "tests/unit/kernels/roles/play_launch.h"

namespace mkernel::test {
namespace {

using namespace mkernel::kernels;

/// A rank alone, with three CTAs.
class HostVarlen {
 public:
  HostVarlen(const AttentionShape& shape, AttentionTensors tensors)
      : plan_(require(AttentionPlan::make(shape))),
        tensors_(std::move(tensors)),
        scratch_(std::make_unique<std::byte[]>(Scratch::bytes(kCtas, plan_.lengths({}).sequences))),
        p_(varlen_parameters(plan_, scratch())) {
    require_ok(plan_.check_on_gpu());
    p_.q = host_tensor_map(varlen_q_view(plan_, tensors_.q.data()));
    p_.k = host_tensor_map(varlen_kv_view(plan_, tensors_.k.data()));
    p_.v = host_tensor_map(varlen_kv_view(plan_, tensors_.v.data()));
    p_.endpoint.control = control_.get();
    p_.endpoint.host = {&aborted_, nullptr};
  }

  const AttentionPlan& plan() const { return plan_; }
  const std::vector<std::uint16_t>& out() const { return out_; }
  AttentionTensors& tensors() { return tensors_; }
  /// What CTA 2 has made.
  const AttentionSlot* slots() const { return scratch()->slots(2, p_.lengths.sequences); }

  void launch(const SequenceLengths& lengths, bool with_lse = true, int at_a_time = 1) {
    out_ = poisoned_output(plan_.shape);
    lse_ = with_lse ? poisoned_lse(plan_.shape) : std::vector<float>{};
    p_.out = host_tensor_map(varlen_out_view(plan_, out_.data()));
    p_.lse = with_lse ? lse_.data() : nullptr;
    AttentionArguments arguments;
    if (plan_.shape.max_sequences > 0) {
      arguments.cu_seqlens_q = lengths.q.data();
      arguments.cu_seqlens_k = lengths.k.data();
    }
    p_.lengths = plan_.lengths(arguments);
    HostGrid grid;
    with_attention_tile(plan_.shape, plan_.tile_keys(), [&]<int kHeadDim, int kTileKeys, DataType kType>() {
      for (int i = 0; i < at_a_time; ++i) add<AttentionConfig<kHeadDim, kTileKeys, kType>>(grid);
    });
    play_launch(grid, *control_, at_a_time);
  }
  void check(const SequenceLengths& lengths, bool with_lse = true) {
    launch(lengths, with_lse);
    CHECK(refusal().empty());
    CHECK(wrong_varlen(plan_.shape, lengths, tensors_, out_, lse_, Weights::kRounded) == 0);
  }
  /// All sequences have one length.
  void check() {
    launch({});
    CHECK(wrong_attention(plan_.shape, tensors_, out_, lse_, Weights::kRounded) == 0);
  }
  /// Why the last launch was refused; empty: it was not.
  std::string refusal() const {
    const VarlenRefusal& last = scratch()->refusal;
    return last.launch == control_->epoch ? plan_.refuse(last.why).text() : std::string();
  }
  bool nothing_is_written() const {
    return std::all_of(out_.begin(), out_.end(), [](std::uint16_t bits) { return bits == kPoison; });
  }

 private:
  using Scratch = VarlenScratch<AttentionSlot>;
  static constexpr std::uint32_t kCtas = 3;

  Scratch* scratch() const { return reinterpret_cast<Scratch*>(scratch_.get()); }

  template <class Config>
  void add(HostGrid& grid) {
    for (std::uint32_t cta = 0; cta < kCtas; ++cta) {
      grid.add_cluster(cta, Config::kCluster, kCtas, Config::kThreads,
                       alone_shared_bytes<AttentionShared<Config>>(), [this] {
                         const HostThread& self = host_thread();
                         varlen_cta<Config>(p_, self.cluster_shared[self.cluster_rank]);
                       });
    }
  }

  const AttentionPlan plan_;
  AttentionTensors tensors_;
  std::vector<std::uint16_t> out_;
  std::vector<float> lse_;
  const std::unique_ptr<std::byte[]> scratch_;
  const std::unique_ptr<LaunchControl> control_ = std::make_unique<LaunchControl>();
  std::uint32_t aborted_ = 0;
  VarlenParameters p_;
};

/// Room for a little more than the ragged lengths.
constexpr AttentionShape kRagged{.batch = 1,
                                 .sequence = 760,
                                 .heads = 2,
                                 .kv_heads = 1,
                                 .head_dim = 64,
                                 .keys = 1030,
                                 .max_sequences = 11};

HostVarlen make(const AttentionShape& shape, std::uint64_t seed = 1) {
  return {shape, random_attention(shape, seed, 2)};
}

}  // namespace

TEST_CASE("varlen kernel: ragged sequences of every size of heads, mask and type") {
  for_every_attention(kRagged, [](AttentionShape shape) {
    shape.heads = shape.causal ? 2 : 1;
    CAPTURE(shape.head_dim);
    CAPTURE(shape.causal);
    make(shape).check(ragged_lengths(shape.max_sequences));
  });
}

TEST_CASE("varlen kernel: sliding windows, left, right and both, with every border of a tile") {
  for (const auto& window : kBorderWindows) {
    AttentionShape shape = kRagged;
    shape.heads = 1;
    shape.head_dim = window.first % 2 == 0 ? 64 : 128;
    shape.window_left = window.first;
    shape.window_right = window.second;
    CAPTURE(shape.window_left);
    CAPTURE(shape.window_right);
    make(shape).check(ragged_lengths(shape.max_sequences));
  }
}

TEST_CASE("varlen kernel: a window of sequences of one length") {
  for (const std::int64_t keys : {150, 290, 420}) {
    make({.batch = 2,
          .sequence = 290,
          .heads = 2,
          .kv_heads = 2,
          .head_dim = 64,
          .causal = keys != 290,
          .keys = keys,
          .window_left = 140,
          .window_right = keys == 290 ? 9 : -1})
        .check();
  }
}

TEST_CASE("varlen kernel: no sequence reads another one's rows, nor those behind the last") {
  // What is no number has a weight of zero there, and would still spoil the sums.
  for (const bool causal : {false, true}) {
    AttentionShape shape = kRagged;
    shape.causal = causal;
    HostVarlen rank = make(shape);
    const SequenceLengths lengths = ragged_lengths(shape.max_sequences);
    rank.check(lengths);
    const std::vector<std::uint16_t> before = rank.out();
    const auto spoil = [&](std::int32_t first, std::int32_t end) {
      for (std::vector<std::uint16_t>* tensor : {&rank.tensors().k, &rank.tensors().v})
        std::fill(tensor->begin() + first * 64, tensor->begin() + end * 64, kPoison);
    };
    spoil(lengths.k[3], lengths.k[4]);
    spoil(lengths.k.back(), 1030);
    rank.launch(lengths);
    for (std::int32_t row = 0; row < 760; ++row) {
      const auto at = row * 2 * 64;
      const bool same = std::equal(before.begin() + at, before.begin() + at + 128, rank.out().begin() + at);
      CHECK_MESSAGE((same || (row >= lengths.q[3] && row < lengths.q[4])), row);
    }
  }
}

TEST_CASE("varlen kernel: launches with other lengths, of the same bits for the same lengths") {
  AttentionShape shape = kRagged;
  shape.causal = true;
  HostVarlen rank = make(shape);
  const SequenceLengths ragged = ragged_lengths(11);
  rank.check(ragged);
  const auto first = rank.out();
  rank.check(sequence_lengths({760}, {1030}, 11));
  rank.check(sequence_lengths({}, {}, 11));
  CHECK(rank.nothing_is_written());
  rank.check(sequence_lengths({0, 0, 1}, {1030}, 11), false);
  rank.check(ragged, false);
  CHECK(rank.out() == first);
}

TEST_CASE("varlen kernel: lengths that cannot be are refused before anything is written, and the next come") {
  HostVarlen rank = make(kRagged);
  const SequenceLengths good = ragged_lengths(11);
  rank.check(good);
  const auto refuse = [&](bool keys, std::size_t index, std::int32_t value, const std::string& text) {
    SequenceLengths bad = good;
    (keys ? bad.k : bad.q)[index] = value;
    rank.launch(bad);
    CHECK(rank.refusal() == "attention: " + text);
    CHECK(rank.nothing_is_written());
  };
  refuse(false, 0, 1, "cu_seqlens_q[0] = 1, but it must be 0..0");
  refuse(false, 3, -7, "cu_seqlens_q[3] = -7, but it must be 5..760");
  refuse(false, 11, 761, "cu_seqlens_q[11] = 761, but it must be 746..760");
  refuse(true, 0, -1, "cu_seqlens_k[0] = -1, but it must be 0..0");
  refuse(true, 4, 178, "cu_seqlens_k[4] = 178, but it must be 179..1030");
  refuse(true, 9, 1031, "cu_seqlens_k[9] = 1031, but it must be 827..1030");
  rank.check(good);
}

TEST_CASE("varlen kernel: every CTA makes the list of tasks that the plan has") {
  // More sequences than threads, many of equal lengths.
  constexpr std::int32_t kSequences = 1024;
  std::vector<std::int32_t> queries, keys;
  for (std::int32_t i = 0; i < kSequences; ++i) {
    queries.push_back(i % 97 == 5 ? 2 : 0);
    keys.push_back(i * 37 % 11);
  }
  HostVarlen rank = make({.batch = 1,
                          .sequence = 40,
                          .heads = 4,
                          .kv_heads = 2,
                          .head_dim = 64,
                          .keys = 6000,
                          .max_sequences = kSequences});
  const SequenceLengths lengths = sequence_lengths(queries, keys, kSequences);
  rank.check(lengths);
  AttentionArguments arguments;
  arguments.cu_seqlens_q = lengths.q.data();
  arguments.cu_seqlens_k = lengths.k.data();
  const std::vector<AttentionSlot> wanted = rank.plan().slots(rank.plan().lengths(arguments));
  REQUIRE(wanted.size() == kSequences + 1);
  CHECK(std::memcmp(wanted.data(), rank.slots(), kSequences * sizeof(AttentionSlot)) == 0);
  CHECK(wanted.back().tasks_before == rank.slots()[kSequences].tasks_before);
}

TEST_CASE("varlen kernel: of two launches at a time one fails and says so, with good lengths or bad") {
  for (const bool good : {true, false}) {
    HostVarlen rank = make(kRagged);
    SequenceLengths lengths = ragged_lengths(11);
    rank.check(lengths);
    if (!good) lengths.q[0] = 1;
    rank.launch(lengths, true, 2);
    rank.launch(ragged_lengths(11));
    CHECK(rank.nothing_is_written());
  }
}

}  // namespace mkernel::test
