// GEMM+AR on the cpu executor: threads play the CTAs of roles.cuh, on the same plan. See README.md.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/base/signal.h"
#include "kernels/cpu/launch/gemm_operation.h"
#include "kernels/cpu/reduce/tile_reduce.h"
#include "kernels/ops/gemm_ar/plan.h"
#include "kernels/ops/gemm_rs/sums_into_c.h"
#include "kernels/ops/make.h"

namespace mkernel::kernels {
namespace {

constexpr std::uint64_t kUnitBytes = PushSumsPlan::kUnitBytes;

/// The way of finished units to everybody: what GEMM+AR adds to TileReduce. Uses lane 1, between nodes.
class SumsFanOut {
 public:
  struct Work {
    explicit Work(const GemmArPlan& plan) : forwards(plan.forwards()), copies(plan.copies()) {}
    WorkCounter forwards, copies;
  };

  SumsFanOut(const GemmArPlan& plan, const Topology& topology, const TileReduce& reduce)
      : plan_(plan),
        topology_(topology),
        reduce_(reduce),
        local_(topology.local_of(static_cast<std::uint32_t>(reduce.rank()))),
        finished_(static_cast<std::size_t>(plan.product.most_chunks())) {}

  /// A unit of own rows: into c, to the other ranks of the node and, over several nodes, where it is put
  /// from.
  void finish(const SumUnit& unit, const std::byte* sums, std::byte* c, const Launch& launch);

  /// inter_send: puts finished chunks of own rows to the rail peers, and waits until their sources may be
  /// overwritten.
  Status put_sums(const Launch& launch) const;

  /// inter_recv: units of the rail peers as they arrive, into c and to the other ranks of the node.
  Status forward_units(std::byte* c, Work& work, const Launch& launch) const;

  /// Units of the other owners but the rail peers, each owner's next one in turn as they come, into c.
  Status copy_units(std::byte* c, Work& work, const Launch& launch) const;

 private:
  std::byte* sums_in(std::byte* lent, const SumUnit& unit, const Launch& launch) const {
    return lent + launch.half_at + plan_.sums.sums_offset(unit.owner) +
           static_cast<std::uint64_t>(unit.packed) * kUnitBytes;
  }
  std::uint64_t& summed_in(std::byte* workspace, const SumUnit& unit) const {
    return reinterpret_cast<std::uint64_t*>(workspace + plan_.sums.summed_offset(unit.owner))[unit.unit];
  }
  void to_node(const SumUnit& unit, const std::byte* sums, const Launch& launch) const;
  /// c: [m, n].
  void store(const SumUnit& unit, const std::byte* sums, std::byte* c) const {
    reduce_.store_unit(unit, sums,
                       c + plan_.product.reduce.first_row(unit.owner) * plan_.product.reduce.columns * 2);
  }

  const GemmArPlan& plan_;
  const Topology& topology_;
  const TileReduce& reduce_;
  const std::uint32_t local_;
  std::vector<std::uint64_t> finished_;  ///< [chunk]: units of own rows to be put, over all launches
};

void SumsFanOut::to_node(const SumUnit& unit, const std::byte* sums, const Launch& launch) const {
  const std::uint32_t ranks = topology_.ranks_per_node();
  for (std::uint32_t turn = 1; turn < ranks; ++turn) {
    const std::uint32_t there = (local_ + turn) % ranks;
    std::memcpy(sums_in(reduce_.lent().node[there], unit, launch), sums, kUnitBytes);
    signal_set(summed_in(reduce_.workspace().node[there], unit), PushSumsPlan::count(launch.epoch));
  }
}

void SumsFanOut::finish(const SumUnit& unit, const std::byte* sums, std::byte* c, const Launch& launch) {
  store(unit, sums, c);
  to_node(unit, sums, launch);
  if (plan_.product.units.others == 0) return;
  std::memcpy(sums_in(reduce_.lent().mine, unit, launch), sums, kUnitBytes);
  signal_add(finished_[static_cast<std::size_t>(unit.packed / plan_.product.partials.chunk_units)], 1);
}

Status SumsFanOut::put_sums(const Launch& launch) const {
  const PutPartialsPlan& plan = plan_.product.partials;
  const std::int32_t others = plan_.product.units.others, units = plan_.product.packed_units(reduce_.rank());
  const std::uint64_t own = launch.half_at + plan_.sums.sums_offset(reduce_.rank());
  for (std::int32_t chunk = 0; chunk < plan.chunks(units); ++chunk) {
    const std::int32_t begin = plan.chunk_begin(chunk, units), end = plan.chunk_begin(chunk + 1, units);
    const std::uint64_t filled = (launch.epoch + 1) * static_cast<std::uint64_t>(end - begin);
    MK_RETURN_IF_ERROR(
        reduce_.wait_chunk(finished_[static_cast<std::size_t>(chunk)], filled, kAfterOwner, launch));
    const Place place{reduce_.lent().region, own + static_cast<std::uint64_t>(begin) * kUnitBytes};
    for (std::int32_t turn = 0; turn < others; ++turn) {
      MK_RETURN_IF_ERROR(reduce_.endpoint().put(static_cast<std::uint32_t>(reduce_.reduced(turn)), 1, place,
                                                place, static_cast<std::uint64_t>(end - begin) * kUnitBytes,
                                                "inter_send", launch.scope));
    }
  }
  const std::uint64_t puts = (launch.epoch + 1) * static_cast<std::uint64_t>(plan.chunks(units));
  for (std::int32_t turn = 0; turn < others; ++turn) {
    MK_RETURN_IF_ERROR(reduce_.endpoint().wait_completed(static_cast<std::uint32_t>(reduce_.reduced(turn)), 1,
                                                         puts, "inter_send", launch.scope));
  }
  return {};
}

Status SumsFanOut::forward_units(std::byte* c, Work& work, const Launch& launch) const {
  const PutPartialsPlan& plan = plan_.product.partials;
  const std::int32_t others = plan_.product.units.others;
  for (std::int32_t i = work.forwards.next(); i < work.forwards.all(); i = work.forwards.next()) {
    const std::int32_t owner = reduce_.reduced(i % others);
    const SumUnit unit = reduce_.unit_of(owner, i / others);
    if (unit.rows.size() == 0) continue;
    const std::uint64_t count =
        plan.count(launch.epoch, plan_.product.packed_units(owner), unit.packed / plan.chunk_units);
    MK_RETURN_IF_ERROR(reduce_.endpoint().wait_arrival(static_cast<std::uint32_t>(owner), 1, count,
                                                       "inter_recv", launch.at_stage(kAfterOwner)));
    const std::byte* sums = sums_in(reduce_.lent().mine, unit, launch);
    store(unit, sums, c);
    to_node(unit, sums, launch);
  }
  return {};
}

Status SumsFanOut::copy_units(std::byte* c, Work& work, const Launch& launch) const {
  const std::int32_t of_node = plan_.product.reduce.sources - 1;
  const std::int32_t owners = of_node * plan_.product.reduce.nodes();
  const int stage = plan_.product.units.others > 0 ? kAfterForward : kAfterNode;
  for (std::int32_t i = work.copies.next(); i < work.copies.all(); i = work.copies.next()) {
    // Of every node's owners the last turn is the rail peer, or this rank.
    const std::int32_t turn = i % owners + i % owners / of_node;
    const SumUnit unit = reduce_.unit_of(plan_.product.owners[static_cast<std::size_t>(turn)], i / owners);
    if (unit.rows.size() == 0) continue;
    const WaitSite site{.role = "intra_comm",
                        .tag = "a chunk",
                        .peer = unit.owner,
                        .via = topology_.via(static_cast<std::uint32_t>(unit.owner),
                                             static_cast<std::uint32_t>(reduce_.rank()))};
    MK_RETURN_IF_ERROR(wait_at_least(summed_in(reduce_.workspace().mine, unit),
                                     PushSumsPlan::count(launch.epoch), site, launch.at_stage(stage)));
    store(unit, sums_in(reduce_.lent().mine, unit, launch), c);
  }
  return {};
}

class CpuGemmAr final : public CpuGemmOperation {
 public:
  CpuGemmAr(GemmArPlan plan, const GemmShape& shape, Topology topology)
      : CpuGemmOperation(OpKind::kGemmAr, shape, std::move(topology)), plan_(std::move(plan)) {}

  Requirements requirements() const override {
    return {plan_.word_bytes(), plan_.data_bytes(), plan_.lanes()};
  }

 private:
  void attach() override {
    reduce_.emplace(plan_.product, shape(), topology(), workspace(), lent(), endpoint());
    fan_out_.emplace(plan_, topology(), *reduce_);
  }

  void launch(const GemmArguments& arguments, Launch& launch) override {
    OperandB b(gemm(), arguments.b);
    TileReduce::Work work(plan_.product);
    SumsFanOut::Work copies(plan_);
    auto* c = static_cast<std::byte*>(arguments.c);
    const auto sum = [&] {
      return reduce_->sum_units(
          [&](const SumUnit& unit, const std::byte* sums) { fan_out_->finish(unit, sums, c, launch); }, work,
          launch);
    };
    // Copies wait for sums and forwarded units, those for sums of other nodes: somebody always begins with
    // sums.
    const auto spare = [&](int thread) -> Status {
      const bool sums_first = thread % 3 != 2;
      if (sums_first) MK_RETURN_IF_ERROR(sum());
      MK_RETURN_IF_ERROR(fan_out_->forward_units(c, copies, launch));
      MK_RETURN_IF_ERROR(fan_out_->copy_units(c, copies, launch));
      return sums_first ? Status() : sum();
    };
    reduce_->start(gemm(), b, arguments.a, work, spare, launch);
    if (plan_.product.units.others > 0)
      launch.roles.start("inter_send", [&] { return fan_out_->put_sums(launch); });
    (void)launch.roles.join();
  }

  const GemmArPlan plan_;
  std::optional<TileReduce> reduce_;
  std::optional<SumsFanOut> fan_out_;
};

}  // namespace

Result<std::unique_ptr<GemmOperation>> make_cpu_gemm_ar(const GemmShape& shape, Topology topology,
                                                        std::uint32_t rank,
                                                        const TileReduceOptions& options) {
  auto plan = GemmArPlan::make(shape, topology, rank, kHostMachine, host_options(options, shape, topology));
  if (!plan.ok()) return plan.status();
  if (plan->product.reduce.to_all)
    return make_cpu_sums_into_c(OpKind::kGemmAr, plan->product, shape, std::move(topology));
  return std::unique_ptr<GemmOperation>(
      std::make_unique<CpuGemmAr>(std::move(plan).value(), shape, std::move(topology)));
}

}  // namespace mkernel::kernels
