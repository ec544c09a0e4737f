// The whole kernel of the backward pass of attention on the host: masks, tails, heads that share keys, the
// order of adds, and one launch after the other.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ops/ring_attention/attention_backward/plan.h"
#include "kernels/ops/ring_attention/attention_backward/roles.cuh"
#include "kernels/ops/ring_attention/shape.h"
#include "kernels/ops/ring_attention/with_config.h"
#include "tests/support/attention_backward_reference.h"
#include "tests/support/on_host/cuda_names.h"
#include "tests/support/on_host/sm90.h"
#include "tests/support/random_tensor.h"
#include "tests/support/require.h"
#include "tests/unit/kernels/roles/play_launch.h"

namespace mkernel::test {
namespace {

using namespace mkernel::kernels;

/// A rank alone.
class HostBackward {
 public:
  HostBackward(const AttentionShape& shape, AttentionBackwardTensors tensors, std::uint32_t ctas = 3)
      : plan_(require(AttentionBackwardPlan::make(shape))),
        tensors_(std::move(tensors)),
        ctas_(ctas),
        scratch_(static_cast<std::size_t>(at().bytes) / sizeof(Line)),
        p_(attention_backward_parameters(plan_, scratch_.data())) {
    require_ok(plan_.check_on_gpu());
    p_.q = host_tensor_map(attention_backward_q_view(plan_, tensors_.forward.q.data()));
    p_.d_out = host_tensor_map(attention_backward_q_view(plan_, tensors_.d_out.data()));
    p_.k = host_tensor_map(attention_backward_k_view(plan_, tensors_.forward.k.data()));
    p_.v = host_tensor_map(attention_backward_k_view(plan_, tensors_.forward.v.data()));
    p_.row_map = host_packed_map(backward_rows_view(p_));
    p_.out = tensors_.out.data();
    p_.d_out_rows = tensors_.d_out.data();
    p_.lse = tensors_.lse.data();
    p_.preparing = static_cast<std::int32_t>(ctas_);
    p_.endpoint.control = control_.get();
    p_.endpoint.host = {&aborted_, nullptr};
    p_.endpoint.deadline_ns = kHostPatienceNs;
    // Whoever adds before the first one has stored adds to no number.
    const auto sums = static_cast<std::size_t>(at().sums) / sizeof(Line);
    std::fill(scratch_.begin() + static_cast<std::ptrdiff_t>(sums), scratch_.end(), no_numbers());
  }

  const AttentionGradients& gradients() const { return gradients_; }
  void check() {
    launch();
    CHECK(wrong_gradients(plan_.shape, tensors_, gradients_, Weights::kRounded) == 0);
  }
  void launch(int at_a_time = 1) {
    if (at_a_time == 2) p_.endpoint.deadline_ns = kHostTwoLaunchesNs;
    gradients_ = poisoned_gradients(plan_.shape);
    p_.d_q = gradients_.d_q.data();
    p_.d_k = host_tensor_map(attention_backward_d_k_view(plan_, gradients_.d_k.data()));
    p_.d_v = host_tensor_map(attention_backward_d_k_view(plan_, gradients_.d_v.data()));
    HostGrid grid;
    with_attention_config(plan_.shape, [&]<int kHeadDim, bool kCausal, DataType kType>() {
      for (int i = 0; i < at_a_time; ++i) add<AttentionBackwardConfig<kHeadDim, kCausal, kType>>(grid);
    });
    play_launch(grid, *control_, at_a_time);
  }
  /// Some tasks walk upwards, where there are two for each of so many CTAs.
  void tell_ctas(std::int32_t ctas) { p_.tasks = plan_.tasks(ctas); }
  void abort() { aborted_ = 1; }
  /// A launch that fails, whether it computes or not; whether it does.
  bool computes_and_fails() {
    launch();
    CHECK(control_->stopped != 0);
    return gradients_ != poisoned_gradients(plan_.shape);
  }

 private:
  AttentionBackwardScratch at() const {
    return attention_backward_scratch(plan_.shape, attention_backward_parts(plan_));
  }
  struct alignas(128) Line {
    float values[32];
  };
  static Line no_numbers() {
    Line line;
    std::fill_n(line.values, 32, std::numeric_limits<float>::quiet_NaN());
    return line;
  }

  template <class Config>
  void add(HostGrid& grid) {
    for (std::uint32_t cta = 0; cta < ctas_; ++cta) {
      grid.add_cluster(cta, Config::kCluster, ctas_, Config::kThreads,
                       alone_shared_bytes<AttentionBackwardShared<Config>>(), [this] {
                         const HostThread& self = host_thread();
                         attention_backward_cta<Config>(p_, self.cluster_shared[self.cluster_rank]);
                       });
    }
  }

  const AttentionBackwardPlan plan_;
  const AttentionBackwardTensors tensors_;
  const std::uint32_t ctas_;
  std::vector<Line> scratch_;
  AttentionGradients gradients_;
  const std::unique_ptr<LaunchControl> control_ = std::make_unique<LaunchControl>();
  std::uint32_t aborted_ = 0;
  AttentionBackwardParameters p_;
};

/// Inputs so large that the weights differ.
void check(const AttentionShape& shape, float scale = 2) {
  const std::string name = attention_signature(OpKind::kAttentionBackward, shape);
  CAPTURE(name);
  HostBackward(shape, random_attention_backward(shape, 1, scale)).check();
}

TEST_CASE("attention backward kernel: every size of heads, mask and type, with tails and shared heads") {
  for_every_attention({.batch = 2, .sequence = 150, .heads = 4}, [](AttentionShape shape) {
    shape.kv_heads = shape.causal ? 1 : 2;
    shape.keys = shape.causal ? 0 : 200;
    check(shape);
  });
}

TEST_CASE("attention backward kernel: a mask at every border of a tile") {
  for_every_border({1, 63, 64, 65, 127, 128, 129, 193, 257},
                   [](const AttentionShape& shape) { check(shape); });
}

TEST_CASE("attention backward kernel: queries that see no key get zeros, also a whole tile of them") {
  for (const std::int64_t keys : {1, 60, 130})
    check({.batch = 2,
           .sequence = 300,
           .heads = 1,
           .kv_heads = 1,
           .head_dim = 64,
           .causal = true,
           .keys = keys});
}

TEST_CASE("attention backward kernel: large scores overflow nowhere") {
  for (const bool causal : {false, true}) {
    check({.batch = 1,
           .sequence = 150,
           .heads = 1,
           .kv_heads = 1,
           .head_dim = 128,
           .causal = causal,
           .scale = 8,
           .keys = 200});
  }
}

TEST_CASE("attention backward kernel: one warpgroup is slower than the other") {
  for (const std::uint32_t warpgroup : {1, 2}) {
    const HostSlowWarpgroup slow(warpgroup);
    for (const std::int64_t head_dim : {64, 128}) {
      check({.batch = 2, .sequence = 200, .heads = 1, .kv_heads = 1, .head_dim = head_dim, .causal = true});
      check({.batch = 1, .sequence = 200, .heads = 2, .kv_heads = 1, .head_dim = head_dim});
    }
  }
}

TEST_CASE("attention backward kernel: the same bits with any number of CTAs, launch after launch") {
  const AttentionShape shape{
      .batch = 1, .sequence = 400, .heads = 2, .kv_heads = 2, .head_dim = 64, .causal = true};
  const AttentionBackwardTensors tensors = random_attention_backward(shape, 3);
  HostBackward rank(shape, tensors);
  rank.check();
  const AttentionGradients first = rank.gradients();
  for (int i = 0; i < 2; ++i) {
    rank.launch();
    CHECK(rank.gradients() == first);
  }
  for (const std::uint32_t ctas : {1, 5}) {
    HostBackward other(shape, tensors, ctas);
    other.launch();
    CHECK(other.gradients() == first);
  }
}

TEST_CASE("attention backward kernel: the second half of the keys upwards") {
  for (const std::int64_t queries : {900, 1000, 1100}) {
    const AttentionShape shape{.batch = 1,
                               .sequence = queries,
                               .heads = 2,
                               .kv_heads = 1,
                               .head_dim = 64,
                               .causal = true,
                               .keys = 1000};
    HostBackward rank(shape, random_attention_backward(shape, 1, 2), 4);
    rank.tell_ctas(4);
    rank.check();
  }
}

TEST_CASE(
    "attention backward kernel: what the host aborts has failed, and the launches behind it do nothing") {
  const AttentionShape shape{.batch = 1, .sequence = 20, .heads = 1, .kv_heads = 1, .head_dim = 64};
  HostBackward rank(shape, random_attention_backward(shape, 4));
  rank.check();
  rank.abort();
  CHECK(rank.computes_and_fails());
  CHECK_FALSE(rank.computes_and_fails());
}

TEST_CASE("attention backward kernel: of two launches at a time one fails and says so") {
  const AttentionShape shape{.batch = 1, .sequence = 300, .heads = 1, .kv_heads = 1, .head_dim = 64};
  HostBackward rank(shape, random_attention_backward(shape, 4));
  rank.check();
  rank.launch(2);
  CHECK_FALSE(rank.computes_and_fails());
}

}  // namespace
}  // namespace mkernel::test
