// Ranks of the mixture of experts whose roles are played on the host, thread by thread: routing, table,
// pushes, what crosses nodes, the order of tasks and their waits, signals of finished rows, sums. What
// multiplies is replaced: of a cluster one warp takes its tasks, and its first lane computes their tiles. Or
// the whole kernel is played, which takes longer.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/cuda/sync/device_timeline.h"
#include "kernels/ops/moe_dispatch_gemm/dispatch.cuh"
#include "kernels/ops/moe_dispatch_gemm/matrix_views.h"
#include "kernels/ops/moe_dispatch_gemm/plan.h"
#include "kernels/ops/moe_dispatch_gemm/roles.cuh"
#include "kernels/ops/moe_dispatch_gemm/tasks.cuh"
#include "kernels/plan/host_expert_tasks.h"
#include "tests/support/moe_cases.h"
#include "tests/support/moe_reference.h"
#include "tests/support/on_host/cuda_names.h"
#include "tests/support/on_host/sm90.h"
#include "tests/support/random_tensor.h"
#include "tests/support/require.h"
#include "tests/unit/kernels/roles/host_fabric.h"
#include "tests/unit/kernels/roles/moe_spread.h"
#include "tests/unit/kernels/roles/moe_tiles.h"
#include "tests/unit/kernels/roles/play_launch.h"

namespace mkernel::test {

using namespace mkernel::kernels;

class HostRanks {
 public:
  HostRanks(const MoeShape& shape, const Nodes& nodes, const Spread& spread)
      : shape_(shape),
        spread_(spread),
        plan_(require(MoePlan::make(shape, nodes.topology(),
                                    {.block_rows = 128,
                                     .unit_rows = 64,
                                     .tile_columns = HostTile::kTileN,
                                     .gated_columns = HostTile::kTileN / 2,
                                     .dispatch_ctas = spread.dispatch_ctas,
                                     .section_blocks = spread.section_blocks,
                                     .apart = spread.apart}))),
        weights_(random_weights(shape, 17)),
        ranks_(nodes.world()),
        fabric_(nodes.world(), kLanes) {
    const Topology& topology = plan_.topology;
    for (Rank& rank : ranks_) rank.workspace = zeroed(plan_.requirements().workspace_bytes);
    for (std::uint32_t r = 0; r < nodes.world(); ++r) {
      Rank& rank = ranks_[r];
      std::vector<std::byte*> of_node;
      for (std::uint32_t local = 0; local < nodes.ranks; ++local)
        of_node.push_back(ranks_[topology.rank_at(topology.node_of(r), local)].workspace.get());
      rank.scratch = zeroed(moe_scratch_bytes(plan_));
      rank.p = moe_parameters(plan_, r, of_node, rank.scratch.get());
      rank.p.lead = static_cast<std::int32_t>(spread.clusters);
      rank.p.summing_ctas = spread.whole_kernel ? kMoeCluster : spread.dispatch_ctas;
      rank.p.sum_parts = spread.sum_parts;
      rank.p.region = HostFabric::kRegion;
      fabric_.open(rank.p.endpoint, r, rank.control);
      if (spread.whole_kernel) describe_matrices(rank, r);
    }
  }

  /// One launch of every rank; what each leaves in y.
  std::vector<std::vector<std::uint16_t>> launch(const std::vector<MoeInput>& inputs) {
    auto y = play(inputs);
    for (Rank& rank : ranks_) {
      CHECK(rank.control.failed == 0);
      CHECK(rank.p.scratch.report->sent == fabric_.delivered(rank.p.endpoint.rank) - rank.delivered_before);
      if (!spread_.whole_kernel) ++rank.control.epoch;
    }
    return y;
  }
  /// Two launches of a rank alone at the same time, of the whole kernel.
  void check_two(const std::vector<MoeInput>& inputs) {
    const std::uint64_t before = ranks_[0].control.epoch;
    ranks_[0].p.endpoint.deadline_ns = kHostTwoLaunchesNs;
    (void)play(inputs, 2);
    check_two_at_a_time(ranks_[0].control, before);
  }
  /// A launch behind one that failed: leaves y as it was.
  void check_stopped(const std::vector<MoeInput>& inputs) {
    for (const auto& y : play(inputs))
      CHECK(std::all_of(y.begin(), y.end(), [](std::uint16_t bits) { return bits == kPoison; }));
  }
  void check(const std::vector<MoeInput>& inputs) {
    const auto y = launch(inputs);
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      const auto elements = static_cast<std::size_t>(inputs[r].tokens * shape_.n);
      std::size_t wrong = wrong_elements(shape_, weights_, inputs[r], y[r]);
      CHECK_MESSAGE(wrong == 0, "rank ", r, ": ", wrong, " of ", elements, " elements wrong");
      for (std::size_t at = elements; at < y[r].size(); ++at) wrong += y[r][at] == kPoison ? 0 : 1;
      CHECK_MESSAGE(wrong == 0, "rank ", r, " wrote beyond its tokens");
      CHECK(ranks_[r].p.scratch.report->refusal.launch != ranks_[r].control.epoch);
      check_sections(ranks_[r].p, inputs);
    }
  }

  /// Every rank refuses alike, and writes nothing.
  MoeRefusal refused(const std::vector<MoeInput>& inputs) {
    for (const auto& y : launch(inputs)) {
      for (const std::uint16_t element : y) REQUIRE(element == kPoison);
    }
    const MoeRefusal first = ranks_[0].p.scratch.report->refusal;
    for (const Rank& rank : ranks_) {
      CHECK(rank.p.scratch.report->refusal.launch == rank.control.epoch);
      CHECK(std::memcmp(&rank.p.scratch.report->refusal, &first, sizeof first) == 0);
    }
    return first;
  }

  /// Of the last launch of a rank, with times that only tell what came first.
  std::vector<TraceEvent> timeline(std::size_t rank) const {
    return device_timeline(ranks_[rank].tracks, ranks_[rank].events, kKeptEvents, 0);
  }

  std::vector<MoeInput> inputs(const Router& router, std::int64_t each, std::uint64_t seed) const {
    std::vector<MoeInput> made;
    for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank)
      made.push_back(random_input(shape_, rank, each, router, seed));
    return made;
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  using Memory = std::unique_ptr<std::byte, Free>;
  struct Rank {
    Memory workspace, scratch;
    LaunchControl control{};
    MoeParameters p{};
    std::vector<std::unique_ptr<std::byte[]>> shared;  ///< memory of dispatching CTAs
    std::vector<DeviceTrack> tracks;
    std::vector<DeviceTraceEvent> events;
    std::uint64_t delivered_before = 0;  ///< bytes, by the fabric, before this launch
    MoeWeightOperands weights;           ///< of its experts, in the layout of the shape; of the whole kernel
  };
  static constexpr std::uint32_t kKeptEvents = 64, kLanes = 2;

  /// CTAs of a launch.
  std::uint32_t blocks() const {
    return static_cast<std::uint32_t>(spread_.dispatch_ctas) +
           (spread_.whole_kernel ? kMoeCluster : 1) * spread_.clusters;
  }

  void open_trace(Rank& rank) const {
    rank.tracks.assign(blocks() * kTracksPerCta, {});
    rank.events.resize(rank.tracks.size() * kKeptEvents);
    rank.p.endpoint.trace = {rank.tracks.data(), rank.events.data(), kKeptEvents};
  }

  /// `at_a_time` launches of every rank at the same time; what they leave in y.
  std::vector<std::vector<std::uint16_t>> play(const std::vector<MoeInput>& inputs, int at_a_time = 1) {
    HostGrid grid;
    std::vector<std::vector<std::uint16_t>> y(ranks_.size());
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      Rank& rank = ranks_[r];
      y[r].assign(static_cast<std::size_t>(shape_.max_tokens * shape_.n), kPoison);
      rank.delivered_before = fabric_.delivered(r);
      rank.p.x = reinterpret_cast<const std::byte*>(inputs[r].x.data());
      rank.p.y = reinterpret_cast<std::byte*>(y[r].data());
      const std::vector<float>& factors = inputs[r].shared_weights;
      rank.p.shared_weights = factors.empty() ? nullptr : factors.data();
      if (spread_.whole_kernel) describe_shared(rank, inputs[r]);
      if (spread_.traced) open_trace(rank);
      rank.p.routed = {inputs[r].topk.data(), inputs[r].weights.data(),
                       static_cast<std::int32_t>(inputs[r].tokens), static_cast<std::int32_t>(shape_.topk)};
      for (int i = 0; i < at_a_time; ++i) add_rank(grid, rank);
    }
    if (plan_.exchange.others() > 0) {
      grid.add_service([this] {
        fabric_.deliver([this](std::uint32_t rank) { return ranks_[rank].workspace.get(); },
                        plan_.exchange.bytes(), spread_.whole_kernel);
      });
    }
    if (spread_.whole_kernel) grid.add_service(host_copy_engine);
    grid.run();
    return y;
  }

  static Memory zeroed(std::uint64_t bytes) {
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(128, (bytes + 127) / 128 * 128));
    std::memset(memory, 0, bytes);
    return Memory(memory);
  }

  /// The sections of the last launch are those of the plan, and the rows of this node lie first.
  void check_sections(const MoeParameters& p, const std::vector<MoeInput>& inputs) const {
    const ExpertTasks tasks = moe_expert_tasks(p);
    const PushOrder order = p.plan.order(p.rank);
    std::vector<std::int32_t> near(static_cast<std::size_t>(tasks.owned.experts));
    for (std::int32_t turn = 0; turn < order.ranks_per_node; ++turn) {
      for (const std::int32_t expert : inputs[static_cast<std::size_t>(order.source(turn))].topk) {
        if (p.plan.owners.owner(expert) == p.rank)
          ++near[static_cast<std::size_t>(p.plan.owners.local(expert))];
      }
    }
    const HostExpertSections host(tasks.owned, p.sections, near.data());
    const ExpertSections expected = host.view(), found = tasks.sections;
    REQUIRE(found.count == expected.count);
    CHECK(std::equal(found.first_block, found.first_block + found.count, expected.first_block));
    CHECK(std::equal(found.experts, found.experts + found.count, expected.experts));
    CHECK(std::equal(found.blocks_before, found.blocks_before + found.count + 1, expected.blocks_before));
    const auto* origins = reinterpret_cast<const ExpertRowOrigin*>(moe_memory(p, p.rank) + p.places.origin);
    std::size_t wrong = 0;
    for (std::int32_t expert = 0; expert < tasks.owned.experts; ++expert) {
      for (std::int32_t row = 0; row < tasks.owned.rows[expert]; ++row) {
        const bool is_near = origins[tasks.owned.first_row(expert) + row].entry < p.plan.crossed_entry(0, 0);
        wrong += is_near == (row < near[static_cast<std::size_t>(expert)]) ? 0 : 1;
      }
    }
    CHECK(wrong == 0);
  }

  /// As CudaMoe does it.
  void describe_matrices(Rank& rank, std::uint32_t number) {
    const Range experts = plan_.experts(number);
    MoeParameters& p = rank.p;
    const MoePoolViews pool = moe_pool_views(plan_, rank.workspace.get());
    p.experts.rows = host_tensor_map(pool.rows);
    p.experts.hidden_a = host_tensor_map(pool.hidden_a);
    p.experts.hidden_c = host_tensor_map(pool.hidden_c);
    // The halves of w1 are two operands, where there are two.
    rank.weights = weight_operands(shape_, weights_, shape_.intermediate > 0);
    for (auto* all : {&rank.weights.w1, &rank.weights.w1_up, &rank.weights.w2}) {
      const auto mine = own_experts(shape_, static_cast<std::uint32_t>(ranks_.size()), number, *all);
      *all = std::vector<std::uint16_t>(mine.begin(), mine.end());
    }
    if (experts.size() == 0) return;
    MoeArguments arguments{};
    arguments.w1 = rank.weights.w1.data();
    if (shape_.intermediate > 0) {
      arguments.w1_up = rank.weights.w1_up.data();
      arguments.w2 = rank.weights.w2.data();
    }
    describe_weights(moe_weight_views(shape_, experts.size(), arguments), p.experts);
  }

  void describe_weights(const MoeWeightViews& views, MoeOperands& to) const {
    to.w1 = host_tensor_map(views.w1);
    to.weight_rows1 = views.weight_rows1;
    if (shape_.intermediate == 0) return;
    to.w1_up = host_tensor_map(views.w1_up);
    to.w2 = host_tensor_map(views.w2);
    to.weight_rows2 = views.weight_rows2;
  }

  /// The shared expert, on the tokens of a launch.
  void describe_shared(Rank& rank, const MoeInput& input) const {
    if (shape_.shared_intermediate == 0 || input.tokens == 0) return;
    MoeOperands& shared = rank.p.shared;
    const MoePoolViews views = moe_shared_views(plan_, rank.workspace.get(), input.x.data(), input.tokens);
    shared.rows = host_tensor_map(views.rows);
    shared.hidden_a = host_tensor_map(views.hidden_a);
    shared.hidden_c = host_tensor_map(views.hidden_c);
    MoeArguments arguments{};
    arguments.shared_w1 = rank.weights.shared_w1.data();
    arguments.shared_w1_up = rank.weights.shared_w1_up.data();
    arguments.shared_w2 = rank.weights.shared_w2.data();
    describe_weights(moe_shared_weight_views(shape_, arguments), shared);
  }

  void add_kernel(HostGrid& grid, Rank& rank, std::size_t routing_bytes) {
    const auto add = [&]<DataType kType, Layout kLayoutW>() {
      using Config = MoeConfig<kType, kLayoutW>;
      for (std::uint32_t cta = 0; cta < blocks(); cta += kMoeCluster) {
        grid.add_cluster(cta, kMoeCluster, blocks(), Config::kThreads,
                         std::max(sm90_feed_shared_bytes<Config>(), routing_bytes), [&rank] {
                           const HostThread& self = host_thread();
                           moe_cta<Config>(rank.p, self.cluster_shared[self.cluster_rank]);
                         });
      }
    };
    with_type([&]<DataType kType>() {
      if (shape_.w_layout == Layout::kRowMajor) {
        add.template operator()<kType, Layout::kRowMajor>();
      } else {
        add.template operator()<kType, Layout::kColumnMajor>();
      }
    });
  }

  void add_rank(HostGrid& grid, Rank& rank) {
    rank.shared.clear();
    const ExpertExchangePlan& plan = plan_.exchange;
    const std::size_t words = static_cast<std::size_t>(moe_routing_words(
        static_cast<std::int32_t>(spread_.whole_kernel ? 12 : spread_.warps), plan.owners.experts,
        plan.owners.max_local(), plan.order(0).steps(), plan.others()));
    if (spread_.whole_kernel) return add_kernel(grid, rank, 4 * words);
    for (std::uint32_t cta = 0; cta < blocks(); ++cta) {
      if (cta >= static_cast<std::uint32_t>(spread_.dispatch_ctas)) {
        grid.add(cta, blocks(), 32 * (1 + spread_.summers), [this, &rank] { compute(rank.p); });
        continue;
      }
      // The last warp of CTA 0 would poll the host; over several nodes the one before sends.
      const bool sends = cta == 0 && plan.others() > 0;
      const std::uint32_t warps = spread_.warps - (cta == 0 ? 1 : 0) - (sends ? 1 : 0);
      std::byte* memory =
          rank.shared.emplace_back(std::make_unique_for_overwrite<std::byte[]>(4 * words)).get();
      grid.add(cta, blocks(), 32 * (warps + (sends ? 1 : 0)), [this, &rank, warps, memory] {
        if (threadIdx.x / 32 == warps) return MoeSender(rank.p, rank.control.epoch).run();
        const MoeWorkers workers{static_cast<std::int32_t>(threadIdx.x / 32),
                                 static_cast<std::int32_t>(warps)};
        with_type(
            [&]<DataType kType>() { moe_dispatch<kType>(rank.p, rank.control.epoch, workers, memory); });
      });
    }
  }

  template <class With>
  void with_type(const With& with) {
    if (shape_.dtype == DataType::kBf16) {
      with.template operator()<DataType::kBf16>();
    } else {
      with.template operator()<DataType::kF16>();
    }
  }

  /// A thread of a cluster: of its first warp, or of one that only sums.
  void compute(const MoeParameters& p) {
    const std::uint64_t epoch = p.endpoint.control->epoch;
    if (threadIdx.x < 32) {
      const MoeTasks<HostTile> tasks(p, epoch);
      Sm90Task pair[2]{};
      for (bool more = tasks.begin(); more && tasks.next(pair[0], pair[1]);) {
        for (const Sm90Task& task : pair) {
          const int turns = tasks.gated(task.product) ? spread_.pause * (1 + task.column % 3) : 0;
          for (int turn = 0; turn < turns; ++turn) host_yield();
          if (threadIdx.x == 0) HostTiles{shape_, weights_}.multiply(p, tasks, task);
          __syncwarp();
          tasks.after_store(task);
        }
      }
    }
    __syncthreads();
    with_type([&]<DataType kType>() { moe_sum<kType>(p, epoch); });
  }

  const MoeShape shape_;
  const Spread spread_;
  const MoePlan plan_;
  const MoeWeights weights_;
  std::vector<Rank> ranks_;
  HostFabric fabric_;
};

}  // namespace mkernel::test
