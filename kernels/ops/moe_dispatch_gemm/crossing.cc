// What crosses nodes: counts, rows that are staged, put and forwarded, sums that return. Only the rank that
// owns the memory reads what a NIC wrote there, and pushes it on in its node.
#include <cstring>

#include "kernels/ops/moe_dispatch_gemm/roles.h"
#include "kernels/plan/chunked_routing.h"

namespace mkernel::kernels {
namespace {

constexpr const char* kSendRole = "inter_send";
constexpr const char* kReceiveRole = "inter_recv";

}  // namespace

Status MoeLaunch::forward_counts() {
  for (std::int32_t turn = 0; turn < exchange_.others(); ++turn) {
    const std::int32_t source = order_.rail_peer(turn);
    MK_RETURN_IF_ERROR(
        endpoint_.wait_arrival(static_cast<std::uint32_t>(source), ExpertExchangePlan::kRowsLane,
                               exchange_.counts_arrivals(launch_.epoch), kReceiveRole, launch_.scope));
    const std::uint64_t at = exchange_.counts(launch_.epoch, source);
    for (std::int32_t ahead = 1; ahead <= order_.ranks_per_node; ++ahead) {
      const std::int32_t to = order_.neighbour(ahead);
      if (to != me_) std::memcpy(memory(to) + at, memory(me_) + at, exchange_.counts_bytes());
      signal_set(word(to, exchange_.counted(source)), stamp());
    }
  }
  return {};
}

/// Tokens in the order in which they cross, to all nodes in turn.
void MoeLaunch::stage() {
  WorkCounter& work = work_->staging;
  for (std::int32_t number = work.next(); number < work.all(); number = work.next()) {
    const std::int32_t turn = number % exchange_.others(), row = number / exchange_.others();
    if (row >= work_->crossing[static_cast<std::size_t>(turn)]) continue;
    stage_row(turn, row);
    signal_set(word(me_, exchange_.staged_word(turn, row)), stamp());
  }
}

/// The row of a token, behind what the rail peer must know of it.
void MoeLaunch::stage_row(std::int32_t turn, std::int32_t row) const {
  const std::int32_t token = routing_.crossing(turn, row);
  const std::vector<std::int32_t> entries = routing_.entries(turn, token);
  const CrossingHead head{routing_.returning(turn, token), static_cast<std::int32_t>(entries.size())};
  std::byte* out = memory(me_) + exchange_.crossing_out(turn, row);
  std::memcpy(out, &head, sizeof head);
  auto* to = out + sizeof head;
  for (const std::int32_t entry : entries) {
    const ChunkedRouting::Push push = routing_.row(entry);
    const CrossingEntry made{push.expert, push.index, arguments_.weights[entry]};
    std::memcpy(to, &made, sizeof made);
    to += sizeof made;
  }
  const std::int64_t bytes = plan_.shape.hidden * 2;
  std::memcpy(out + exchange_.row_in_crossing(), static_cast<const std::byte*>(arguments_.x) + token * bytes,
              static_cast<std::size_t>(bytes));
}

/// Pieces as they arrive: copies of their rows into the pools of this node.
Status MoeLaunch::forward() {
  WorkCounter& work = work_->forwarding;
  for (std::int32_t number = work.next(); number < work.all(); number = work.next()) {
    const std::int32_t piece = number / exchange_.others(), turn = number % exchange_.others();
    MK_RETURN_IF_ERROR(endpoint_.wait_arrival(
        static_cast<std::uint32_t>(order_.rail_peer(turn)), ExpertExchangePlan::kRowsLane,
        exchange_.rows_arrivals(launch_.epoch, piece), kReceiveRole, launch_.at_stage(1)));
    const std::int32_t rows = work_->counts.crossed[static_cast<std::size_t>(turn)];
    for (std::int32_t row = exchange_.piece_begin(piece, rows); row < exchange_.piece_begin(piece + 1, rows);
         ++row)
      forward_row(turn, row);
  }
  return {};
}

void MoeLaunch::forward_row(std::int32_t turn, std::int32_t row) {
  const std::byte* in = memory(me_) + exchange_.crossing_in(turn, row);
  const auto& head = *reinterpret_cast<const CrossingHead*>(in);
  const auto* entries = reinterpret_cast<const CrossingEntry*>(in + sizeof head);
  std::vector<PoolPlace> places;
  for (std::int32_t i = 0; i < head.entries; ++i) {
    places.push_back(place_of(order_.rail_peer(turn), entries[i].expert, entries[i].index));
    write_row(places.back(), {me_, exchange_.crossed_entry(turn, head.returning) + i},
              in + exchange_.row_in_crossing(), entries[i].weight);
  }
  signal_rows(places);
  work_->crossed_row[static_cast<std::size_t>(turn)][static_cast<std::size_t>(head.returning)] = row;
  signal_set(word(me_, exchange_.forwarded_word(turn, head.returning)), stamp());
}

Status MoeLaunch::send() {
  MK_RETURN_IF_ERROR(wait(word(me_, exchange_.counted(me_)), stamp(), {kSendRole, "own counts", me_}, 1));
  MK_RETURN_IF_ERROR(put_counts());
  MK_RETURN_IF_ERROR(wait_table(kSendRole));
  MK_RETURN_IF_ERROR(wait_placed(kSendRole));
  for (const std::uint32_t lane : {ExpertExchangePlan::kRowsLane, ExpertExchangePlan::kSumsLane})
    MK_RETURN_IF_ERROR(put_pieces(lane));
  const std::int32_t last = exchange_.pieces - 1;
  for (std::int32_t turn = 0; turn < exchange_.others(); ++turn) {
    const auto peer = static_cast<std::uint32_t>(order_.rail_peer(turn));
    MK_RETURN_IF_ERROR(endpoint_.wait_completed(peer, ExpertExchangePlan::kRowsLane,
                                                exchange_.rows_arrivals(launch_.epoch, last), kSendRole,
                                                launch_.scope));
    MK_RETURN_IF_ERROR(endpoint_.wait_completed(peer, ExpertExchangePlan::kSumsLane,
                                                exchange_.sums_arrivals(launch_.epoch, last), kSendRole,
                                                launch_.scope));
  }
  return {};
}

Status MoeLaunch::put_counts() {
  const Place place{workspace_.region, exchange_.counts(launch_.epoch, me_)};
  for (std::int32_t turn = 0; turn < exchange_.others(); ++turn) {
    MK_RETURN_IF_ERROR(endpoint_.put(static_cast<std::uint32_t>(order_.rail_peer(turn)),
                                     ExpertExchangePlan::kRowsLane, place, place, exchange_.counts_bytes(),
                                     kSendRole, launch_.scope));
  }
  return {};
}

Status MoeLaunch::put_pieces(std::uint32_t lane) {
  for (std::int32_t piece = 0; piece < exchange_.pieces; ++piece)
    for (std::int32_t turn = 0; turn < exchange_.others(); ++turn)
      MK_RETURN_IF_ERROR(put_piece(lane, turn, piece));
  return {};
}

/// Once its rows are staged, its sums made. A launch that is refused puts as often, nothing each time.
Status MoeLaunch::put_piece(std::uint32_t lane, std::int32_t turn, std::int32_t piece) {
  const bool out = lane == ExpertExchangePlan::kRowsLane;
  const auto at = static_cast<std::size_t>(turn);
  const std::int32_t rows = work_ == nullptr ? 0 : out ? work_->crossing[at] : work_->counts.crossed[at];
  const std::int32_t begin = exchange_.piece_begin(piece, rows), end = exchange_.piece_begin(piece + 1, rows);
  for (std::int32_t row = begin; row < end; ++row) {
    const std::uint64_t ready = out ? exchange_.staged_word(turn, row) : exchange_.summed_word(turn, row);
    MK_RETURN_IF_ERROR(
        wait(word(me_, ready), stamp(), {kSendRole, out ? "a staged row" : "a sum", me_}, out ? 2 : 3));
  }
  const std::int32_t there = order_.as_seen_from(turn);
  const std::uint64_t from = out ? exchange_.crossing_out(turn, begin) : exchange_.sum_out(turn, begin);
  const std::uint64_t to = out ? exchange_.crossing_in(there, begin) : exchange_.sum_in(there, begin);
  const std::uint64_t bytes = out ? exchange_.crossing_bytes() : exchange_.finished_bytes;
  return endpoint_.put(static_cast<std::uint32_t>(order_.rail_peer(turn)), lane, {workspace_.region, from},
                       {workspace_.region, to}, static_cast<std::uint64_t>(end - begin) * bytes, kSendRole,
                       launch_.scope);
}

}  // namespace mkernel::kernels
