// The whole kernel of the backward pass of ring attention on the host: ranks push keys and values to each
// other, compute what their queries give of all gradients, and send those of keys and values to their owners.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "kernels/base/lent_workspace.h"
#include "kernels/ops/ring_attention/ring_backward_plan.h"
#include "kernels/ops/ring_attention/ring_backward_roles.cuh"
#include "kernels/ops/ring_attention/with_config.h"
#include "tests/support/attention_backward_reference.h"
#include "tests/support/on_host/cuda_names.h"
#include "tests/support/on_host/sm90.h"
#include "tests/support/random_tensor.h"
#include "tests/support/require.h"
#include "tests/unit/kernels/roles/host_fabric.h"

namespace mkernel::test {
namespace {

using namespace mkernel::kernels;

/// Ranks of one node, each with `ctas` CTAs. `block_rows`: of a chunk; 0: as the plan has it.
class RingBackwardRanks {
 public:
  RingBackwardRanks(const AttentionShape& shape, std::uint32_t world, std::int32_t ctas = 4,
                    std::int32_t comm_ctas = 2, std::int32_t block_rows = 0)
      : shape_(shape), topology_(1, world), fabric_(world, 1) {
    for (std::uint32_t r = 0; r < world; ++r) {
      RingBackwardPlan plan = require(
          RingBackwardPlan::make(shape, topology_, r, kH200.with_sms(ctas), {.comm_ctas = comm_ctas}));
      if (block_rows > 0) {
        plan.ring.gather.cut(block_rows);
        plan.partials = KeyPartialsPlan(plan.gather(), static_cast<std::int32_t>(shape.head_dim));
      }
      ranks_.push_back(std::make_unique<Rank>(std::move(plan)));
    }
    half_bytes_ = lent_half_bytes(lent_workspace_bytes(ranks_[0]->plan.partials.data_bytes()));
    for (auto& rank : ranks_) {
      rank->words.resize(rank->plan.partials.word_bytes() / 8);
      rank->lent = no_numbers(lent_workspace_bytes(half_bytes_), 1);
    }
    for (auto& rank : ranks_) describe(*rank);
  }

  /// One launch of every rank with new operands.
  void check(std::uint64_t seed, float scale = 2) {
    launch(seed, scale);
    std::vector<AttentionGradients> by_rank;
    for (const auto& rank : ranks_) {
      CHECK(rank->control.failed == 0);
      CHECK(rank->on_their_way == 0);
      by_rank.push_back(rank->gradients);
    }
    CHECK(wrong_gradients_of_ranks(shape_, whole_, by_rank, Weights::kRounded) == 0);
  }
  void launch(std::uint64_t seed, float scale = 2) {
    whole_ = random_attention_backward(shape_, 10 * seed + 1, scale);
    HostGrid grid;
    for (auto& rank : ranks_) {
      fill(*rank);
      add(grid, *rank);
    }
    grid.add_service(host_copy_engine);
    grid.run();
  }
  const AttentionGradients& gradients(std::size_t rank) const { return ranks_[rank]->gradients; }
  AttentionGradients poisoned(std::size_t rank) const {
    return poisoned_gradients_of_rank(shape_, std::ssize(ranks_), static_cast<std::int64_t>(rank));
  }
  LaunchControl& control(std::size_t rank) { return ranks_[rank]->control; }
  LentControl& lent(std::size_t rank) { return *ranks_[rank]->p.endpoint.lent; }
  void set_deadline(std::uint64_t ns) {
    for (auto& rank : ranks_) rank->p.endpoint.deadline_ns = ns;
  }

 private:
  struct alignas(128) Line {
    std::byte bytes[128] = {};
  };
  struct Rank {
    RingBackwardPlan plan;
    std::vector<std::uint64_t> words{};
    std::vector<Line> lent{}, scratch{};
    std::vector<TensorMap> gathered{};
    LaunchControl control{};
    RingBackwardParameters p{};
    AttentionBackwardTensors tensors{};
    AttentionGradients gradients{};
    int on_their_way = -1;

    explicit Rank(RingBackwardPlan made) : plan(std::move(made)) {}
    std::byte* lent_memory() { return reinterpret_cast<std::byte*>(lent.data()); }
  };

  /// Memory that another operation may have left: no numbers, from line `first` on.
  static std::vector<Line> no_numbers(std::uint64_t bytes, std::size_t first) {
    std::vector<Line> lines(bytes / sizeof(Line) + 1);
    for (std::size_t i = first; i < lines.size(); ++i)
      std::fill_n(reinterpret_cast<std::uint16_t*>(lines[i].bytes), sizeof(Line) / 2, kPoison);
    return lines;
  }

  /// As the operation does it.
  void describe(Rank& rank) {
    const KvGatherPlan& gather = rank.plan.gather();
    RingBackwardParameters& p = rank.p;
    // Whoever adds before the first one has stored adds to no number.
    const AttentionBackwardScratch at = ring_backward_scratch(rank.plan);
    rank.scratch =
        no_numbers(static_cast<std::uint64_t>(at.bytes), static_cast<std::size_t>(at.sums) / sizeof(Line));
    p = ring_backward_parameters(rank.plan, rank.scratch.data());
    p.row_map = host_packed_map(backward_rows_view(p));
    for (const std::uint64_t launch : {0, 1}) {
      const std::byte* half = rank.lent_memory() + lent_half_at(launch, half_bytes_);
      for (std::int32_t source = 0; source < gather.world; ++source) {
        for (std::int32_t tensor = 0; tensor < KvGatherPlan::kTensors; ++tensor) {
          TensorMap map{};
          if (gather.positions(source) > 0)
            map = host_tensor_map(
                ring_backward_slab_view(rank.plan, source, half + gather.slab_offset(source, tensor)));
          rank.gathered.push_back(map);
        }
      }
    }
    p.gathered = rank.gathered.data();
    p.half_bytes = half_bytes_;
    for (std::size_t local = 0; local < ranks_.size(); ++local) {
      p.words[local] = reinterpret_cast<std::byte*>(ranks_[local]->words.data());
      p.lent[local] = ranks_[local]->lent_memory();
    }
    const auto me = static_cast<std::uint32_t>(gather.rank);
    describe_owners(topology_, me, p);
    fabric_.open(p.endpoint, me, rank.control);
    p.endpoint.lent = reinterpret_cast<LentControl*>(rank.lent_memory());
  }

  void fill(Rank& rank) {
    const KvGatherPlan& gather = rank.plan.gather();
    const std::int32_t me = gather.rank;
    RingBackwardParameters& p = rank.p;
    rank.tensors = backward_of_rank(shape_, whole_, std::ssize(ranks_), me);
    rank.gradients = poisoned(static_cast<std::size_t>(me));
    const AttentionBackwardTensors& given = rank.tensors;
    for (int part = 0; part < 2; ++part) {
      if (gather.part_rows[me][part] == 0) continue;
      p.q[part] = host_tensor_map(ring_backward_q_view(rank.plan, part, given.forward.q.data()));
      p.d_out[part] = host_tensor_map(ring_backward_q_view(rank.plan, part, given.d_out.data()));
    }
    const std::vector<std::uint16_t>* const own[] = {&given.forward.k, &given.forward.v};
    for (int tensor = 0; tensor < KvGatherPlan::kTensors; ++tensor) {
      if (gather.positions(me) == 0) continue;
      p.own[tensor] = host_tensor_map(ring_backward_kv_view(rank.plan, own[tensor]->data()));
      p.push[tensor] = host_packed_map(ring_push_view(rank.plan.ring, own[tensor]->data()));
    }
    p.out = given.out.data();
    p.d_out_rows = given.d_out.data();
    p.lse = given.lse.data();
    p.d_q = rank.gradients.d_q.data();
    p.d_rows[0] = reinterpret_cast<std::byte*>(rank.gradients.d_k.data());
    p.d_rows[1] = reinterpret_cast<std::byte*>(rank.gradients.d_v.data());
  }

  void add(HostGrid& grid, Rank& rank) {
    with_attention_config(shape_, [&]<int kHeadDim, bool kCausal, DataType kType>() {
      using Config = AttentionBackwardConfig<kHeadDim, kCausal, kType>;
      const auto ctas = static_cast<std::uint32_t>(rank.plan.ring.ctas);
      for (std::uint32_t cta = 0; cta < ctas; ++cta) {
        grid.add_cluster(cta, Config::kCluster, ctas, Config::kThreads, ring_backward_shared_bytes<Config>(),
                         [&rank] {
                           const HostThread& self = host_thread();
                           ring_backward_cta<Config>(rank.p, self.cluster_shared[self.cluster_rank]);
                           if (blockIdx.x == 0 && threadIdx.x == 0) rank.on_their_way = on_their_way(rank);
                         });
      }
    });
  }

  /// When the launch ends: chunks and partial gradients of other ranks that are still to come.
  static int on_their_way(const Rank& rank) {
    const KvGatherPlan& gather = rank.plan.gather();
    const KeyPartialsPlan& partials = rank.plan.partials;
    const std::uint64_t epoch = rank.control.epoch - 1;
    int missing = 0;
    for (std::int32_t source = 0; source < gather.world; ++source) {
      for (std::int32_t tensor = 0; source != gather.rank && tensor < KvGatherPlan::kTensors; ++tensor) {
        const std::uint64_t* ready = rank.words.data() + gather.ready_offset(source, tensor) / 8;
        for (std::int32_t chunk = 0; chunk < gather.chunks(); ++chunk)
          missing += ready[chunk] < gather.count(epoch) ? 1 : 0;
      }
      for (int part = 0; part < 2; ++part) {
        if (!RingBackwardTasks::is_seen(gather, source, gather.rank, part)) continue;
        for (std::int32_t row = 0; row < gather.part_rows[gather.rank][part]; row += KeyPartialsPlan::kRows) {
          for (std::int32_t head = 0; head < gather.heads; ++head) {
            const std::int32_t unit = KeyPartialsPlan::unit(gather, gather.rank, part, head, row);
            missing +=
                rank.words[partials.word_offset(source, unit) / 8] < KeyPartialsPlan::count(epoch) ? 1 : 0;
          }
        }
      }
    }
    return missing;
  }

  const AttentionShape shape_;
  const Topology topology_;
  HostFabric fabric_;
  std::uint64_t half_bytes_ = 0;
  AttentionBackwardTensors whole_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

TEST_CASE("ring backward kernel: every size of heads, mask and type, with tails and heads that share keys") {
  const AttentionShape of{.batch = 1, .sequence = 2 * 2 * 90 + 3, .heads = 2, .kv_heads = 1};
  for_every_attention(of, [](const AttentionShape& shape) {
    CAPTURE(shape.head_dim);
    CAPTURE(shape.causal);
    RingBackwardRanks(shape, 2).check(1);
  });
}

TEST_CASE(
    "ring backward kernel: one, two, three and four ranks, launches behind each other with new inputs") {
  for (const std::uint32_t world : {1U, 2U, 3U, 4U}) {
    for (const bool causal : {false, true}) {
      CAPTURE(world);
      CAPTURE(causal);
      RingBackwardRanks ranks(
          {.batch = 2, .sequence = 301, .heads = 1, .kv_heads = 1, .head_dim = 64, .causal = causal}, world);
      for (std::uint64_t launch = 0; launch < 3; ++launch) ranks.check(launch);
    }
  }
}

TEST_CASE("ring backward kernel: sequences shorter than the ranks") {
  for (const std::int64_t sequence : {1, 3, 9}) {
    for (const bool causal : {false, true}) {
      CAPTURE(sequence);
      CAPTURE(causal);
      RingBackwardRanks ranks(
          {.batch = 2, .sequence = sequence, .heads = 2, .kv_heads = 1, .head_dim = 64, .causal = causal}, 4,
          2, 1);
      for (std::uint64_t launch = 0; launch < 2; ++launch) ranks.check(launch);
    }
  }
}

TEST_CASE("ring backward kernel: parts that end within tiles, beside those of the next part and sequence") {
  for (const std::int64_t part : {63, 64, 65, 127, 129, 191}) {
    CAPTURE(part);
    RingBackwardRanks ranks(
        {.batch = 2, .sequence = 4 * part + 2, .heads = 1, .kv_heads = 1, .head_dim = 64, .causal = true}, 2,
        3, 1, 40);
    ranks.check(7);
  }
}

TEST_CASE("ring backward kernel: the same bits however many CTAs push and compute, launch after launch") {
  const AttentionShape shape{
      .batch = 1, .sequence = 500, .heads = 4, .kv_heads = 2, .head_dim = 64, .causal = true};
  RingBackwardRanks few(shape, 2, 2, 1), many(shape, 2, 7, 3);
  few.check(3);
  for (int launch = 0; launch < 2; ++launch) {
    many.check(3);
    for (const std::size_t rank : {0, 1}) CHECK(few.gradients(rank) == many.gradients(rank));
  }
}

TEST_CASE("ring backward kernel: one warpgroup is slower than the other") {
  for (const std::uint32_t warpgroup : {1, 2}) {
    const HostSlowWarpgroup slow(warpgroup);
    for (const std::int64_t head_dim : {64, 128})
      RingBackwardRanks(
          {.batch = 1, .sequence = 400, .heads = 1, .kv_heads = 1, .head_dim = head_dim, .causal = true}, 2)
          .check(5);
  }
}

TEST_CASE("ring backward kernel: what is queued behind a failed launch does nothing") {
  RingBackwardRanks ranks({.batch = 1, .sequence = 40, .heads = 1, .kv_heads = 1, .head_dim = 64}, 2);
  ranks.check(1);
  ranks.lent(0).stopped = 1;  // a launch of rank 0 has failed
  ranks.set_deadline(1'000'000);
  ranks.launch(2);
  CHECK(ranks.gradients(0) == ranks.poisoned(0));
  CHECK(ranks.control(0).failed == 0);
  REQUIRE(ranks.control(1).failed != 0);  // it waits for keys that do not come, and says whose
  CHECK(ranks.control(1).site.peer == 0);
  CHECK(ranks.control(1).site.tag == DeviceTag::kChunkReady);
}

}  // namespace
}  // namespace mkernel::test
