#include "daemon/session/segments.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <map>

#include "daemon/base/printable.h"
#include "proto/ipc/packet.h"

namespace mkernel::session {
namespace {

Result<Segment> create(const std::string& label, std::uint64_t bytes) {
  auto fd = ipc::create_shared_memory(label, bytes);
  if (!fd.ok()) return fd.status();
  auto mapping = ipc::Mapping::map(fd->get(), 0, bytes);
  if (!mapping.ok()) return mapping.status();
  return Segment{std::move(fd).value(), std::move(mapping).value()};
}

void raise(std::uint32_t& word, const Status& why) {
  std::atomic_ref(word).store(static_cast<std::uint32_t>(why.code()), std::memory_order_release);
}

void write_record(abi::FailureRecord& record, std::int32_t culprit, const std::string& node,
                  const Status& why) {
  record.code = static_cast<std::uint32_t>(why.code());
  record.culprit = culprit;
  ipc::copy_text(record.node, node);
  ipc::copy_text(record.text, why.text());
}

abi::RankState* state_at(const ipc::Mapping& segment, const GroupShape& shape, std::uint32_t rank) {
  return segment.at<abi::RankState>(shape.layout().states_offset + sizeof(abi::RankState) * rank);
}

}  // namespace

Result<Segment> create_session_segment(std::uint64_t session_id, std::uint32_t ring_count,
                                       std::uint32_t log2_slots) {
  abi::SessionSegment head{};
  const std::uint64_t bytes = abi::layout_session(head, ring_count, log2_slots);
  auto segment = create("mkernel-session-" + std::to_string(session_id), bytes);
  // What follows is zero, and a page that is not touched costs the control thread nothing.
  if (segment.ok()) std::memcpy(segment->mapping.data(), &head, offsetof(abi::SessionSegment, ring));
  return segment;
}

abi::GroupSegment GroupShape::layout() const {
  abi::GroupSegment head{};
  abi::layout_group(head, world_size, rank, lanes, region_capacity);
  head.first_channel = first_channel;
  return head;
}

std::vector<abi::Member> number_members(const std::vector<FormedMember>& members) {
  std::map<std::string, std::uint32_t> node_of;
  std::vector<std::uint32_t> ranks_on_node;
  std::vector<abi::Member> numbered;
  for (const FormedMember& member : members) {
    const auto next = static_cast<std::uint32_t>(ranks_on_node.size());
    const auto [found, fresh] = node_of.emplace(member.node_name, next);
    if (fresh) ranks_on_node.push_back(0);
    abi::Member& entry = numbered.emplace_back();
    entry.node = found->second;
    entry.local_rank = ranks_on_node[found->second]++;
    ipc::copy_text(entry.node_name, member.node_name);
  }
  return numbered;
}

Result<Segment> create_group_segment(const GroupShape& shape, const FormedGroup& group) {
  abi::GroupSegment head = shape.layout();
  const std::vector<abi::Member> members = number_members(group.members);
  for (const abi::Member& member : members) head.node_count = std::max(head.node_count, member.node + 1);
  head.instance = group.instance;
  head.rails = group.members[shape.rank].port.rails;
  auto segment = create("mkernel-group-" + shape.name, head.bytes);
  if (!segment.ok()) return segment.status();
  std::memcpy(segment->mapping.data(), &head, sizeof(head));
  std::memcpy(segment->mapping.data() + head.members_offset, members.data(),
              members.size() * sizeof(abi::Member));
  return segment;
}

void write_region_entry(const ipc::Mapping& segment, const GroupShape& shape, std::uint32_t rank,
                        std::uint32_t index, const abi::RegionEntry& entry) {
  const std::uint64_t place =
      (std::uint64_t{rank} * shape.region_capacity + index) * sizeof(abi::RegionEntry);
  auto* target = segment.at<abi::RegionEntry>(shape.layout().regions_offset + place);
  std::atomic_ref<std::uint32_t>(target->kind).store(entry.kind, std::memory_order_relaxed);
  std::atomic_ref<std::uint64_t>(target->bytes).store(entry.bytes, std::memory_order_release);
}

void write_board(const ipc::Mapping& segment, const GroupShape& shape, std::span<const Blob> blobs) {
  std::byte* board = segment.data() + shape.layout().board_offset;
  for (const Blob& blob : blobs.first(std::min<std::size_t>(blobs.size(), shape.world_size))) {
    std::memcpy(board, blob.data(), blob.size());
    board += blob.size();
  }
}

void write_session_failure(const ipc::Mapping& segment, const std::string& node, const Status& why) {
  auto* head = segment.at<abi::SessionSegment>(0);
  write_record(head->failure, -1, node, why);
  raise(head->abort, why);
}

void write_group_failure(const ipc::Mapping& segment, std::int32_t culprit, const std::string& node,
                         const Status& why) {
  write_group_record(segment, culprit, node, why);
  abort_group(segment, why);
}

void write_group_record(const ipc::Mapping& segment, std::int32_t culprit, const std::string& node,
                        const Status& why) {
  write_record(segment.at<abi::GroupSegment>(0)->failure, culprit, node, why);
}

void end_group(const ipc::Mapping& segment, const Status& why) {
  raise(segment.at<abi::GroupSegment>(0)->ended, why);
}

void abort_group(const ipc::Mapping& segment, const Status& why) {
  raise(segment.at<abi::GroupSegment>(0)->abort, why);
}

void write_presence(const ipc::Mapping& segment, const GroupShape& shape, std::uint32_t rank,
                    abi::Presence presence) {
  std::atomic_ref(state_at(segment, shape, rank)->presence)
      .store(static_cast<std::uint32_t>(presence), std::memory_order_release);
}

void write_state(const ipc::Mapping& segment, const GroupShape& shape, const RankReport& report) {
  if (report.rank >= shape.world_size || report.rank == shape.rank) return;
  abi::RankState* state = state_at(segment, shape, report.rank);
  state->launches = report.state.launches;
  std::memcpy(state->what, report.state.what, sizeof(state->what));
  std::atomic_ref(state->phase).store(report.state.phase, std::memory_order_release);
}

void write_rejection(const ipc::Mapping& segment, const GroupShape& shape, std::uint32_t rank,
                     std::uint64_t launch, const Status& why) {
  RankReport report{rank, {}};
  report.state.phase = static_cast<std::uint32_t>(abi::RankPhase::kRejected);
  report.state.launches = launch;
  ipc::copy_text(report.state.what, base::one_line(why.text()));
  write_state(segment, shape, report);
  std::atomic_ref(segment.at<abi::GroupSegment>(0)->rejections).fetch_add(1);
}

abi::RankState read_own_state(const ipc::Mapping& segment, const GroupShape& shape) {
  abi::RankState* own = state_at(segment, shape, shape.rank);
  abi::RankState state{};
  state.launches = std::atomic_ref(own->launches).load();
  state.phase = std::atomic_ref(own->phase).load(std::memory_order_acquire);
  char what[sizeof(own->what)];
  std::memcpy(what, own->what, sizeof(what));
  what[sizeof(what) - 1] = 0;
  ipc::copy_text(state.what, base::one_line(std::string(ipc::text_of(what))));
  return state;
}

}  // namespace mkernel::session
