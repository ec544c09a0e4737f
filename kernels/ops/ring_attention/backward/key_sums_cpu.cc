#include "kernels/ops/ring_attention/backward/key_sums_cpu.h"

#include <algorithm>

#include "kernels/base/signal.h"

namespace mkernel::kernels {
namespace {

constexpr std::uint32_t kKeySumLane = 1;  // keys and values travel on lane 0
/// Stages of waits (Launch::at_stage()): gathers end first, then those for parts, and those that need them.
enum Stage : int { kParts = 2, kStaged = 3, kNodeSums = 4 };

}  // namespace

CpuKeySums::CpuKeySums(const RingBackwardPlan& plan, const Topology& topology, const SymmetricView& workspace,
                       const SymmetricView& lent, Endpoint& endpoint, void* d_k, void* d_v,
                       const Launch& launch)
    : plan_(plan),
      topology_(topology),
      workspace_(workspace),
      lent_(lent),
      endpoint_(endpoint),
      own_{d_k, d_v},
      launch_(launch),
      me_(plan.gather().rank),
      node_(topology.node_of(static_cast<std::uint32_t>(me_))),
      most_chunks_(plan.most_put_chunks()),
      staged_(
          std::make_unique<std::uint64_t[]>(static_cast<std::size_t>(plan.gather().rails() * most_chunks_))) {
}

std::uint32_t CpuKeySums::peer(std::int32_t distance) const {
  return static_cast<std::uint32_t>(PutKeyPartialsPlan::rail_peer(gather(), distance));
}

HeadRows CpuKeySums::rows_of(std::byte* unit, std::int32_t tensor) const {
  const std::int64_t head_dim = plan_.shape().head_dim;
  return HeadRows{unit, head_dim, head_dim, plan_.shape().dtype}.from(tensor * KeyPartialsPlan::kRows);
}

void CpuKeySums::add(std::byte* unit, std::int32_t tensor, std::vector<float>& sums) const {
  std::vector<float> part(sums.size());
  load_rows(rows_of(unit, tensor), std::ssize(part) / plan_.shape().head_dim, part.data());
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += part[i];
}

std::uint64_t& CpuKeySums::staged(std::int32_t distance, std::int32_t chunk) const {
  return staged_[static_cast<std::size_t>((distance - 1) * most_chunks_ + chunk)];
}

void CpuKeySums::store(const RingBackwardTasks::Place& place, const float* d_k, const float* d_v) const {
  constexpr std::int32_t kRows = KeyPartialsPlan::kRows;
  const KeyPartialsPlan& partials = plan_.partials;
  const auto owner = static_cast<std::uint32_t>(place.source);
  const std::int32_t slot = key_slot(topology_, static_cast<std::uint32_t>(me_), owner);
  const std::uint32_t reducer = topology_.local_of(owner);
  const std::int32_t begin = place.tile * kBackwardTileKeys;
  const std::int32_t end = std::min(begin + kBackwardTileKeys, gather().part_rows[owner][place.part]);
  for (std::int32_t row = begin; row < end; row += kRows) {
    const std::int32_t unit = KeyPartialsPlan::unit(gather(), place.source, place.part, place.head, row);
    std::byte* to = half(lent_.node[reducer]) + partials.slot_offset(slot, unit);
    const std::int64_t first = std::int64_t{row - begin} * plan_.shape().head_dim;
    store_rows(d_k + first, std::min(end - row, kRows), rows_of(to, 0));
    store_rows(d_v + first, std::min(end - row, kRows), rows_of(to, 1));
    std::byte* word = workspace_.node[reducer] + partials.word_offset(slot, unit);
    signal_set(*reinterpret_cast<std::uint64_t*>(word), KeyPartialsPlan::count(launch_.epoch));
  }
}

bool CpuKeySums::has_part(std::uint32_t local, std::int32_t owner, std::int32_t part) const {
  const auto writer = static_cast<std::int32_t>(topology_.rank_at(node_, local));
  return RingBackwardTasks::is_seen(gather(), writer, owner, part);
}

Status CpuKeySums::wait_parts(std::int32_t owner, std::int32_t part, std::int32_t unit) const {
  for (std::uint32_t local = 0; local < topology_.ranks_per_node(); ++local) {
    if (!has_part(local, owner, part)) continue;
    const std::uint32_t writer = topology_.rank_at(node_, local);
    const std::int32_t slot = key_slot(topology_, writer, static_cast<std::uint32_t>(owner));
    std::byte* word = workspace_.mine + plan_.partials.word_offset(slot, unit);
    MK_RETURN_IF_ERROR(wait_at_least(
        *reinterpret_cast<std::uint64_t*>(word), KeyPartialsPlan::count(launch_.epoch),
        {.role = "inter_reduce", .tag = "gradients of keys", .peer = static_cast<std::int32_t>(writer)},
        launch_.at_stage(kParts)));
  }
  return {};
}

/// In the order of ranks.
void CpuKeySums::add_parts(std::int32_t owner, std::int32_t part, std::int32_t unit, std::int32_t tensor,
                           std::vector<float>& sums) const {
  for (std::uint32_t local = 0; local < topology_.ranks_per_node(); ++local) {
    if (!has_part(local, owner, part)) continue;
    const std::int32_t slot =
        key_slot(topology_, topology_.rank_at(node_, local), static_cast<std::uint32_t>(owner));
    add(half(lent_.mine) + plan_.partials.slot_offset(slot, unit), tensor, sums);
  }
}

Status CpuKeySums::stage(std::int32_t number) const {
  const RingBackwardPlan::PutUnit at = plan_.put_unit(number);
  MK_RETURN_IF_ERROR(wait_parts(at.owner, at.part, at.unit));
  std::byte* to = half(lent_.mine) + plan_.puts.staged_offset(at.distance, at.packed);
  for (std::int32_t tensor = 0; tensor < KeyPartialsPlan::kTensors; ++tensor) {
    std::vector<float> sums(static_cast<std::size_t>(at.rows * plan_.shape().head_dim));
    add_parts(at.owner, at.part, at.unit, tensor, sums);
    store_rows(sums.data(), at.rows, rows_of(to, tensor));
  }
  signal_add(staged(at.distance, at.packed / plan_.puts.chunk_units), 1);
  return {};
}

std::int32_t CpuKeySums::packed(const RingBackwardPlan::OwnUnit& unit, std::int32_t distance) const {
  const std::int32_t head_units = plan_.come_units(distance);
  return unit.in_head < head_units ? PutKeyPartialsPlan::packed(unit.place.head, unit.in_head, head_units)
                                   : -1;
}

Status CpuKeySums::wait_sums(const RingBackwardPlan::OwnUnit& unit) const {
  const PutKeyPartialsPlan& puts = plan_.puts;
  for (std::int32_t distance = 1; distance <= gather().rails(); ++distance) {
    const std::int32_t at = packed(unit, distance);
    if (at < 0) continue;
    const std::int32_t units = gather().heads * plan_.come_units(distance);
    MK_RETURN_IF_ERROR(endpoint_.wait_arrival(peer(distance), kKeySumLane,
                                              puts.count(launch_.epoch, at / puts.chunk_units, units),
                                              "inter_reduce", launch_.at_stage(kNodeSums)));
  }
  return {};
}

/// What this node has, then the sums of other nodes, from the next one on.
Status CpuKeySums::finish(std::int32_t number) const {
  const RingBackwardPlan::OwnUnit at = plan_.own_unit(number);
  if (at.rows == 0) return {};
  MK_RETURN_IF_ERROR(wait_parts(me_, at.place.part, at.unit));
  MK_RETURN_IF_ERROR(wait_sums(at));
  const AttentionShape& shape = plan_.shape();
  const std::int32_t batch = at.place.head / gather().kv_heads, kv_head = at.place.head % gather().kv_heads;
  for (std::int32_t tensor = 0; tensor < KeyPartialsPlan::kTensors; ++tensor) {
    std::vector<float> sums(static_cast<std::size_t>(at.rows * shape.head_dim));
    add_parts(me_, at.place.part, at.unit, tensor, sums);
    for (std::int32_t distance = 1; distance <= gather().rails(); ++distance) {
      const std::int32_t place = packed(at, distance);
      if (place >= 0) add(half(lent_.mine) + plan_.puts.partial_offset(distance, place), tensor, sums);
    }
    const HeadRows to = head_rows(shape, own_[tensor], shape.kv_heads, plan_.positions(), batch, kv_head);
    store_rows(sums.data(), at.rows, to.from(plan_.ring.part_begin(at.place.part) + at.row));
  }
  return {};
}

Status CpuKeySums::put_chunk(std::int32_t distance, std::int32_t chunk) const {
  constexpr const char* kRole = "inter_send";
  const PutKeyPartialsPlan& puts = plan_.puts;
  const std::int32_t units = gather().heads * plan_.put_units(distance);
  const std::int32_t begin = puts.chunk_begin(chunk, units);
  const auto count = static_cast<std::uint64_t>(puts.chunk_begin(chunk + 1, units) - begin);
  MK_RETURN_IF_ERROR(wait_at_least(staged(distance, chunk), count,
                                   {.role = kRole, .tag = "sums of a chunk", .peer = me_},
                                   launch_.at_stage(kStaged)));
  // What the owner is to this node, this node is to the owner in the rest of the way round.
  const Place from{lent_.region, launch_.half_at + puts.staged_offset(distance, begin)};
  const Place to{lent_.region, launch_.half_at + puts.partial_offset(puts.nodes - distance, begin)};
  return endpoint_.put(peer(distance), kKeySumLane, from, to, count * puts.unit_bytes, kRole, launch_.scope);
}

/// Of every peer the chunks that are whole with a head.
Status CpuKeySums::put() const {
  const PutKeyPartialsPlan& puts = plan_.puts;
  for (std::int32_t head = 0; head < gather().heads; ++head) {
    for (std::int32_t distance = 1; distance <= gather().rails(); ++distance) {
      const std::int32_t of_head = plan_.put_units(distance), units = gather().heads * of_head;
      const std::int32_t end = puts.chunks_whole((head + 1) * of_head, units);
      for (std::int32_t chunk = puts.chunks_whole(head * of_head, units); chunk < end; ++chunk)
        MK_RETURN_IF_ERROR(put_chunk(distance, chunk));
    }
  }
  for (std::int32_t distance = 1; distance <= gather().rails(); ++distance) {
    const auto chunks = static_cast<std::uint64_t>(puts.chunks(gather().heads * plan_.put_units(distance)));
    MK_RETURN_IF_ERROR(endpoint_.wait_completed(peer(distance), kKeySumLane, (launch_.epoch + 1) * chunks,
                                                "inter_send", launch_.scope));
  }
  return {};
}

}  // namespace mkernel::kernels
