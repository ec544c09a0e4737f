// Ring attention whose whole kernel is played on the host, on every rank of some nodes.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ops/ring_attention/gpu_plan.h"
#include "kernels/ops/ring_attention/roles.cuh"
#include "kernels/ops/ring_attention/varlen_roles.cuh"
#include "kernels/ops/ring_attention/with_config.h"
#include "tests/support/attention_reference.h"
#include "tests/support/on_host/cuda_names.h"
#include "tests/support/on_host/sm90.h"
#include "tests/support/random_tensor.h"
#include "tests/support/require.h"
#include "tests/support/varlen_reference.h"
#include "tests/unit/kernels/roles/ring_ranks.h"

namespace mkernel::test {

using namespace mkernel::kernels;

struct RingRank : HostRingRank<RingVarlenParameters> {
  using Elements = std::vector<std::uint16_t>;

  RingGpuPlan plan;
  AttentionCounters counters{};
  std::vector<std::int32_t> cu_seqlens{};
  std::unique_ptr<std::byte[]> scratch{};
  Elements q{}, k{}, v{}, out{};
  std::vector<float> lse{};

  explicit RingRank(RingGpuPlan made) : plan(std::move(made)) {}
};

/// Ranks of some nodes, each with `ctas` CTAs. `kPacked`: ring attention over packed sequences, whose kernel
/// alone is compiled. `block_rows`: of a chunk, so that few rows travel in many puts; 0: as the plan has it.
template <bool kPacked>
class RingRanksOf : public HostRing<RingRank> {
  using Elements = RingRank::Elements;

 public:
  RingRanksOf(const AttentionShape& shape, const Topology& topology, std::int32_t ctas = 4,
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
      static_cast<RingAttentionParameters&>(rank->p) = ring_attention_parameters(rank->plan, &rank->counters);
      if constexpr (kPacked) add_list(*rank);
      describe_gather(*rank, rank->plan, rank->plan.tile_keys());
    }
  }

  /// Of packed sequences: what the next launches are given, all ranks the same, or `rank` alone.
  void set_lengths(const std::vector<std::int32_t>& cu_seqlens) {
    for (auto& rank : ranks_) rank->cu_seqlens = cu_seqlens;
  }
  void set_lengths(std::size_t rank, const std::vector<std::int32_t>& cu_seqlens) {
    ranks_[rank]->cu_seqlens = cu_seqlens;
  }

  /// One launch of every rank with new operands.
  void check(std::uint64_t seed, bool with_lse = true) {
    launch(seed, with_lse);
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      const std::size_t wrong_values = wrong(r);
      CHECK_MESSAGE(wrong_values == 0, "rank ", r, ": ", wrong_values, " values wrong");
      CHECK(refusal(r).empty());
    }
  }
  /// Values of the last launch, which has not failed.
  std::size_t wrong(std::size_t number) const {
    const RingRank& rank = *ranks_[number];
    CHECK(rank.control.failed == 0);
    CHECK(rank.on_their_way == 0);
    const auto r = static_cast<std::int64_t>(number);
    if constexpr (kPacked) {
      return wrong_ring_varlen(shape_, rank.cu_seqlens, tensors_, world(), r, rank.out, rank.lse,
                               Weights::kRounded);
    } else {
      return wrong_attention_of_rank(shape_, tensors_, world(), r, rank.out, rank.lse, Weights::kRounded);
    }
  }
  /// Why the last launch was refused; empty: it was not.
  std::string refusal(std::size_t number) const {
    if constexpr (!kPacked) return "";
    const RingRank& rank = *ranks_[number];
    return rank.p.scratch->refusal.launch == rank.control.epoch
               ? rank.plan.refuse(rank.p.scratch->refusal.why).text()
               : "";
  }
  void launch(std::uint64_t seed, bool with_lse = true) {
    tensors_ = random_attention(shape_, 10 * seed + 1, 2);
    HostGrid grid;
    for (auto& rank : ranks_) {
      fill(*rank, with_lse);
      for (int i = 0; i < at_a_time_; ++i) add(grid, *rank);
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
  void add_list(RingRank& rank) const {
    using Scratch = RingVarlenParameters::Scratch;
    const auto sequences = static_cast<std::int32_t>(shape_.max_sequences);
    rank.scratch = std::make_unique<std::byte[]>(Scratch::bytes(rank.plan.ctas, sequences));
    rank.p.scratch = reinterpret_cast<Scratch*>(rank.scratch.get());
    rank.p.section_heads = rank.plan.section_heads();
  }

  /// What rank `rank` holds; of packed sequences as the lengths of rank 0 say.
  Elements rows(const Elements& whole, std::int64_t heads, std::int32_t rank) const {
    if constexpr (kPacked) {
      return packed_rows_of_rank(shape_, ranks_[0]->cu_seqlens, whole, heads, world(), rank);
    } else {
      return rows_of_rank(shape_, whole, heads, world(), rank);
    }
  }

  void fill(RingRank& rank, bool with_lse) {
    const KvGatherPlan& gather = rank.plan.gather;
    const std::int32_t me = gather.rank;
    RingVarlenParameters& p = rank.p;
    rank.q = rows(tensors_.q, shape_.heads, me);
    rank.k = rows(tensors_.k, shape_.kv_heads, me);
    rank.v = rows(tensors_.v, shape_.kv_heads, me);
    if constexpr (kPacked) p.lengths = rank.plan.lengths({.cu_seqlens_q = rank.cu_seqlens.data()});
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
                           std::byte* memory = self.cluster_shared[self.cluster_rank];
                           if constexpr (kPacked) {
                             ring_varlen_cta<Config>(rank.p, memory);
                           } else {
                             ring_attention_cta<Config>(rank.p, memory);
                           }
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

}  // namespace mkernel::test
