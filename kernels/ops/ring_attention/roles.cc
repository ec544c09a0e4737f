#include "kernels/ops/ring_attention/roles.h"

#include <algorithm>
#include <cstring>

#include "kernels/ops/ring_attention/shape.h"

namespace mkernel::kernels {

RingAttention::RingAttention(const RingAttentionPlan& plan, const GroupView& group,
                             const SymmetricView& workspace, Endpoint& endpoint)
    : plan_(plan),
      workspace_(workspace),
      endpoint_(endpoint),
      rank_(group.rank()),
      local_(plan.topology().local_of(group.rank())),
      done_(std::make_unique<std::atomic<int>[]>(plan.topology().world())) {}

void RingAttention::begin(int compute_threads) {
  compute_threads_ = compute_threads;
  for (std::uint32_t i = 0; i < plan_.topology().world(); ++i) done_[i].store(0, std::memory_order_relaxed);
}

/// The slot of `step` still holds the block of two steps ago: every rank of the node must have read it, and
/// the puts that passed it on must have left.
Status RingAttention::wait_slot_free(const Launch& launch, std::uint32_t step, const char* role) const {
  const std::uint64_t now = global_step(launch, step);
  if (now < 2) return {};
  for (std::uint32_t reader = 0; reader < plan_.topology().ranks_per_node(); ++reader) {
    const auto peer = plan_.topology().rank_at(plan_.topology().node_of(rank_), reader);
    MK_RETURN_IF_ERROR(wait_at_least(word(local_, plan_.workspace().consumed(reader)).value, now - 1,
                                     {role, "steps read", peer}, launch.at_stage(1)));
  }
  if (plan_.steps() == 1) return {};
  const std::uint64_t left = launch.epoch * plan_.sent_before(rank_, plan_.steps()) +
                             plan_.sent_before(rank_, step == 0 ? 0 : step - 1);
  return endpoint_.wait_completed(plan_.next(rank_), RingAttentionPlan::kDataLane, left, role, launch.scope);
}

/// Waits until `page` of the block that local rank `holder` holds at `step` is in its slot.
Status RingAttention::wait_page(const Launch& launch, std::uint32_t holder, std::uint32_t step,
                                std::uint64_t page, const char* role) const {
  const std::uint32_t rank = plan_.topology().rank_at(plan_.topology().node_of(rank_), holder);
  // Whoever waits for a peer's puts or signals names the culprit and must give up first.
  const WaitScope scope = launch.at_stage(holder == local_ ? 2 : 1);
  if (step == 0) {
    return wait_at_least(word(holder, plan_.workspace().loaded()).value,
                         launch.epoch * plan_.pages(rank) + page + 1, {role, "pages loaded", rank}, scope);
  }
  const std::uint64_t before =
      launch.epoch * plan_.received_before(rank, plan_.steps()) + plan_.received_before(rank, step);
  return wait_at_least(word(holder, plan_.workspace().received()).value, before + page + 1,
                       {role, "pages received", rank}, scope);
}

Status RingAttention::load(const Launch& launch, const AttentionArguments& arguments) {
  constexpr const char* kRole = "intra_comm";
  MK_RETURN_IF_ERROR(wait_slot_free(launch, 0, kRole));
  const std::uint64_t pages = plan_.pages(rank_);
  const std::int64_t length = plan_.positions(rank_).size();
  std::byte* slot = workspace_.mine + slot_offset(launch, 0);
  for (std::uint64_t index = 0; index < pages; ++index) {
    const KvPage page = plan_.page(rank_, index);
    const std::uint64_t half = page.bytes / 2;
    const auto row = static_cast<std::uint64_t>(page.batch * length + page.rows.begin);
    const std::uint64_t from = row * (half / static_cast<std::uint64_t>(page.rows.size()));
    std::memcpy(slot + page.offset, static_cast<const std::byte*>(arguments.k) + from, half);
    std::memcpy(slot + page.values(), static_cast<const std::byte*>(arguments.v) + from, half);
    signal_set(word(local_, plan_.workspace().loaded()), launch.epoch * pages + index + 1);
  }
  return {};
}

Status RingAttention::send(const Launch& launch) {
  constexpr const char* kRole = "inter_send";
  const std::uint32_t next = plan_.next(rank_);
  for (std::uint32_t step = 0; step + 1 < plan_.steps(); ++step) {
    // One credit per step: the slot over there is free for the block of the step after this one.
    MK_RETURN_IF_ERROR(endpoint_.wait_arrival(next, RingAttentionPlan::kCreditLane,
                                              launch.epoch * plan_.credits() + step + 1, kRole,
                                              launch.scope));
    const std::uint32_t origin = plan_.origin(rank_, step);
    for (std::uint64_t index = 0; index < plan_.pages(origin); ++index) {
      MK_RETURN_IF_ERROR(wait_page(launch, local_, step, index, kRole));
      const KvPage page = plan_.page(origin, index);
      const Place from{workspace_.region, slot_offset(launch, step) + page.offset};
      const Place to{workspace_.region, slot_offset(launch, step + 1) + page.offset};
      MK_RETURN_IF_ERROR(
          endpoint_.put(next, RingAttentionPlan::kDataLane, from, to, page.bytes, kRole, launch.scope));
    }
  }
  return {};
}

Status RingAttention::receive(const Launch& launch) {
  constexpr const char* kRole = "inter_recv";
  const std::uint32_t previous = plan_.previous(rank_);
  std::uint64_t arrived = launch.epoch * plan_.received_before(rank_, plan_.steps());
  for (std::uint32_t step = 1; step < plan_.steps(); ++step) {
    MK_RETURN_IF_ERROR(wait_slot_free(launch, step, kRole));
    MK_RETURN_IF_ERROR(endpoint_.signal(previous, RingAttentionPlan::kCreditLane, kRole, launch.scope));
    const std::uint64_t end = arrived + plan_.pages(plan_.origin(rank_, step));
    while (arrived < end) {
      MK_RETURN_IF_ERROR(
          endpoint_.wait_arrival(previous, RingAttentionPlan::kDataLane, arrived + 1, kRole, launch.scope));
      arrived = std::min(end, endpoint_.arrived(previous, RingAttentionPlan::kDataLane));
      signal_set(word(local_, plan_.workspace().received()), arrived);
    }
  }
  return {};
}

Status RingAttention::compute(const Launch& launch, const AttentionArguments& arguments, int thread) {
  const AttentionShape& shape = plan_.shape();
  const Positions held = plan_.positions(rank_);
  const auto rows_of_tile = [&](const void* tensor, const QueryTile& tile) {
    return head_rows(shape, tensor, shape.heads, held.size(), tile.batch, tile.head).from(tile.rows.begin);
  };
  const std::vector<QueryTile> all = plan_.tiles(rank_);
  std::vector<QueryTile> tiles;
  std::vector<AttentionTile> states;
  for (std::size_t i = static_cast<std::size_t>(thread); i < all.size();
       i += static_cast<std::size_t>(compute_threads_)) {
    tiles.push_back(all[i]);
    states.emplace_back(held.at(all[i].rows.begin), all[i].rows.size(), shape.head_dim, shape.causal);
    states.back().begin(rows_of_tile(arguments.q, all[i]), attention_scale(shape));
  }
  AttentionScratch scratch(shape.head_dim);
  for (std::uint32_t step = 0; step < plan_.steps(); ++step) {
    for (std::uint32_t turn = 0; turn < plan_.topology().ranks_per_node(); ++turn) {
      MK_RETURN_IF_ERROR(attend_block(launch, step, plan_.reads(local_, turn), tiles, states, scratch));
      finish_block(launch, step, turn);
    }
  }
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    const HeadRows out = rows_of_tile(arguments.out, tiles[i]);
    if (arguments.lse != nullptr) {
      const std::int64_t head = tiles[i].batch * shape.heads + tiles[i].head;
      states[i].log_sum_exp(arguments.lse + head * held.size() + tiles[i].rows.begin);
    }
    states[i].finish(const_cast<void*>(out.data), out.stride, shape.dtype);
  }
  return {};
}

Status RingAttention::attend_block(const Launch& launch, std::uint32_t step, std::uint32_t holder,
                                   const std::vector<QueryTile>& tiles, std::vector<AttentionTile>& states,
                                   AttentionScratch& scratch) const {
  const AttentionShape& shape = plan_.shape();
  const std::uint32_t origin =
      plan_.origin(plan_.topology().rank_at(plan_.topology().node_of(rank_), holder), step);
  const Positions block = plan_.positions(origin);
  const std::byte* slot = workspace_.node[holder] + slot_offset(launch, step);
  for (std::uint64_t index = 0; index < plan_.pages(origin); ++index) {
    MK_RETURN_IF_ERROR(wait_page(launch, holder, step, index, "compute"));
    const KvPage page = plan_.page(origin, index);
    const Positions positions = block.slice(page.rows);
    for (std::size_t i = 0; i < tiles.size(); ++i) {
      if (tiles[i].batch != page.batch || states[i].hides(positions)) continue;
      const std::int64_t kv_head = tiles[i].head / (shape.heads / shape.kv_heads);
      states[i].attend(head_rows(shape, slot + page.offset, shape.kv_heads, 0, 0, kv_head),
                       head_rows(shape, slot + page.values(), shape.kv_heads, 0, 0, kv_head), positions,
                       scratch);
    }
  }
  return {};
}

/// The last compute thread that is done with a block tells its holder. Its acquire of the others' counts and
/// the release of the signal order all their reads before whatever is written into the slot next. Blocks are
/// read in the same order by every thread, so the word only grows.
void RingAttention::finish_block(const Launch& launch, std::uint32_t step, std::uint32_t turn) {
  const std::uint32_t ranks = plan_.topology().ranks_per_node();
  if (done_[step * ranks + turn].fetch_add(1, std::memory_order_acq_rel) + 1 < compute_threads_) return;
  signal_set(word(plan_.reads(local_, turn), plan_.workspace().consumed(local_)),
             global_step(launch, step) + 1);
}

}  // namespace mkernel::kernels
