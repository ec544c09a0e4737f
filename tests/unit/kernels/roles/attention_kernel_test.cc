// The whole kernel of attention of a rank alone on the host: masks, tails, heads that share keys, the turns
// of its warpgroups, and the end of a launch.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ops/ring_attention/attention/plan.h"
#include "kernels/ops/ring_attention/attention/roles.cuh"
#include "kernels/ops/ring_attention/shape.h"
#include "kernels/ops/ring_attention/with_config.h"
#include "tests/support/attention_reference.h"
#include "tests/support/on_host/cuda_names.h"
#include "tests/support/on_host/sm90.h"
#include "tests/support/random_tensor.h"
#include "tests/support/require.h"
#include "tests/unit/kernels/roles/play_launch.h"

namespace mkernel::test {
namespace {

using namespace mkernel::kernels;

/// A rank alone, with three CTAs.
class HostAttention {
 public:
  HostAttention(const AttentionShape& shape, AttentionTensors tensors)
      : plan_(require(AttentionPlan::make(shape))),
        tensors_(std::move(tensors)),
        p_(attention_parameters(plan_, counters_.get())) {
    require_ok(plan_.check_on_gpu());
    p_.q = host_tensor_map(attention_q_view(plan_, tensors_.q.data()));
    p_.k = host_tensor_map(attention_kv_view(plan_, tensors_.k.data()));
    p_.v = host_tensor_map(attention_kv_view(plan_, tensors_.v.data()));
    p_.endpoint.control = control_.get();
    p_.endpoint.host = {&aborted_, nullptr};
  }

  const std::vector<std::uint16_t>& out() const { return out_; }
  void check(bool with_lse = true) {
    launch(with_lse);
    CHECK(wrong_attention(plan_.shape, tensors_, out_, lse_, Weights::kRounded) == 0);
  }
  void launch(bool with_lse = true, int at_a_time = 1) {
    out_ = poisoned_output(plan_.shape);
    lse_ = with_lse ? poisoned_lse(plan_.shape) : std::vector<float>{};
    p_.out = host_tensor_map(attention_out_view(plan_, out_.data()));
    p_.lse = with_lse ? lse_.data() : nullptr;
    HostGrid grid;
    with_attention_tile(plan_.shape, plan_.tile_keys(), [&]<int kHeadDim, int kTileKeys, DataType kType>() {
      for (int i = 0; i < at_a_time; ++i) add<AttentionConfig<kHeadDim, kTileKeys, kType>>(grid);
    });
    play_launch(grid, *control_, at_a_time);
  }
  void abort() { aborted_ = 1; }
  /// A launch that fails, whether it computes or not; whether it does.
  bool computes_and_fails() {
    launch();
    CHECK(control_->stopped != 0);
    return std::any_of(out_.begin(), out_.end(), [](std::uint16_t bits) { return bits != kPoison; });
  }

 private:
  static constexpr std::uint32_t kCtas = 3;

  template <class Config>
  void add(HostGrid& grid) {
    for (std::uint32_t cta = 0; cta < kCtas; ++cta) {
      grid.add_cluster(cta, Config::kCluster, kCtas, Config::kThreads,
                       alone_shared_bytes<AttentionShared<Config>>(), [this] {
                         const HostThread& self = host_thread();
                         attention_cta<Config>(p_, self.cluster_shared[self.cluster_rank]);
                       });
    }
  }

  const AttentionPlan plan_;
  const AttentionTensors tensors_;
  std::vector<std::uint16_t> out_;
  std::vector<float> lse_;
  const std::unique_ptr<AttentionCounters> counters_ = std::make_unique<AttentionCounters>();
  const std::unique_ptr<LaunchControl> control_ = std::make_unique<LaunchControl>();
  std::uint32_t aborted_ = 0;
  AttentionParameters p_;
};

/// Inputs so large that the weights differ.
void check(const AttentionShape& shape, float scale = 2) {
  const std::string name = attention_signature(OpKind::kAttention, shape);
  CAPTURE(name);
  HostAttention(shape, random_attention(shape, 1, scale)).check();
}

TEST_CASE("attention kernel: every size of heads, mask and type, with tails and heads that share keys") {
  for_every_attention({.batch = 2, .sequence = 200, .heads = 4}, [](AttentionShape shape) {
    shape.kv_heads = shape.causal ? 1 : 2;
    shape.keys = shape.causal ? 0 : 330;
    check(shape);
  });
}

TEST_CASE("attention kernel: a mask at every border of a tile") {
  for_every_border({1, 7, 127, 128, 129, 160, 161, 192, 193, 300, 321, 470},
                   [](const AttentionShape& shape) { check(shape); });
}

TEST_CASE("attention kernel: queries that see no key get zeros, also a whole tile of them") {
  for (const std::int64_t keys : {1, 60, 130})
    check({.batch = 2,
           .sequence = 300,
           .heads = 1,
           .kv_heads = 1,
           .head_dim = 64,
           .causal = true,
           .keys = keys});
}

TEST_CASE("attention kernel: large scores overflow nowhere") {
  for (const bool causal : {false, true}) {
    check({.batch = 1,
           .sequence = 150,
           .heads = 1,
           .kv_heads = 1,
           .head_dim = 128,
           .causal = causal,
           .scale = 8,
           .keys = 400});
  }
}

TEST_CASE("attention kernel: what lies behind a sequence is not read") {
  const AttentionShape shape{
      .batch = 2, .sequence = 40, .heads = 1, .kv_heads = 1, .head_dim = 64, .keys = 50};
  AttentionTensors tensors = random_attention(shape, 5);
  std::fill(tensors.v.begin() + 50 * 64, tensors.v.end(), kPoison);
  std::fill(tensors.k.begin() + 50 * 64, tensors.k.end(), kPoison);
  HostAttention rank(shape, tensors);
  rank.launch();
  AttentionShape first = shape;
  first.batch = 1;
  const std::vector<std::uint16_t> out(rank.out().begin(), rank.out().begin() + 40 * 64);
  CHECK(wrong_attention(first, tensors, out, {}, Weights::kRounded) == 0);
}

TEST_CASE("attention kernel: one launch after the other, with and without log-sum-exps") {
  const AttentionShape shape{
      .batch = 1, .sequence = 260, .heads = 3, .kv_heads = 3, .head_dim = 64, .causal = true};
  HostAttention rank(shape, random_attention(shape, 3));
  rank.check();
  const auto first = rank.out();
  for (int i = 0; i < 3; ++i) {
    rank.check(false);
    CHECK(rank.out() == first);
  }
}

TEST_CASE("attention kernel: what the host aborts has failed, and the launches behind it do nothing") {
  const AttentionShape shape{.batch = 1, .sequence = 20, .heads = 1, .kv_heads = 1, .head_dim = 64};
  HostAttention rank(shape, random_attention(shape, 4));
  rank.check();
  rank.abort();
  CHECK(rank.computes_and_fails());
  CHECK_FALSE(rank.computes_and_fails());
}

TEST_CASE("attention kernel: of two launches at a time one fails and says so, and the next does nothing") {
  const AttentionShape shape{.batch = 1, .sequence = 600, .heads = 2, .kv_heads = 1, .head_dim = 64};
  HostAttention rank(shape, random_attention(shape, 4));
  rank.check();
  rank.launch(true, 2);
  CHECK_FALSE(rank.computes_and_fails());
}

}  // namespace
}  // namespace mkernel::test
