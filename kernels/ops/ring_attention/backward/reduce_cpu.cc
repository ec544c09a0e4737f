#include "kernels/ops/ring_attention/backward/reduce_cpu.h"

#include <cstring>

#include "kernels/base/signal.h"
#include "kernels/cpu/attention/blockwise.h"

namespace mkernel::kernels {
namespace {

constexpr std::uint32_t kGradientLane = 1;
/// Stages of waits (Launch::at_stage()): gathers end first, then those for parts, and those that need them.
enum Stage : int { kParts = 2, kStaged = 3, kPartials = 4 };

void add_to(const float* summands, std::vector<float>& sums) {
  for (float& sum : sums) sum += *summands++;
}

}  // namespace

CpuKvReduce::CpuKvReduce(const RingPlan& plan, const KvReducePlan& reduce, const Topology& topology,
                         const SymmetricView& workspace, const SymmetricView& lent, Endpoint& endpoint,
                         void* d_k, void* d_v, const Launch& launch)
    : plan_(plan),
      reduce_(reduce),
      topology_(topology),
      workspace_(workspace),
      lent_(lent),
      endpoint_(endpoint),
      own_{d_k, d_v},
      launch_(launch),
      me_(plan.gather.rank),
      node_(topology.node_of(static_cast<std::uint32_t>(me_))),
      local_(topology.local_of(static_cast<std::uint32_t>(me_))),
      staged_(
          std::make_unique<std::uint64_t[]>(static_cast<std::size_t>((reduce.nodes - 1) * reduce.chunks))) {}

std::uint32_t CpuKvReduce::node(std::int32_t distance) const {
  return (node_ + static_cast<std::uint32_t>(distance)) % topology_.nodes();
}

std::int32_t CpuKvReduce::peer(std::int32_t distance) const {
  return static_cast<std::int32_t>(topology_.rail_peer(static_cast<std::uint32_t>(me_), node(distance)));
}

std::uint64_t& CpuKvReduce::stored(std::byte* workspace, std::int32_t distance, std::int32_t writer,
                                   std::int32_t chunk) const {
  return reinterpret_cast<std::uint64_t*>(workspace + reduce_.stored_offset(distance, writer))[chunk];
}

const float* CpuKvReduce::floats(std::uint64_t block, std::uint64_t chunk_at) const {
  return reinterpret_cast<const float*>(half(lent_.mine) + block + chunk_at);
}

bool CpuKvReduce::contributes(std::uint32_t node, std::int32_t owner, std::int32_t chunk) const {
  for (std::uint32_t writer = 0; writer < topology_.ranks_per_node(); ++writer) {
    const auto rank = static_cast<std::int32_t>(topology_.rank_at(node, writer));
    if (KvReducePlan::contributes(plan_.gather, rank, owner, chunk)) return true;
  }
  return false;
}

void CpuKvReduce::store(std::int32_t owner, std::int32_t chunk, const float* d_k, const float* d_v) const {
  const auto rank = static_cast<std::uint32_t>(owner);
  const std::uint32_t reducer = topology_.local_of(rank), nodes = topology_.nodes();
  const auto distance = static_cast<std::int32_t>((topology_.node_of(rank) + nodes - node_) % nodes);
  const auto writer = static_cast<std::int32_t>(local_);
  const std::uint64_t at = KvReducePlan::chunk_offset(plan_.gather, owner, chunk);
  const auto bytes = static_cast<std::size_t>(KvReducePlan::chunk_bytes(plan_.gather, owner, chunk));
  std::byte* to = half(lent_.node[reducer]);
  std::memcpy(to + reduce_.slot_offset(distance, writer, 0) + at, d_k, bytes);
  std::memcpy(to + reduce_.slot_offset(distance, writer, 1) + at, d_v, bytes);
  signal_set(stored(workspace_.node[reducer], distance, writer, chunk), KvReducePlan::count(launch_.epoch));
}

/// Until all parts of the chunk that this node has are here.
Status CpuKvReduce::wait_parts(std::int32_t distance, std::int32_t chunk) const {
  for (std::int32_t writer = 0; writer < reduce_.writers; ++writer) {
    const auto rank = static_cast<std::int32_t>(topology_.rank_at(node_, static_cast<std::uint32_t>(writer)));
    if (!KvReducePlan::contributes(plan_.gather, rank, peer(distance), chunk)) continue;
    MK_RETURN_IF_ERROR(wait_at_least(
        stored(workspace_.mine, distance, writer, chunk), KvReducePlan::count(launch_.epoch),
        {.role = "intra_comm", .tag = "gradients of keys", .peer = rank}, launch_.at_stage(kParts)));
  }
  return {};
}

/// Until the sums of own gradients that other nodes have made are here, empty ones too.
Status CpuKvReduce::wait_partials(std::int32_t chunk) const {
  for (std::int32_t distance = 1; distance < reduce_.nodes; ++distance) {
    MK_RETURN_IF_ERROR(
        endpoint_.wait_arrival(static_cast<std::uint32_t>(peer(distance)), kGradientLane,
                               plan_.gather.arrivals(launch_.epoch, KvReducePlan::kTensors - 1, chunk),
                               "inter_reduce", launch_.at_stage(kPartials)));
  }
  return {};
}

/// The parts that ranks of this node have, in the order of ranks.
std::vector<float> CpuKvReduce::sum_of_node(std::int32_t distance, std::int32_t tensor,
                                            std::int32_t chunk) const {
  const KvGatherPlan& gather = plan_.gather;
  const std::int32_t owner = peer(distance);
  const std::uint64_t at = KvReducePlan::chunk_offset(gather, owner, chunk);
  std::vector<float> sums(KvReducePlan::chunk_bytes(gather, owner, chunk) / sizeof(float));
  for (std::int32_t writer = 0; writer < reduce_.writers; ++writer) {
    const std::uint32_t rank = topology_.rank_at(node_, static_cast<std::uint32_t>(writer));
    if (KvReducePlan::contributes(gather, static_cast<std::int32_t>(rank), owner, chunk))
      add_to(floats(reduce_.slot_offset(distance, writer, tensor), at), sums);
  }
  return sums;
}

void CpuKvReduce::stage(std::int32_t distance, std::int32_t chunk) const {
  const std::uint64_t at = KvReducePlan::chunk_offset(plan_.gather, peer(distance), chunk);
  for (std::int32_t tensor = 0; tensor < KvReducePlan::kTensors; ++tensor) {
    const std::vector<float> sums = sum_of_node(distance, tensor, chunk);
    if (sums.empty()) continue;
    std::memcpy(half(lent_.mine) + reduce_.staged_offset(distance, tensor) + at, sums.data(),
                sums.size() * sizeof(float));
  }
  signal_set(staged_[static_cast<std::size_t>((distance - 1) * reduce_.chunks + chunk)], 1);
}

/// Own gradients: the sums of the nodes in their order, rounded once.
void CpuKvReduce::finish(std::int32_t chunk) const {
  const AttentionShape& shape = plan_.shape;
  const KvGatherPlan& gather = plan_.gather;
  const std::uint64_t at = KvReducePlan::chunk_offset(gather, me_, chunk);
  const std::int32_t head = gather.head_of(chunk);
  for (std::int32_t tensor = 0; tensor < KvReducePlan::kTensors; ++tensor) {
    const std::vector<float> of_this_node = sum_of_node(0, tensor, chunk);
    std::vector<float> sums(of_this_node.size());
    for (std::uint32_t from = 0; from < topology_.nodes(); ++from) {
      const auto distance = static_cast<std::int32_t>((from + topology_.nodes() - node_) % topology_.nodes());
      if (distance == 0) {
        add_to(of_this_node.data(), sums);
      } else if (contributes(from, me_, chunk)) {
        add_to(floats(reduce_.partial_offset(distance, tensor), at), sums);
      }
    }
    store_rows(sums.data(), gather.chunk_rows(me_, chunk),
               head_rows(shape, own_[tensor], shape.kv_heads, gather.positions(me_), head / gather.kv_heads,
                         head % gather.kv_heads)
                   .from(gather.chunk_row(chunk)));
  }
}

Status CpuKvReduce::sum(std::int32_t unit) const {
  const std::int32_t others = reduce_.nodes - 1, of_others = others * reduce_.chunks;
  const bool own = unit >= of_others;
  const std::int32_t distance = own ? 0 : 1 + unit % others;
  const std::int32_t chunk = own ? unit - of_others : unit / others;
  MK_RETURN_IF_ERROR(wait_parts(distance, chunk));
  if (!own) {
    stage(distance, chunk);
    return {};
  }
  MK_RETURN_IF_ERROR(wait_partials(chunk));
  finish(chunk);
  return {};
}

Status CpuKvReduce::put() const {
  constexpr const char* kRole = "inter_send";
  for (std::int32_t chunk = 0; chunk < reduce_.chunks; ++chunk) {
    for (std::int32_t distance = 1; distance < reduce_.nodes; ++distance) {
      const auto& staged = staged_[static_cast<std::size_t>((distance - 1) * reduce_.chunks + chunk)];
      MK_RETURN_IF_ERROR(wait_at_least(staged, 1, {.role = kRole, .tag = "sums of a chunk", .peer = me_},
                                       launch_.at_stage(kStaged)));
      const std::int32_t owner = peer(distance);
      const bool empty = !contributes(node_, owner, chunk);
      const std::uint64_t at = launch_.half_at + KvReducePlan::chunk_offset(plan_.gather, owner, chunk);
      const std::uint64_t bytes = empty ? 0 : KvReducePlan::chunk_bytes(plan_.gather, owner, chunk);
      for (std::int32_t tensor = 0; tensor < KvReducePlan::kTensors; ++tensor) {
        // What the owner is to this node, this node is to the owner in the rest of the way round.
        const Place from{lent_.region, at + reduce_.staged_offset(distance, tensor)};
        const Place to{lent_.region, at + reduce_.partial_offset(reduce_.nodes - distance, tensor)};
        MK_RETURN_IF_ERROR(endpoint_.put(static_cast<std::uint32_t>(owner), kGradientLane, from, to, bytes,
                                         kRole, launch_.scope));
      }
    }
  }
  for (std::int32_t distance = 1; distance < reduce_.nodes; ++distance) {
    MK_RETURN_IF_ERROR(endpoint_.wait_completed(static_cast<std::uint32_t>(peer(distance)), kGradientLane,
                                                (launch_.epoch + 1) * plan_.gather.puts(), kRole,
                                                launch_.scope));
  }
  return {};
}

}  // namespace mkernel::kernels
