// The whole kernel of ring attention on the host: ranks push keys and values to each other, put them to other
// nodes and pass on what comes from there; tiles of queries sweep what is here and what comes.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ops/ring_attention/gpu_plan.h"
#include "kernels/ops/ring_attention/ring_roles.cuh"
#include "kernels/ops/ring_attention/with_config.h"
#include "tests/support/attention_reference.h"
#include "tests/support/on_host/cuda_names.h"
#include "tests/support/on_host/sm90.h"
#include "tests/support/random_tensor.h"
#include "tests/support/require.h"
#include "tests/unit/kernels/roles/ring_ranks.h"

namespace mkernel::test {
namespace {

using namespace mkernel::kernels;
using Elements = std::vector<std::uint16_t>;

struct RingRank : HostRingRank<RingAttentionParameters> {
  RingGpuPlan plan;
  AttentionCounters counters{};
  Elements q{}, k{}, v{}, out{};
  std::vector<float> lse{};

  explicit RingRank(RingGpuPlan made) : plan(std::move(made)) {}
};

/// Ranks of some nodes, each with `ctas` CTAs. `block_rows`: of a chunk, so that few rows travel in many
/// puts; 0: as the plan has it.
class RingRanks : public HostRing<RingRank> {
 public:
  RingRanks(const AttentionShape& shape, const Topology& topology, std::int32_t ctas = 4,
            std::int32_t comm_ctas = 2, std::int32_t block_rows = 0)
      : HostRing(topology, 1), shape_(shape) {
    for (std::uint32_t r = 0; r < topology.world(); ++r) {
      RingGpuPlan plan =
          require(RingGpuPlan::make(shape, topology, r, kH200.with_sms(ctas), {.comm_ctas = comm_ctas}));
      if (block_rows > 0) plan.gather.cut(block_rows);
      ranks_.push_back(std::make_unique<RingRank>(std::move(plan)));
    }
    make_workspaces(ranks_[0]->plan.gather.word_bytes(), ranks_[0]->plan.gather.data_bytes());
    for (auto& rank : ranks_) {
      rank->p = ring_attention_parameters(rank->plan, &rank->counters);
      describe_gather(*rank, rank->plan, rank->plan.tile_keys());
    }
  }

  /// One launch of every rank with new operands.
  void check(std::uint64_t seed, bool with_lse = true) {
    launch(seed, with_lse);
    for (const auto& rank : ranks_) {
      const std::int32_t r = rank->plan.gather.rank;
      CHECK(rank->control.failed == 0);
      CHECK(rank->on_their_way == 0);
      const std::size_t wrong =
          wrong_attention_of_rank(shape_, tensors_, world(), r, rank->out, rank->lse, Weights::kRounded);
      CHECK_MESSAGE(wrong == 0, "rank ", r, ": ", wrong, " values wrong");
    }
  }
  void launch(std::uint64_t seed, bool with_lse = true) {
    tensors_ = random_attention(shape_, 10 * seed + 1, 2);
    HostGrid grid;
    for (auto& rank : ranks_) {
      fill(*rank, with_lse);
      add(grid, *rank);
    }
    add_services(grid);
    if (aborts_) {
      grid.add_service([this] {
        for (int step = 0; step < 5000 && !host_is_over(); ++step) host_yield();
        aborted_ = 1;
      });
    }
    grid.run();
  }
  /// Bytes that the plan of rank `rank` says it puts in a launch.
  std::uint64_t wire_bytes(std::size_t rank) const { return ranks_[rank]->plan.wire_bytes(); }
  const Elements& out(std::size_t rank) const { return ranks_[rank]->out; }
  /// The next launch is aborted by the host when it has been under way for a while.
  void abort_next() {
    aborts_ = true;
    for (auto& rank : ranks_) rank->p.endpoint.host.group_abort = &aborted_;
  }

 private:
  void fill(RingRank& rank, bool with_lse) {
    const KvGatherPlan& gather = rank.plan.gather;
    const std::int32_t me = gather.rank;
    RingAttentionParameters& p = rank.p;
    rank.q = rows_of_rank(shape_, tensors_.q, shape_.heads, world(), me);
    rank.k = rows_of_rank(shape_, tensors_.k, shape_.kv_heads, world(), me);
    rank.v = rows_of_rank(shape_, tensors_.v, shape_.kv_heads, world(), me);
    rank.out.assign(rank.q.size(), kPoison);
    rank.lse.assign(with_lse ? rank.q.size() / static_cast<std::size_t>(shape_.head_dim) : 0,
                    std::numeric_limits<float>::quiet_NaN());
    for (int part = 0; part < 2; ++part) {
      if (gather.part_rows[me][part] == 0) continue;
      p.q[part] = host_tensor_map(ring_q_view(rank.plan, part, rank.q.data()));
      p.out[part] = host_tensor_map(ring_out_view(rank.plan, part, rank.out.data()));
    }
    if (gather.positions(me) > 0)
      rank.map_own(rank.plan, rank.plan.tile_keys(), rank.k.data(), rank.v.data());
    p.lse = with_lse ? rank.lse.data() : nullptr;
  }

  void add(HostGrid& grid, RingRank& rank) {
    with_attention_tile(shape_, rank.plan.tile_keys(), [&]<int kHeadDim, int kTileKeys, DataType kType>() {
      using Config = AttentionConfig<kHeadDim, kTileKeys, kType>;
      const auto ctas = static_cast<std::uint32_t>(rank.plan.ctas);
      for (std::uint32_t cta = 0; cta < ctas; ++cta) {
        grid.add_cluster(cta, Config::kCluster, ctas, Config::kThreads, ring_attention_shared_bytes<Config>(),
                         [&rank] {
                           const HostThread& self = host_thread();
                           ring_attention_cta<Config>(rank.p, self.cluster_shared[self.cluster_rank]);
                           if (blockIdx.x == 0 && threadIdx.x == 0)
                             rank.on_their_way = rank.missing_chunks(rank.plan.gather);
                         });
      }
    });
  }

  const AttentionShape shape_;
  bool aborts_ = false;
  std::uint32_t aborted_ = 0;  ///< the word that the pollers of all ranks look at
  AttentionTensors tensors_;
};

TEST_CASE("ring attention kernel: every size of heads, mask and type, with tails and heads that share keys") {
  const AttentionShape of{.batch = 1, .sequence = 2 * 2 * 150 + 3, .heads = 2, .kv_heads = 1};
  for_every_attention(of, [](const AttentionShape& shape) {
    CAPTURE(shape.head_dim);
    CAPTURE(shape.causal);
    RingRanks(shape, {1, 2}).check(1);
  });
}

TEST_CASE(
    "ring attention kernel: one, two, three and four ranks, launches behind each other with new inputs") {
  for (const std::uint32_t world : {1U, 2U, 3U, 4U}) {
    for (const bool causal : {false, true}) {
      CAPTURE(world);
      CAPTURE(causal);
      RingRanks ranks(
          {.batch = 2, .sequence = 301, .heads = 1, .kv_heads = 1, .head_dim = 64, .causal = causal},
          {1, world});
      for (std::uint64_t launch = 0; launch < 3; ++launch) ranks.check(launch, launch != 1);
    }
  }
}

TEST_CASE(
    "ring attention kernel: heads of several batch entries, each in several chunks, shared by queries") {
  for (const Topology& topology : {Topology{1, 3}, Topology{2, 2}}) {
    for (const bool causal : {false, true}) {
      CAPTURE(topology.nodes());
      CAPTURE(causal);
      RingRanks ranks(
          {.batch = 2, .sequence = 150, .heads = 4, .kv_heads = 2, .head_dim = 128, .causal = causal},
          topology, 4, 2, 16);
      for (std::uint64_t launch = 0; launch < 2; ++launch) ranks.check(launch);
    }
  }
}

TEST_CASE("ring attention kernel: sequences shorter than the ranks") {
  for (const std::int64_t sequence : {1, 3, 9}) {
    for (const bool causal : {false, true}) {
      CAPTURE(sequence);
      CAPTURE(causal);
      RingRanks ranks(
          {.batch = 2, .sequence = sequence, .heads = 2, .kv_heads = 1, .head_dim = 64, .causal = causal},
          {1, 4}, 2, 1);
      for (std::uint64_t launch = 0; launch < 2; ++launch) ranks.check(launch);
    }
  }
}

TEST_CASE("ring attention kernel: parts that end within tiles, beside those of the next part and sequence") {
  for (const std::int64_t part : {127, 128, 129, 191}) {
    CAPTURE(part);
    RingRanks ranks(
        {.batch = 2, .sequence = 4 * part + 2, .heads = 1, .kv_heads = 1, .head_dim = 64, .causal = true},
        {1, 2}, 3, 1);
    ranks.check(7);
  }
}

TEST_CASE("ring attention kernel: the same bits however many CTAs push and compute") {
  const AttentionShape shape{
      .batch = 1, .sequence = 700, .heads = 4, .kv_heads = 2, .head_dim = 64, .causal = true};
  RingRanks few(shape, {1, 2}, 2, 1), many(shape, {1, 2}, 7, 3);
  few.check(3);
  many.check(3);
  for (const std::size_t rank : {0, 1}) CHECK(few.out(rank) == many.out(rank));
}

TEST_CASE("ring attention kernel: one CTA a rank pushes, computes, polls and ends the launch") {
  for (const std::uint32_t world : {1U, 3U}) {
    for (const bool causal : {false, true}) {
      CAPTURE(world);
      CAPTURE(causal);
      RingRanks ranks(
          {.batch = 1, .sequence = 301, .heads = 2, .kv_heads = 1, .head_dim = 128, .causal = causal},
          {1, world}, 1, 0);
      for (std::uint64_t launch = 0; launch < 3; ++launch) ranks.check(launch);
    }
  }
}

/// Two and three nodes, of one rank and of several; three of two ranks have a case of their own.
const std::vector<Topology> kSeveralNodes{{2, 1}, {3, 1}, {2, 2}};

TEST_CASE("ring attention kernel: several nodes, launches behind each other with new inputs") {
  for (const Topology& topology : kSeveralNodes) {
    for (const bool causal : {false, true}) {
      const std::string what = std::to_string(topology.nodes()) + " x " +
                               std::to_string(topology.ranks_per_node()) + (causal ? ", causal" : "");
      CAPTURE(what);
      RingRanks ranks(
          {.batch = 1, .sequence = 301, .heads = 2, .kv_heads = 1, .head_dim = 64, .causal = causal},
          topology, 4, 2, 20);
      constexpr std::uint64_t kLaunches = 3;
      for (std::uint64_t launch = 0; launch < kLaunches; ++launch) ranks.check(launch, launch != 1);
      for (std::size_t rank = 0; rank < topology.world(); ++rank)
        CHECK(ranks.delivered(rank) == kLaunches * ranks.wire_bytes(rank));
    }
  }
}

TEST_CASE("ring attention kernel: several nodes, every size of heads, mask and type") {
  const AttentionShape of{.batch = 1, .sequence = 2 * 2 * 150 + 3, .heads = 2, .kv_heads = 2};
  for_every_attention(of, [](const AttentionShape& shape) {
    CAPTURE(shape.head_dim);
    CAPTURE(shape.causal);
    RingRanks(shape, {2, 2}, 4, 2, 100).check(1);
  });
}

TEST_CASE("ring attention kernel: several nodes, sequences shorter than the ranks") {
  for (const std::int64_t sequence : {1, 3, 9}) {
    for (const bool causal : {false, true}) {
      CAPTURE(sequence);
      CAPTURE(causal);
      RingRanks ranks(
          {.batch = 2, .sequence = sequence, .heads = 2, .kv_heads = 1, .head_dim = 64, .causal = causal},
          {3, 2}, 2, 1);
      for (std::uint64_t launch = 0; launch < 2; ++launch) ranks.check(launch);
    }
  }
}

TEST_CASE("ring attention kernel: what is queued behind a failed launch does nothing") {
  RingRanks ranks({.batch = 1, .sequence = 40, .heads = 1, .kv_heads = 1, .head_dim = 64}, {1, 2});
  ranks.check(1);
  ranks.lent(0).stopped = 1;  // a launch of rank 0 has failed
  ranks.set_deadline(1'000'000);
  ranks.launch(2);
  CHECK(std::all_of(ranks.out(0).begin(), ranks.out(0).end(),
                    [](std::uint16_t bits) { return bits == kPoison; }));
  CHECK(ranks.control(0).failed == 0);
  REQUIRE(ranks.control(1).failed != 0);  // it waits for keys that do not come, and says whose
  CHECK(ranks.control(1).site.peer == 0);
  CHECK(ranks.control(1).site.tag == DeviceTag::kChunkReady);
}

TEST_CASE(
    "ring attention kernel: an abort of the host's ends the waits of CTA 0, which computes, and of others") {
  for (const std::int32_t ctas : {1, 4}) {
    CAPTURE(ctas);
    RingRanks ranks({.batch = 1, .sequence = 40, .heads = 1, .kv_heads = 1, .head_dim = 64}, {1, 2}, ctas, 0);
    ranks.check(1);
    ranks.lent(0).stopped = 1;  // a launch of rank 0 has failed
    constexpr std::uint64_t kDeadline = 10'000'000'000;
    ranks.set_deadline(kDeadline);
    ranks.abort_next();
    ranks.launch(2);
    REQUIRE(ranks.control(1).failed != 0);
    CHECK(ranks.control(1).waited_ns < kDeadline);
    CHECK(ranks.control(1).stopped != 0);
    CHECK(ranks.control(1).epoch == 2);
  }
}

TEST_CASE(
    "ring attention kernel: over several nodes, whose chunks do not come is said by who waits for them") {
  RingRanks ranks({.batch = 1, .sequence = 60, .heads = 1, .kv_heads = 1, .head_dim = 64}, {2, 2});
  ranks.check(1);
  ranks.lent(1).stopped = 1;  // a launch of rank 1 has failed
  ranks.set_deadline(1'000'000);
  ranks.launch(2);
  CHECK(ranks.control(1).failed == 0);
  for (const std::size_t rank : {0, 3}) {
    REQUIRE(ranks.control(rank).failed != 0);
    CHECK(ranks.control(rank).site.peer == 1);
  }
  CHECK(ranks.control(0).site.tag == DeviceTag::kChunkReady);
  CHECK(ranks.control(3).site.tag == DeviceTag::kArrivals);
}

}  // namespace
}  // namespace mkernel::test
