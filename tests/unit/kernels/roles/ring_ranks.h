// The whole kernel of ring attention on the host, on every rank of some nodes.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/lent_workspace.h"
#include "kernels/ops/ring_attention/gpu_plan.h"
#include "kernels/ops/ring_attention/ring_roles.cuh"
#include "kernels/ops/ring_attention/ring_varlen_roles.cuh"
#include "kernels/ops/ring_attention/with_config.h"
#include "tests/support/attention_reference.h"
#include "tests/support/on_host/cuda_names.h"
#include "tests/support/on_host/sm90.h"
#include "tests/support/random_tensor.h"
#include "tests/support/require.h"
#include "tests/support/varlen_reference.h"
#include "tests/unit/kernels/roles/host_fabric.h"

namespace mkernel::test {

using namespace mkernel::kernels;

/// Ranks of some nodes with ring attention, `kPacked`: over packed sequences, whose kernel alone is compiled. Each has `ctas` CTAs. `block_rows`: of a chunk, so that few rows travel in many
/// puts; 0: as the plan has it.
template <bool kPacked>
class RingRanksOf {
  using Elements = std::vector<std::uint16_t>;

 public:
  RingRanksOf(const AttentionShape& shape, const Topology& topology, std::int32_t ctas = 4,
            std::int32_t comm_ctas = 2, std::int32_t block_rows = 0)
      : shape_(shape), topology_(topology), fabric_(topology.world(), 1) {
    for (std::uint32_t r = 0; r < topology.world(); ++r) {
      ranks_.push_back(std::make_unique<Rank>(Rank{
          require(RingGpuPlan::make(shape, topology, r, kH200.with_sms(ctas), {.comm_ctas = comm_ctas}))}));
      Rank& rank = *ranks_.back();
      if (block_rows > 0) rank.plan.gather.cut(block_rows);
      half_bytes_ = rank.plan.gather.data_bytes();
      rank.words.resize(rank.plan.gather.word_bytes() / 8);
      rank.lent.resize(lent_workspace_bytes(half_bytes_) / 128 + 1);
      // What another operation may have left: no numbers.
      std::fill_n(reinterpret_cast<std::uint16_t*>(rank.lent.data() + 1), (rank.lent.size() - 1) * 64,
                  kPoison);
    }
    half_bytes_ = lent_half_bytes(lent_workspace_bytes(half_bytes_));
    for (auto& rank : ranks_) describe(*rank);
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
    const Rank& rank = *ranks_[number];
    CHECK(rank.control.failed == 0);
    CHECK(rank.on_their_way == 0);
    const auto r = static_cast<std::int64_t>(number);
    if constexpr (kPacked) {
      return wrong_ring_varlen(shape_, rank.cu_seqlens, tensors_, world(), r, rank.out, rank.lse,
                               Weights::kRounded);
    }
    return wrong_attention_of_rank(shape_, tensors_, world(), r, rank.out, rank.lse, Weights::kRounded);
  }
  /// Why the last launch was refused; empty: it was not.
  std::string refusal(std::size_t rank) const {
    if constexpr (!kPacked) return "";
    const VarlenRefusal& last = ranks_[rank]->p.scratch->refusal;
    return last.launch == ranks_[rank]->control.epoch ? ranks_[rank]->plan.refuse(last.why).text() : "";
  }
  void launch(std::uint64_t seed, bool with_lse = true) {
    tensors_ = random_attention(shape_, 10 * seed + 1, 2);
    HostGrid grid;
    for (auto& rank : ranks_) {
      fill(*rank, with_lse);
      add(grid, *rank);
    }
    grid.add_service(host_copy_engine);
    if (topology_.nodes() > 1) {
      grid.add_service([this] {
        fabric_.deliver([this](std::uint32_t rank) { return ranks_[rank]->lent_memory(); },
                        lent_workspace_bytes(half_bytes_), true);
      });
    }
    if (aborts_) {
      grid.add_service([this] {
        for (int step = 0; step < 5000 && !host_is_over(); ++step) host_yield();
        aborted_ = 1;
      });
    }
    grid.run();
  }
  /// Bytes that rank `rank` has put, in all launches, and those that its plan says of one.
  std::uint64_t delivered(std::size_t rank) const { return fabric_.delivered(rank); }
  std::uint64_t wire_bytes(std::size_t rank) const { return ranks_[rank]->plan.wire_bytes(); }
  const Elements& out(std::size_t rank) const { return ranks_[rank]->out; }
  LaunchControl& control(std::size_t rank) { return ranks_[rank]->control; }
  LentControl& lent(std::size_t rank) { return *ranks_[rank]->p.endpoint.lent; }
  void set_deadline(std::uint64_t ns) {
    for (auto& rank : ranks_) rank->p.endpoint.deadline_ns = ns;
  }
  /// The next launch is aborted by the host when it has been under way for a while.
  void abort_next() {
    aborts_ = true;
    for (auto& rank : ranks_) rank->p.endpoint.host.group_abort = &aborted_;
  }

 private:
  struct alignas(128) Line {
    std::byte bytes[128] = {};
  };
  struct Rank {
    RingGpuPlan plan;
    std::vector<std::uint64_t> words{};
    std::vector<Line> lent{};
    std::vector<TensorMap> gathered{};
    LaunchControl control{};
    AttentionCounters counters{};
    RingVarlenParameters p{};
    std::vector<std::int32_t> cu_seqlens{};
    std::unique_ptr<std::byte[]> scratch{};
    Elements q{}, k{}, v{}, out{};
    std::vector<float> lse{};
    int on_their_way = -1;

    std::byte* lent_memory() { return reinterpret_cast<std::byte*>(lent.data()); }
  };

  std::int64_t world() const { return std::ssize(ranks_); }

  /// As CudaRingAttention does it.
  void describe(Rank& rank) {
    const KvGatherPlan& gather = rank.plan.gather;
    RingVarlenParameters& p = rank.p;
    static_cast<RingAttentionParameters&>(p) = ring_attention_parameters(rank.plan, &rank.counters);
    if constexpr (kPacked) {
      const auto sequences = static_cast<std::int32_t>(shape_.max_sequences);
      rank.scratch = std::make_unique<std::byte[]>(RingVarlenParameters::Scratch::bytes(rank.plan.ctas, sequences));
      p.scratch = reinterpret_cast<RingVarlenParameters::Scratch*>(rank.scratch.get());
      p.section_heads = rank.plan.section_heads();
    }
    for (const std::uint64_t launch : {0, 1}) {
      const std::byte* half = rank.lent_memory() + lent_half_at(launch, half_bytes_);
      for (std::int32_t source = 0; source < gather.world; ++source) {
        for (std::int32_t tensor = 0; tensor < KvGatherPlan::kTensors; ++tensor) {
          TensorMap map{};
          if (gather.positions(source) > 0)
            map =
                host_tensor_map(ring_slab_view(rank.plan, source, half + gather.slab_offset(source, tensor)));
          rank.gathered.push_back(map);
        }
      }
    }
    p.gathered = rank.gathered.data();
    p.half_bytes = half_bytes_;
    const auto me = static_cast<std::uint32_t>(gather.rank);
    for (std::uint32_t local = 0; local < topology_.ranks_per_node(); ++local) {
      Rank& neighbour = *ranks_[topology_.rank_at(topology_.node_of(me), local)];
      p.words[local] = reinterpret_cast<std::byte*>(neighbour.words.data());
      p.lent[local] = neighbour.lent_memory();
    }
    describe_ranks(topology_, me, p);
    p.region = HostFabric::kRegion;
    fabric_.open(p.endpoint, me, rank.control);
    p.endpoint.lent = reinterpret_cast<LentControl*>(rank.lent_memory());
  }

  void fill(Rank& rank, bool with_lse) {
    const KvGatherPlan& gather = rank.plan.gather;
    const std::int32_t me = gather.rank;
    RingVarlenParameters& p = rank.p;
    const auto rows = [&](const Elements& whole, std::int64_t heads) {
      // Operands are made for the lengths of rank 0.
      return kPacked
                 ? packed_rows_of_rank(shape_, ranks_[0]->cu_seqlens, whole, heads, world(), me)
                 : rows_of_rank(shape_, whole, heads, world(), me);
    };
    rank.q = rows(tensors_.q, shape_.heads);
    rank.k = rows(tensors_.k, shape_.kv_heads);
    rank.v = rows(tensors_.v, shape_.kv_heads);
    p.lengths = kPacked ? rank.plan.lengths({.cu_seqlens_q = rank.cu_seqlens.data()})
                                   : AttentionLengths{};
    rank.out.assign(rank.q.size(), kPoison);
    rank.lse.assign(with_lse ? rank.q.size() / static_cast<std::size_t>(shape_.head_dim) : 0,
                    std::numeric_limits<float>::quiet_NaN());
    for (int part = 0; part < 2; ++part) {
      if (gather.part_rows[me][part] == 0) continue;
      p.q[part] = host_tensor_map(ring_q_view(rank.plan, part, rank.q.data()));
      p.out[part] = host_tensor_map(ring_out_view(rank.plan, part, rank.out.data()));
    }
    if (gather.positions(me) > 0) {
      const void* const tensors[] = {rank.k.data(), rank.v.data()};
      for (int tensor = 0; tensor < KvGatherPlan::kTensors; ++tensor) {
        p.own[tensor] = host_tensor_map(ring_kv_view(rank.plan, tensors[tensor]));
        p.push[tensor] = host_packed_map(ring_push_view(rank.plan, tensors[tensor]));
      }
    }
    p.lse = with_lse ? rank.lse.data() : nullptr;
  }

  void add(HostGrid& grid, Rank& rank) {
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
                           if (blockIdx.x == 0 && threadIdx.x == 0) rank.on_their_way = missing_chunks(rank);
                         });
      }
    });
  }

  /// When the launch ends: chunks of other ranks that are still to come.
  static int missing_chunks(const Rank& rank) {
    const KvGatherPlan& gather = rank.plan.gather;
    int missing = 0;
    for (std::int32_t step = 1; step < gather.world; ++step) {
      const std::int32_t source = gather.source(step);
      for (std::int32_t tensor = 0; tensor < KvGatherPlan::kTensors; ++tensor) {
        const std::uint64_t* ready = rank.words.data() + gather.ready_offset(source, tensor) / 8;
        for (std::int32_t chunk = 0; chunk < gather.chunks(); ++chunk)
          missing += ready[chunk] < gather.count(rank.control.epoch - 1) ? 1 : 0;
      }
    }
    return missing;
  }

  const AttentionShape shape_;
  const Topology topology_;
  HostFabric fabric_;
  bool aborts_ = false;
  std::uint32_t aborted_ = 0;  ///< the word that the pollers of all ranks look at
  std::uint64_t half_bytes_ = 0;
  AttentionTensors tensors_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace mkernel::test
