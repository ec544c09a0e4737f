// What a node does with the rows: route them to the experts, compute, weight and sum.
#include <algorithm>
#include <cstring>

#include "kernels/ops/moe_dispatch_gemm/roles.h"

namespace mkernel::kernels {
namespace {

constexpr std::int64_t kSumRows = 64;  // rows that a compute thread sums at a time

}  // namespace

/// Work of one source in this launch.
struct Moe::Source {
  std::uint32_t node = 0, local = 0;
  std::uint64_t first_row = 0;
  SourceWork work;
  std::vector<float> products;  // [entries, n]
  std::atomic<std::int64_t> next_block{0}, next_group{0};
  SignalWord blocks_done{}, groups_done{};
  std::atomic<bool> told{false};

  std::int64_t groups() const { return ceil_div(work.rows, kSumRows); }
};

Moe::Moe(const MoePlan& plan, const GroupView& group, const SymmetricView& workspace, Endpoint& endpoint)
    : plan_(plan),
      workspace_(workspace),
      endpoint_(endpoint),
      rank_(group.rank()),
      node_(plan.topology().node_of(group.rank())),
      local_(plan.topology().local_of(group.rank())),
      rows_sent_(plan.topology().nodes()),
      returns_taken_(plan.topology().nodes()),
      puts_taken_(plan.topology().nodes()) {}

Moe::~Moe() = default;

void Moe::begin() {
  sources_.clear();
  sources_.resize(plan_.topology().world());
  routed_.value = 0;
  widened_.value = 0;
}

SignalWord& Moe::word(std::uint32_t local, std::uint64_t offset) const {
  return *reinterpret_cast<SignalWord*>(workspace_.node[local] + offset);
}

/// Waits until every rank of the node is done with the rows of source (node, own local index), `launches`
/// times.
Status Moe::wait_partials(const Launch& launch, std::uint32_t node, std::uint64_t launches,
                          const char* role) const {
  for (std::uint32_t local = 0; local < plan_.topology().ranks_per_node(); ++local) {
    MK_RETURN_IF_ERROR(wait_at_least(word(local, plan_.workspace().partials_ready(node, local_)).value,
                                     launches, {role, "expert sums", node_rank(local)},
                                     launch.at_stage(local == local_ ? 2 : 1)));
  }
  return {};
}

/// The metadata of source (node, local), whose `meta_ready` has been seen. A header of an older launch says
/// that the source sent no rows in this one.
MoeMeta Moe::meta(const Launch& launch, std::uint32_t node, std::uint32_t local) const {
  const std::byte* area = workspace_.node[local] + plan_.workspace().meta_in(node);
  MoeHeader header;
  std::memcpy(&header, area, sizeof header);
  if (header.launch != launch.epoch + 1) return {};
  MoeMeta meta{static_cast<std::int64_t>(header.rows), header.first_row, nullptr, nullptr};
  meta.experts = reinterpret_cast<const std::int32_t*>(area + sizeof header);
  meta.weights = reinterpret_cast<const float*>(meta.experts + meta.rows * plan_.shape().topk);
  return meta;
}

/// Takes the metadata of source (node, local) when it is there: lists the products of this rank's experts.
bool Moe::try_route(const Launch& launch, std::uint32_t node, std::uint32_t local) {
  const MoeWorkspace& space = plan_.workspace();
  if (load_acquire(word(local, space.meta_ready(node)).value) <= launch.epoch) return false;
  const MoeMeta seen = meta(launch, node, local);
  auto source = std::make_unique<Source>();
  source->node = node;
  source->local = local;
  source->first_row = seen.first_row;
  source->work = route_source(plan_, rank_, seen.rows, seen.experts, seen.weights);
  source->products.resize(source->work.row.size() * static_cast<std::size_t>(plan_.shape().n));
  if (seen.rows == 0) signal_set(word(local_, space.partials_ready(node, local)), launch.epoch + 1);
  sources_[routed_.value] = std::move(source);
  signal_set(routed_, routed_.value + 1);
  return true;
}

Status Moe::route(const Launch& launch) {
  const Topology& topology = plan_.topology();
  std::vector<std::uint32_t> waiting;  // ranks whose metadata is not yet here
  for (std::uint32_t rank = 0; rank < topology.world(); ++rank) waiting.push_back(rank);
  const auto look = [&] {
    std::erase_if(waiting, [&](std::uint32_t rank) {
      return try_route(launch, topology.node_of(rank), topology.local_of(rank));
    });
    return std::uint64_t{topology.world() - waiting.size()};
  };
  while (!waiting.empty()) {
    const std::uint64_t taken = topology.world() - waiting.size();
    MK_RETURN_IF_ERROR(
        wait_until(look, taken + 1, {"intra_comm", "metadata", waiting.front()}, launch.scope));
  }
  return {};
}

Status Moe::compute(const Launch& launch, const MoeArguments& arguments, ExpertLayer& layer, int thread) {
  layer.widen(arguments.w1, arguments.w2, thread, launch.compute_threads);
  signal_add(widened_, 1);
  MK_RETURN_IF_ERROR(wait_at_least(widened_.value, static_cast<std::uint64_t>(launch.compute_threads),
                                   {"compute", "widened weights", rank_}, launch.scope));
  ExpertScratch scratch(plan_);
  for (std::uint32_t i = 0; i < plan_.topology().world(); ++i) {
    MK_RETURN_IF_ERROR(
        wait_at_least(routed_.value, i + 1, {"compute", "routed sources", rank_}, launch.at_stage(2)));
    MK_RETURN_IF_ERROR(run_blocks(launch, *sources_[i], layer, scratch));
    MK_RETURN_IF_ERROR(run_sums(launch, *sources_[i]));
  }
  return {};
}

/// Takes blocks of one source until there are none left. A block starts when its last row is in.
Status Moe::run_blocks(const Launch& launch, Source& source, ExpertLayer& layer, ExpertScratch& scratch) {
  const MoeWorkspace& space = plan_.workspace();
  const std::uint64_t& rows_ready = word(source.local, space.rows_ready(source.node)).value;
  const std::byte* rows = workspace_.node[source.local] + space.rows_in(source.node);
  const std::uint64_t bytes = plan_.row_bytes();
  const auto blocks = static_cast<std::int64_t>(source.work.blocks.size());
  for (std::int64_t index = source.next_block++; index < blocks; index = source.next_block++) {
    const ExpertBlock& block = source.work.blocks[static_cast<std::size_t>(index)];
    const std::int64_t* row = source.work.row.data() + block.entries.begin;
    const auto last = static_cast<std::uint64_t>(row[block.entries.size() - 1]);
    MK_RETURN_IF_ERROR(wait_at_least(rows_ready, source.first_row + last + 1,
                                     {"compute", "rows", plan_.topology().rank_at(source.node, source.local)},
                                     launch.at_stage(1)));
    for (std::int64_t i = 0; i < block.entries.size(); ++i) {
      std::memcpy(scratch.rows.data() + static_cast<std::uint64_t>(i) * bytes,
                  rows + static_cast<std::uint64_t>(row[i]) * bytes, bytes);
    }
    layer.run(block.expert, block.entries.size(), scratch,
              source.products.data() + block.entries.begin * plan_.shape().n);
    signal_add(source.blocks_done, 1);
  }
  return {};
}

/// When all products of a source are there: sums those of each row, weighted, in topk order.
Status Moe::run_sums(const Launch& launch, Source& source) {
  const MoeWorkspace& space = plan_.workspace();
  const SourceWork& work = source.work;
  if (work.rows == 0) return {};
  MK_RETURN_IF_ERROR(wait_at_least(source.blocks_done.value, work.blocks.size(), {"compute", "blocks", rank_},
                                   launch.at_stage(2)));
  const std::int64_t n = plan_.shape().n;
  auto* sums = reinterpret_cast<float*>(workspace_.mine + space.partials(source.node, source.local));
  const std::int64_t groups = source.groups();
  for (std::int64_t group = source.next_group++; group < groups; group = source.next_group++) {
    for (std::int64_t row = group * kSumRows; row < std::min(work.rows, (group + 1) * kSumRows); ++row) {
      float* sum = sums + row * n;
      const std::int64_t begin = work.first_term[static_cast<std::size_t>(row)];
      const std::int64_t end = work.first_term[static_cast<std::size_t>(row) + 1];
      if (begin < end) std::fill_n(sum, n, 0.0F);
      for (std::int64_t term = begin; term < end; ++term) {
        const auto [entry, weight] = work.terms[static_cast<std::size_t>(term)];
        const float* product = source.products.data() + entry * n;
        for (std::int64_t i = 0; i < n; ++i) sum[i] += weight * product[i];
      }
    }
    signal_add(source.groups_done, 1);
  }
  // One thread of all tells the node; its acquire of the others' counts orders their sums before the signal.
  if (load_acquire(source.groups_done.value) == static_cast<std::uint64_t>(groups) &&
      !source.told.exchange(true)) {
    signal_set(word(local_, space.partials_ready(source.node, source.local)), launch.epoch + 1);
  }
  return {};
}

}  // namespace mkernel::kernels
