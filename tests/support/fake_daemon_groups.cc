// FakeDaemon: groups, regions, exchanges and the delivery of puts.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>

#include "tests/support/fake_daemon.h"

namespace mkernel::test {
namespace {

void count(std::uint64_t& word) {
  std::atomic_ref(word).fetch_add(1, std::memory_order_release);
}

}  // namespace

void FakeDaemon::join(Client& client, const abi::JoinGroup& message) {
  Group& group = groups_[std::string(ipc::text_of(message.name))];
  if (!group.members.empty() &&
      !std::equal(std::begin(message.secret), std::end(message.secret), std::begin(group.shape.secret))) {
    return reply(client, abi::MessageType::kJoinGroupReply, message.header.sequence, abi::JoinGroupReply{},
                 {StatusCode::kDeadlineExceeded, "ranks of another owner waited under the same name"});
  }
  if (group.members.contains(message.rank)) {
    return reply(client, abi::MessageType::kJoinGroupReply, message.header.sequence, abi::JoinGroupReply{},
                 {StatusCode::kAlreadyExists, "rank " + std::to_string(message.rank) + " is taken"});
  }
  group.shape = message;
  auto& member = group.members[message.rank] = std::make_unique<Member>();
  member->client = &client;
  member->handle = client.next_handle++;
  member->join_sequence = message.header.sequence;
  if (group.members.size() == message.world_size) form(group);
}

void FakeDaemon::form(Group& group) {
  group.whole = true;
  std::vector<std::string> names;
  for (auto& [rank, member] : group.members) {
    if (std::find(names.begin(), names.end(), node_of(rank)) == names.end()) names.push_back(node_of(rank));
  }
  for (auto& [rank, member] : group.members) {
    abi::GroupSegment layout{};
    abi::JoinGroupReply message{};
    message.group = member->handle;
    message.segment_bytes = abi::layout_group(layout, group.shape.world_size, rank, group.shape.lanes,
                                              group.shape.region_capacity);
    layout.node_count = static_cast<std::uint32_t>(names.size());
    layout.instance = 1;
    layout.rails = options_.rails;
    member->first_channel = layout.first_channel = member->client->next_channel;
    member->client->next_channel += group.shape.world_size * group.shape.lanes;
    member->fd = ipc::create_shared_memory("fake group", message.segment_bytes).value();
    member->segment = ipc::Mapping::map(member->fd.get(), 0, message.segment_bytes).value();
    std::memcpy(member->segment.data(), &layout, sizeof(layout));
    auto* members = member->segment.at<abi::Member>(layout.members_offset);
    std::map<std::string, std::uint32_t> local;
    for (std::uint32_t r = 0; r < group.shape.world_size; ++r) {
      const auto node = std::find(names.begin(), names.end(), node_of(r)) - names.begin();
      members[r].node = static_cast<std::uint32_t>(node);
      members[r].local_rank = local[node_of(r)]++;
      ipc::copy_text(members[r].node_name, node_of(r));
      // This daemon says of no rank what it does: nothing waits for it.
      auto& state = member->segment.at<abi::RankState>(layout.states_offset)[r];
      state.phase = static_cast<std::uint32_t>(abi::RankPhase::kUnreachable);
    }
  }
  for (auto& [rank, member] : group.members) {
    abi::JoinGroupReply message{};
    message.group = member->handle;
    message.segment_bytes = member->header()->bytes;
    reply(*member->client, abi::MessageType::kJoinGroupReply, member->join_sequence, message, {},
          {member->fd.get()});
  }
}

void FakeDaemon::exchange(Client& client, const abi::Exchange& message) {
  const Seat at = seat(client, message.group);
  at.member->exchange_sequence = message.header.sequence;
  at.member->payload.assign(message.payload, message.payload + abi::kExchangeBytes);
  for (auto& [rank, member] : at.group->members) {
    if (member->exchange_sequence == 0) return;
  }
  for (auto& [rank, member] : at.group->members) {
    for (auto& [other, contributor] : at.group->members) {
      std::memcpy(member->segment.at<std::byte>(member->header()->board_offset + other * abi::kExchangeBytes),
                  contributor->payload.data(), abi::kExchangeBytes);
    }
  }
  for (auto& [rank, member] : at.group->members) {
    plain(*member->client, abi::MessageType::kExchangeReply, std::exchange(member->exchange_sequence, 0));
  }
}

void FakeDaemon::register_region(Client& client, const abi::RegisterRegion& message,
                                 std::vector<ipc::UniqueFd> fds) {
  const Seat at = seat(client, message.group);
  const bool named = message.kind == static_cast<std::uint32_t>(abi::RegionKind::kIpc);
  Status good;
  if (fds.size() != (named ? 0 : 1))
    good = {StatusCode::kInvalidArgument, "not the number of fds that is needed"};
  if (good.ok() && !named) good = ipc::check_shared_memory(fds[0].get(), message.offset, message.bytes);
  if (good.ok() && message.kind == static_cast<std::uint32_t>(abi::RegionKind::kHostMemory) &&
      ::lseek(fds[0].get(), static_cast<off_t>(message.offset), SEEK_HOLE) <
          static_cast<off_t>(message.offset + message.bytes)) {
    good = {StatusCode::kFailedPrecondition, "the region has a hole"};
  }
  if (good.ok()) {
    Region region{.offset = message.offset,
                  .shared = message.shared == 1,
                  .kind = message.kind,
                  .bytes = message.bytes,
                  .ipc = message.ipc};
    if (!named) {
      region.hold = holds_.of(0, fds[0].get()).value();
      region.mapping = std::move(region.hold->map(message.offset, message.bytes)).value();
      region.fd = std::move(fds[0]);
      if (message.keep == 1) kept_.push_back(region.hold);
    }
    if (!region.shared || named) good = seal(region);
    at.member->regions[message.index] = std::move(region);
    set_entry(*at.group, at.rank, message.index, message.bytes);
  }
  plain(client, abi::MessageType::kRegisterRegionReply, message.header.sequence, good);
}

Status FakeDaemon::seal(Region& region) {
  region.sealed = true;
  const bool host = region.kind == static_cast<std::uint32_t>(abi::RegionKind::kHostMemory);
  if (!host || ::fcntl(region.fd.get(), F_ADD_SEALS, ipc::kFutureWriteSeal) == 0) return {};
  return {StatusCode::kFailedPrecondition, "the memfd takes no more seals"};
}

Status FakeDaemon::seal_region(Client& client, const abi::SealRegion& message) {
  Region& region = seat(client, message.group).member->regions.at(message.index);
  if (region.sealed) return {StatusCode::kAlreadyExists, "the region is sealed"};
  return seal(region);
}

FakeDaemon::Region& FakeDaemon::usable(Member& member, std::uint32_t index) {
  Region& region = member.regions.at(index);
  const bool gpu = region.kind != static_cast<std::uint32_t>(abi::RegionKind::kHostMemory);
  if (!region.sealed && !gpu) throw std::runtime_error("fake daemon: a put on memory that is not sealed");
  return region;
}

void FakeDaemon::map_region(Client& client, const abi::MapRegion& message) {
  const Seat at = seat(client, message.group);
  Region& region = at.group->members.at(message.rank)->regions[message.index];
  abi::MapRegionReply answer{};
  if (!region.shared || node_of(message.rank) != node_of(at.rank)) {
    return reply(client, abi::MessageType::kMapRegionReply, message.header.sequence, answer,
                 {StatusCode::kPermissionDenied, "not shared with this rank"});
  }
  answer.kind = region.kind;
  answer.offset = region.offset;
  answer.bytes = region.bytes;
  answer.ipc = region.ipc;
  std::vector<int> fds;
  if (region.fd.valid()) fds.push_back(region.fd.get());
  reply(client, abi::MessageType::kMapRegionReply, message.header.sequence, answer, {}, fds);
}

void FakeDaemon::set_entry(Group& group, std::uint32_t rank, std::uint32_t index, std::uint64_t bytes) {
  for (auto& [other, member] : group.members) {
    auto& entry = member->segment.at<abi::RegionEntry>(
        member->header()->regions_offset)[rank * group.shape.region_capacity + index];
    std::atomic_ref(entry.bytes).store(bytes, std::memory_order_release);
  }
}

void FakeDaemon::leave(Client& client, std::uint32_t handle) {
  const Seat at = seat(client, handle);
  at.group->members.erase(at.rank);
  std::erase_if(groups_, [](auto& entry) { return entry.second.members.empty(); });
}

void FakeDaemon::fail(Group& group, std::int32_t culprit, const std::string& node, const Status& why) {
  for (auto& [rank, member] : group.members) {
    if (member->segment.bytes() == 0) continue;
    abi::FailureRecord& record = member->header()->failure;
    record.code = static_cast<std::uint32_t>(why.code());
    record.culprit = culprit;
    ipc::copy_text(record.node, node);
    ipc::copy_text(record.text, why.text());
    std::atomic_ref(member->header()->abort).store(record.code, std::memory_order_release);
    if (member->exchange_sequence != 0) {
      plain(*member->client, abi::MessageType::kExchangeReply, std::exchange(member->exchange_sequence, 0),
            why);
    }
  }
}

std::size_t FakeDaemon::drain(Client& client) {
  std::size_t consumed = 0;
  for (std::uint32_t ring = 0; ring < client.tails.size(); ++ring) {
    std::uint64_t& tail = client.tails[ring];
    auto* slots = client.segment.at<abi::WorkSlot>(client.header()->slots_offset) +
                  (std::uint64_t{ring} << options_.log2_slots);
    abi::WorkSlot slot;
    if (!abi::load_slot(slots[tail & ((1U << options_.log2_slots) - 1)],
                        abi::lap_bit(tail, options_.log2_slots), slot)) {
      continue;
    }
    ++tail;
    std::atomic_ref(client.header()->head(abi::RingWriter::kThreads, ring).tail)
        .store(tail, std::memory_order_release);
    deliver(client, slot);
    ++slots_[ring];
    ++consumed;
  }
  return consumed;
}

void FakeDaemon::deliver(Client& client, const abi::WorkSlot& slot) {
  const abi::WorkRequest request = abi::decode(slot);
  for (auto& [name, group] : groups_) {
    for (auto& [rank, member] : group.members) {
      const std::uint32_t channels = group.shape.world_size * group.shape.lanes;
      if (member->client != &client || request.channel - member->first_channel >= channels) continue;
      const std::uint32_t lane = (request.channel - member->first_channel) % group.shape.lanes;
      const auto target = group.members.find(request.peer);
      if (target == group.members.end()) return;  // left already
      if (request.length > 0) {
        std::memcpy(usable(*target->second, request.remote_region).mapping.data() + request.remote_offset,
                    usable(*member, request.local_region).mapping.data() + request.local_offset,
                    request.length);
      }
      Member& receiver = *target->second;
      count(receiver.segment.at<std::uint64_t>(
          receiver.header()->arrivals_offset)[rank * group.shape.lanes + lane]);
      count(member->segment.at<std::uint64_t>(
          member->header()->completed_offset)[request.peer * group.shape.lanes + lane]);
      ++puts_;
      return;
    }
  }
}

FakeDaemon::Seat FakeDaemon::seat(Client& client, std::uint32_t handle) {
  for (auto& [name, group] : groups_) {
    for (auto& [rank, member] : group.members) {
      if (member->client == &client && member->handle == handle) return {&group, rank, member.get()};
    }
  }
  throw std::runtime_error("fake daemon: foreign group handle");
}

std::string FakeDaemon::node_of(std::uint32_t rank) const {
  return rank < options_.nodes.size() ? options_.nodes[rank] : "node0";
}

}  // namespace mkernel::test
