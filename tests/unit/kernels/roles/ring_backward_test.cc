// The whole kernel of the backward pass of ring attention on the host: ranks push keys and values to each
// other, compute what their queries give of all gradients, and send those of keys and values to their owners.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ops/ring_attention/backward/nodes_roles.cuh"
#include "kernels/ops/ring_attention/backward/plan.h"
#include "kernels/ops/ring_attention/backward/roles.cuh"
#include "kernels/ops/ring_attention/with_config.h"
#include "tests/support/attention_backward_reference.h"
#include "tests/support/fake_fabric.h"
#include "tests/support/on_host/cuda_names.h"
#include "tests/support/on_host/sm90.h"
#include "tests/support/random_tensor.h"
#include "tests/support/require.h"
#include "tests/unit/kernels/roles/ring_ranks.h"

namespace mkernel::test {
namespace {

using namespace mkernel::kernels;

struct RingBackwardRank : HostRingRank<RingBackwardNodesParameters> {
  RingBackwardPlan plan;
  std::vector<HostLine> scratch{};
  std::vector<std::uint64_t> wire{};
  AttentionBackwardTensors tensors{};
  AttentionGradients gradients{};

  explicit RingBackwardRank(RingBackwardPlan made) : plan(std::move(made)) {}
};

/// 0: as the plan has it.
struct Cut {
  std::int32_t block_rows = 0, chunk_units = 0, sum_ctas = 0;
};

/// Ranks of some nodes, each with `ctas` CTAs. `cut`: few rows and units travel in many chunks and puts.
class RingBackwardRanks : public HostRing<RingBackwardRank> {
 public:
  RingBackwardRanks(const AttentionShape& shape, const Topology& topology, std::int32_t ctas = 4,
                    std::int32_t comm_ctas = 2, Cut cut = {})
      : HostRing(topology, topology.nodes() > 1 ? 2 : 1), shape_(shape) {
    for (std::uint32_t r = 0; r < topology.world(); ++r) {
      RingBackwardPlan plan =
          require(RingBackwardPlan::make(shape, topology, r, kH200.with_sms(ctas), {.comm_ctas = comm_ctas}));
      if (cut.block_rows > 0) plan.ring.gather.cut(cut.block_rows);
      plan.lay_out();
      if (cut.chunk_units > 0) plan.puts.chunk_units = cut.chunk_units;
      if (cut.sum_ctas > 0) plan.sum_ctas = cut.sum_ctas;
      ranks_.push_back(std::make_unique<RingBackwardRank>(std::move(plan)));
    }
    make_workspaces(ranks_[0]->plan.partials.word_bytes(), ranks_[0]->plan.data_bytes());
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
    const int roundings = topology_.nodes() > 1 ? 2 : 1;  // of what a rank gives, and of a node's sum
    CHECK(wrong_gradients_of_ranks(shape_, whole_, by_rank, Weights::kRounded, roundings) == 0);
  }
  void launch(std::uint64_t seed, float scale = 2) {
    whole_ = random_attention_backward(shape_, 10 * seed + 1, scale);
    HostGrid grid;
    for (auto& rank : ranks_) {
      fill(*rank);
      for (int i = 0; i < at_a_time_; ++i) add(grid, *rank);
    }
    add_services(grid);
    grid.run();
  }
  const AttentionGradients& gradients(std::size_t rank) const { return ranks_[rank]->gradients; }
  AttentionGradients poisoned(std::size_t rank) const {
    return poisoned_gradients_of_rank(shape_, world(), static_cast<std::int64_t>(rank));
  }
  /// Bytes that the plan of rank `rank` says it puts in a launch.
  std::uint64_t wire_bytes(std::size_t rank) const { return ranks_[rank]->plan.wire_bytes(); }

 private:
  /// As the operation does it.
  void describe(RingBackwardRank& rank) {
    // Whoever adds before the first one has stored adds to no number.
    const AttentionBackwardScratch at = ring_backward_scratch(rank.plan);
    rank.scratch = lines_of_no_numbers(static_cast<std::uint64_t>(at.bytes),
                                       static_cast<std::size_t>(at.sums) / sizeof(HostLine));
    rank.wire.resize(ring_backward_wire_bytes(rank.plan) / 8);
    rank.p = ring_backward_parameters(rank.plan, rank.scratch.data(), rank.wire.data());
    rank.p.row_map = host_packed_map(backward_rows_view(rank.p));
    describe_owners(topology_, rank.p);
    describe_gather(rank, rank.plan.ring, kBackwardTileKeys);
  }

  void fill(RingBackwardRank& rank) {
    const KvGatherPlan& gather = rank.plan.gather();
    const std::int32_t me = gather.rank;
    RingBackwardParameters& p = rank.p;
    rank.tensors = backward_of_rank(shape_, whole_, world(), me);
    rank.gradients = poisoned(static_cast<std::size_t>(me));
    const AttentionBackwardTensors& given = rank.tensors;
    for (int part = 0; part < 2; ++part) {
      if (gather.part_rows[me][part] == 0) continue;
      p.q[part] = host_tensor_map(ring_backward_q_view(rank.plan, part, given.forward.q.data()));
      p.d_out[part] = host_tensor_map(ring_backward_q_view(rank.plan, part, given.d_out.data()));
    }
    if (gather.positions(me) > 0)
      rank.map_own(rank.plan.ring, kBackwardTileKeys, given.forward.k.data(), given.forward.v.data());
    p.out = given.out.data();
    p.d_out_rows = given.d_out.data();
    p.lse = given.lse.data();
    p.d_q = rank.gradients.d_q.data();
    p.d_rows[0] = reinterpret_cast<std::byte*>(rank.gradients.d_k.data());
    p.d_rows[1] = reinterpret_cast<std::byte*>(rank.gradients.d_v.data());
  }

  void add(HostGrid& grid, RingBackwardRank& rank) {
    const bool nodes = topology_.nodes() > 1;
    with_attention_config(shape_, [&]<int kHeadDim, bool kCausal, DataType kType>() {
      using Config = AttentionBackwardConfig<kHeadDim, kCausal, kType>;
      const auto ctas = static_cast<std::uint32_t>(rank.plan.ring.ctas);
      for (std::uint32_t cta = 0; cta < ctas; ++cta) {
        grid.add_cluster(cta, Config::kCluster, ctas, Config::kThreads, ring_backward_shared_bytes<Config>(),
                         [this, &rank, nodes] {
                           const HostThread& self = host_thread();
                           std::byte* const memory = self.cluster_shared[self.cluster_rank];
                           if (nodes) {
                             ring_backward_nodes_cta<Config>(rank.p, memory);
                           } else {
                             ring_backward_cta<Config>(rank.p, memory);
                           }
                           if (blockIdx.x == 0 && threadIdx.x == 0) {
                             rank.on_their_way = rank.missing_chunks(rank.plan.gather()) +
                                                 missing_partials(rank) + missing_puts(rank);
                           }
                         });
      }
    });
  }

  /// When the launch ends: partial gradients of ranks of this node that are still to come.
  int missing_partials(const RingBackwardRank& rank) const {
    const KvGatherPlan& gather = rank.plan.gather();
    const auto me = static_cast<std::uint32_t>(gather.rank);
    int missing = 0;
    for (std::uint32_t local = 0; local < topology_.ranks_per_node(); ++local) {
      const std::uint32_t writer = topology_.rank_at(topology_.node_of(me), local);
      for (std::uint32_t node = 0; node < topology_.nodes(); ++node)
        missing += missing_partials(rank, writer, topology_.rail_peer(me, node));
    }
    return missing;
  }
  int missing_partials(const RingBackwardRank& rank, std::uint32_t writer, std::uint32_t owner) const {
    const KvGatherPlan& gather = rank.plan.gather();
    const KeyPartialsPlan& partials = rank.plan.partials;
    const auto of = static_cast<std::int32_t>(owner);
    int missing = 0;
    for (int part = 0; part < 2; ++part) {
      if (!RingBackwardTasks::is_seen(gather, static_cast<std::int32_t>(writer), of, part)) continue;
      for (std::int32_t row = 0; row < gather.part_rows[owner][part]; row += KeyPartialsPlan::kRows) {
        for (std::int32_t head = 0; head < gather.heads; ++head) {
          const std::int32_t unit = KeyPartialsPlan::unit(gather, of, part, head, row);
          const std::uint64_t word =
              rank.words[partials.word_offset(key_slot(topology_, writer, owner), unit) / 8];
          missing += word < KeyPartialsPlan::count(rank.control.epoch - 1) ? 1 : 0;
        }
      }
    }
    return missing;
  }
  /// Sums of other nodes, and own puts that are not completed.
  static int missing_puts(const RingBackwardRank& rank) {
    const KvGatherPlan& gather = rank.plan.gather();
    const PolledCounts& counts = rank.p.endpoint.counts;
    int missing = 0;
    for (std::int32_t distance = 1; distance <= gather.rails(); ++distance) {
      const auto peer = static_cast<std::uint32_t>(rank.p.rail[distance - 1]);
      const auto chunks = [&](std::int32_t head_units) {
        return rank.control.epoch *
               static_cast<std::uint64_t>(rank.plan.puts.chunks(gather.heads * head_units));
      };
      missing +=
          counts.seen[counts.arrivals_index(peer, 1)] != chunks(rank.plan.come_units(distance)) ? 1 : 0;
      missing +=
          counts.seen[counts.completed_index(peer, 1)] != chunks(rank.plan.put_units(distance)) ? 1 : 0;
    }
    return missing;
  }

  const AttentionShape shape_;
  AttentionBackwardTensors whole_;
};

TEST_CASE("ring backward kernel: every size of heads, mask and type, with tails and heads that share keys") {
  const AttentionShape of{.batch = 1, .sequence = 2 * 2 * 90 + 3, .heads = 2, .kv_heads = 1};
  for_every_attention(of, [](const AttentionShape& shape) {
    CAPTURE(shape.head_dim);
    CAPTURE(shape.causal);
    RingBackwardRanks(shape, {1, 2}).check(1);
  });
}

TEST_CASE(
    "ring backward kernel: one, two, three and four ranks, launches behind each other with new inputs") {
  for (const std::uint32_t world : {1U, 2U, 3U, 4U}) {
    for (const bool causal : {false, true}) {
      CAPTURE(world);
      CAPTURE(causal);
      RingBackwardRanks ranks(
          {.batch = 2, .sequence = 301, .heads = 1, .kv_heads = 1, .head_dim = 64, .causal = causal},
          {1, world});
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
          {.batch = 2, .sequence = sequence, .heads = 2, .kv_heads = 1, .head_dim = 64, .causal = causal},
          {1, 4}, 2, 1);
      for (std::uint64_t launch = 0; launch < 2; ++launch) ranks.check(launch);
    }
  }
}

TEST_CASE("ring backward kernel: parts that end within tiles, beside those of the next part and sequence") {
  for (const std::int64_t part : {63, 64, 65, 127, 129, 191}) {
    CAPTURE(part);
    RingBackwardRanks ranks(
        {.batch = 2, .sequence = 4 * part + 2, .heads = 1, .kv_heads = 1, .head_dim = 64, .causal = true},
        {1, 2}, 3, 1, {.block_rows = 40});
    ranks.check(7);
  }
}

TEST_CASE("ring backward kernel: the same bits however many CTAs push and compute, launch after launch") {
  const AttentionShape shape{
      .batch = 1, .sequence = 500, .heads = 4, .kv_heads = 2, .head_dim = 64, .causal = true};
  RingBackwardRanks few(shape, {1, 2}, 2, 1), many(shape, {1, 2}, 7, 3);
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
          {.batch = 1, .sequence = 400, .heads = 1, .kv_heads = 1, .head_dim = head_dim, .causal = true},
          {1, 2})
          .check(5);
  }
}

TEST_CASE("ring backward kernel: what is queued behind a failed launch does nothing") {
  RingBackwardRanks ranks({.batch = 1, .sequence = 40, .heads = 1, .kv_heads = 1, .head_dim = 64}, {1, 2});
  ranks.check(1);
  ranks.lent(0).stopped = 1;  // a launch of rank 0 has failed
  ranks.set_deadline(100 * kHostRoundNs);
  ranks.launch(2);
  CHECK(ranks.gradients(0) == ranks.poisoned(0));
  CHECK(ranks.control(0).failed == 0);
  REQUIRE(ranks.control(1).failed != 0);  // it waits for keys that do not come, and says whose
  CHECK(ranks.control(1).site.peer == 0);
  CHECK(ranks.control(1).site.tag == DeviceTag::kChunkReady);
}

/// Two and three nodes, of one rank and of several.
const std::vector<Topology> kSeveralNodes{{2, 1}, {3, 1}, {2, 2}, {2, 3}, {3, 2}};

std::string name_of_case(const Topology& topology, bool causal) {
  return std::to_string(topology.nodes()) + " x " + std::to_string(topology.ranks_per_node()) +
         (causal ? ", causal" : "");
}

TEST_CASE("ring backward kernel: several nodes, launches behind each other with new inputs") {
  for (const Topology& topology : kSeveralNodes) {
    for (const bool causal : {false, true}) {
      const std::string what = name_of_case(topology, causal);
      CAPTURE(what);
      // Of many ranks two launches, which use both halves, of half the work.
      const bool many = topology.world() > 4;
      const std::uint64_t launches = many ? 2 : 3;
      const std::int64_t kv_heads = many ? 1 : 2;
      RingBackwardRanks ranks({.batch = 1,
                               .sequence = 301,
                               .heads = 2 * kv_heads,
                               .kv_heads = kv_heads,
                               .head_dim = 64,
                               .causal = causal},
                              topology, 4, 2, {.block_rows = 20, .chunk_units = 3});
      for (std::uint64_t launch = 0; launch < launches; ++launch) ranks.check(launch);
      for (std::size_t rank = 0; rank < topology.world(); ++rank)
        CHECK(ranks.delivered(rank) == launches * ranks.wire_bytes(rank));
    }
  }
}

TEST_CASE("ring backward kernel: several nodes, whose ranks are numbered across them") {
  const FakeFabric fabric({.nodes = 2, .ranks_per_node = 2, .across_nodes = true});
  for (const bool causal : {false, true}) {
    CAPTURE(causal);
    RingBackwardRanks ranks(
        {.batch = 1, .sequence = 301, .heads = 2, .kv_heads = 1, .head_dim = 64, .causal = causal},
        require(Topology::of(fabric.group(0))), 4, 2, {.chunk_units = 1});
    for (std::uint64_t launch = 0; launch < 2; ++launch) ranks.check(launch);
  }
}

TEST_CASE("ring backward kernel: several nodes, every size of heads, mask and type") {
  const AttentionShape of{.batch = 1, .sequence = 2 * 4 * 70 + 3, .heads = 1, .kv_heads = 1};
  for_every_attention(of, [](const AttentionShape& shape) {
    CAPTURE(shape.head_dim);
    CAPTURE(shape.causal);
    RingBackwardRanks(shape, {2, 2}, 4, 2, {.chunk_units = 3}).check(1);
  });
}

TEST_CASE("ring backward kernel: several nodes, sequences shorter than the ranks") {
  for (const std::int64_t sequence : {1, 3, 9}) {
    for (const bool causal : {false, true}) {
      CAPTURE(sequence);
      CAPTURE(causal);
      RingBackwardRanks ranks(
          {.batch = 2, .sequence = sequence, .heads = 2, .kv_heads = 1, .head_dim = 64, .causal = causal},
          {3, 2}, 2, 1);
      for (std::uint64_t launch = 0; launch < 2; ++launch) ranks.check(launch);
    }
  }
}

TEST_CASE("ring backward kernel: several nodes, the same bits however many CTAs push, add up and compute") {
  const AttentionShape shape{
      .batch = 1, .sequence = 700, .heads = 8, .kv_heads = 4, .head_dim = 64, .causal = true};
  RingBackwardRanks few(shape, {2, 2}, 2, 1), many(shape, {2, 2}, 7, 3, {.chunk_units = 3, .sum_ctas = 3});
  few.check(3);
  for (int launch = 0; launch < 2; ++launch) {
    many.check(3);
    for (const std::size_t rank : {0, 1, 2, 3}) CHECK(few.gradients(rank) == many.gradients(rank));
  }
}

TEST_CASE("ring backward kernel: over several nodes, whose keys do not come is said by who waits for them") {
  RingBackwardRanks ranks({.batch = 1, .sequence = 60, .heads = 1, .kv_heads = 1, .head_dim = 64}, {2, 2});
  ranks.check(1);
  ranks.lent(1).stopped = 1;  // a launch of rank 1 has failed
  ranks.set_deadline(100 * kHostRoundNs);
  ranks.launch(2);
  CHECK(ranks.control(1).failed == 0);
  CHECK(ranks.gradients(1) == ranks.poisoned(1));
  for (const std::size_t rank : {0, 3}) {
    REQUIRE(ranks.control(rank).failed != 0);
    CHECK(ranks.control(rank).site.peer == 1);
  }
  CHECK(ranks.control(0).site.tag == DeviceTag::kChunkReady);
  CHECK(ranks.control(3).site.tag == DeviceTag::kArrivals);
}

TEST_CASE("ring backward kernel: of two launches at a time one fails and says so") {
  RingBackwardRanks rank({.batch = 1, .sequence = 200, .heads = 1, .kv_heads = 1, .head_dim = 64}, {1, 1});
  rank.check(1);
  rank.check_two([&] { rank.launch(2); });
}

}  // namespace
}  // namespace mkernel::test
