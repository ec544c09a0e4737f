#include "kernels/cpu/exchange/gather.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace mkernel::kernels {

Gather::Gather(const GatherPlan& plan, const Topology& topology, const GroupView& group,
               const SymmetricView& workspace, Endpoint& endpoint, std::uint32_t lane, int stage)
    : plan_(plan),
      topology_(topology),
      workspace_(workspace),
      endpoint_(endpoint),
      rank_(group.rank()),
      lane_(lane),
      stage_(stage) {}

SignalWord& Gather::ready_word(std::uint32_t local, std::uint32_t source) const {
  return *reinterpret_cast<SignalWord*>(workspace_.node[local] + plan_.ready_offset(source));
}

std::byte* Gather::chunk(const Launch& launch, std::uint32_t source, std::uint64_t index) const {
  return workspace_.mine + plan_.slab_offset(launch.epoch) + plan_.chunk(source, index).offset;
}

/// This rank first, it may be computing with it at once; then the others, beginning with the next one so
/// that not everybody writes to the same.
void Gather::fan_out(const Launch& launch, std::uint32_t source, std::uint64_t index) {
  const std::uint32_t ranks = topology_.ranks_per_node();
  const std::uint32_t me = topology_.local_of(rank_);
  const GatherPlan::Chunk part = plan_.chunk(source, index);
  const std::uint64_t offset = plan_.slab_offset(launch.epoch) + part.offset;
  for (std::uint32_t step = 0; step < ranks; ++step) {
    const std::uint32_t local = (me + step) % ranks;
    if (local != me && part.bytes > 0) {
      std::memcpy(workspace_.node[local] + offset, workspace_.mine + offset, part.bytes);
    }
    signal_set(ready_word(local, source), plan_.count(launch.epoch, source, index));
  }
}

void Gather::publish(const Launch& launch, std::uint64_t index) {
  fan_out(launch, rank_, index);
}

Status Gather::send(const Launch& launch, std::uint64_t index, const char* role) {
  const GatherPlan::Chunk part = plan_.chunk(rank_, index);
  const Place place{workspace_.region, plan_.slab_offset(launch.epoch) + part.offset};
  for (std::uint32_t step = 1; step < topology_.nodes(); ++step) {
    const std::uint32_t node = (topology_.node_of(rank_) + step) % topology_.nodes();
    MK_RETURN_IF_ERROR(
        endpoint_.put(topology_.rail_peer(rank_, node), lane_, place, place, part.bytes, role, launch.scope));
  }
  return {};
}

/// Clamped to this launch: a fast peer may already send for the next one.
std::uint64_t Gather::arrived(const Launch& launch, std::uint32_t source) const {
  const std::uint64_t before = launch.epoch * plan_.chunks(source);
  return std::min(endpoint_.arrived(source, lane_) - before, plan_.chunks(source));
}

Status Gather::relay(const Launch& launch) {
  std::vector<std::uint32_t> sources;
  std::uint64_t expected = 0;
  for (std::uint32_t step = 1; step < topology_.nodes(); ++step) {
    const std::uint32_t node = (topology_.node_of(rank_) + topology_.nodes() - step) % topology_.nodes();
    sources.push_back(topology_.rail_peer(rank_, node));
    expected += plan_.chunks(sources.back());
  }
  std::vector<std::uint64_t> relayed(sources.size(), 0);
  for (std::uint64_t done = 0; done < expected;) {
    WaitSite site{"inter_recv", "arrivals", -1, lane_};
    const auto total = [&] {
      std::uint64_t sum = 0;
      site.peer = -1;
      for (const std::uint32_t source : sources) {
        const std::uint64_t count = arrived(launch, source);
        if (site.peer < 0 && count < plan_.chunks(source)) site.peer = source;
        sum += count;
      }
      return sum;
    };
    MK_RETURN_IF_ERROR(wait_until(total, done + 1, site, launch.at_stage(stage_)));
    for (std::size_t i = 0; i < sources.size(); ++i) {
      for (const std::uint64_t until = arrived(launch, sources[i]); relayed[i] < until; ++relayed[i]) {
        fan_out(launch, sources[i], relayed[i]);
        ++done;
      }
    }
  }
  return {};
}

std::uint64_t Gather::ready(const Launch& launch, std::uint32_t source) const {
  const std::uint64_t before = launch.epoch * plan_.chunks(source);
  const std::uint64_t value = load_acquire(ready_word(topology_.local_of(rank_), source).value);
  return std::min(value - before, plan_.chunks(source));
}

WaitSite Gather::site(std::uint32_t source, const char* role) const {
  return {.role = role, .tag = "chunks", .peer = source, .via = topology_.via(source, rank_)};
}

Status Gather::wait_chunk(const Launch& launch, std::uint32_t source, std::uint64_t index,
                          const char* role) const {
  return wait_at_least(ready_word(topology_.local_of(rank_), source).value,
                       plan_.count(launch.epoch, source, index), site(source, role), scope(launch));
}

Status Gather::wait_own(const Launch& launch, std::uint64_t index, const char* role) const {
  return wait_chunk(launch, rank_, index, role);
}

Status Gather::wait_all(const Launch& launch, const char* role) const {
  for (std::uint32_t source = 0; source < plan_.sources(); ++source) {
    MK_RETURN_IF_ERROR(wait_chunk(launch, source, plan_.chunks(source) - 1, role));
  }
  return {};
}

ArrivalOrder::ArrivalOrder(const Gather& gather, const Topology& topology, const Items& items, Needs needs)
    : gather_(gather), needs_(std::move(needs)) {
  const std::uint32_t node = topology.node_of(gather.rank());
  const std::uint32_t local = topology.local_of(gather.rank());
  for (std::uint32_t i = 0; i < topology.nodes(); ++i) {
    for (std::uint32_t j = 0; j < topology.ranks_per_node(); ++j) {
      auto source = std::make_unique<Source>();
      source->rank = topology.rank_at((node + i) % topology.nodes(), (local + j) % topology.ranks_per_node());
      source->items = items(source->rank);
      sources_.push_back(std::move(source));
    }
  }
}

std::optional<ArrivalOrder::Item> ArrivalOrder::take(const Launch& launch, bool& all_taken,
                                                     std::uint32_t& missing) {
  all_taken = true;
  for (const auto& source : sources_) {
    std::int64_t index = source->taken.load(std::memory_order_relaxed);
    while (index < source->items) {
      if (gather_.ready(launch, source->rank) < needs_(source->rank, index)) {
        if (all_taken) missing = source->rank;
        all_taken = false;
        break;
      }
      if (source->taken.compare_exchange_weak(index, index + 1, std::memory_order_relaxed)) {
        return Item{source->rank, index};
      }
    }
  }
  return std::nullopt;
}

Result<std::optional<ArrivalOrder::Item>> ArrivalOrder::next(const Launch& launch, const char* role) {
  std::optional<Item> item;
  WaitSite site{role, "chunks"};
  const auto found = [&]() -> std::uint64_t {
    bool all_taken = false;
    std::uint32_t missing = 0;
    item = take(launch, all_taken, missing);
    if (!item.has_value() && !all_taken) site = gather_.site(missing, role);
    return item.has_value() || all_taken ? 1 : 0;
  };
  if (Status status = wait_until(found, 1, site, gather_.scope(launch)); !status.ok()) return status;
  return item;
}

}  // namespace mkernel::kernels
