#include "daemon/transport/verbs/receiver.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

namespace mkernel::transport::verbs {
namespace {

constexpr std::uint32_t kMaxSlots = 256;
constexpr std::size_t kMaxWaiting = 1U << 20;

bool same_link(const Message& one, const Message& other) {
  return one.slot == other.slot && one.epoch == other.epoch;
}

std::uint64_t count_in(const ArrivalWord& word) {
  return std::atomic_ref<std::uint64_t>(*word.word).load(std::memory_order_acquire);
}

}  // namespace

Receiver::Receiver(Context& context, PeerId peer, const Identity& remote)
    : context_(context), peer_(peer), remote_(remote) {}

void Receiver::close() {
  links_.clear();
  for (Inbound* channel : channels_) detach(*channel, Writes::kOver);
  asked_.clear();
  waiting_.clear();
}

void Receiver::refuse(const Message& head, const Status& why, ChannelKey key, bool final) {
  Message answer = head;
  answer.type = key != 0 ? MessageType::kRefused : MessageType::kNotOpened;
  answer.count = 0;
  context_.say(peer_, bytes_of(refusal(answer, why, key, final)));
}

// Channels

Status Receiver::add(ChannelId channel, ChannelKey key) {
  auto& entry = by_key_[key];
  if (entry != nullptr) {
    return {StatusCode::kAlreadyExists, "inbound channel key " + std::to_string(key) + " is open already"};
  }
  entry = std::make_unique<Inbound>(channel, key);
  channels_.push_back(entry.get());
  return {};
}

Inbound* Receiver::find(ChannelKey key) {
  const auto found = by_key_.find(key);
  return found == by_key_.end() ? nullptr : found->second.get();
}

void Receiver::remove(Inbound& channel) {
  // What is under way is refused from here on; the sender need not send more of it and break its link by
  // that.
  if (channel.path != nullptr && !channel.stopping) say_stop(channel);
  detach(channel, Writes::kPossible);
  std::erase(channels_, &channel);
  by_key_.erase(channel.key);
}

void Receiver::quiesce(Inbound& channel) {
  if (std::exchange(channel.stopping, true) || channel.path == nullptr) return;
  say_stop(channel);
}

void Receiver::say_stop(const Inbound& channel) {
  Message head = channel.link;
  head.type = MessageType::kStop;
  const ChannelMessage stop{head, channel.key};
  context_.say(peer_, bytes_of(stop));
}

/// The sender must attach again before it can write anything of the channel. Where writes of its are possible
/// still, it is the keys that stop them, and they go before this returns.
void Receiver::detach(Inbound& channel, Writes writes) {
  if (channel.path == nullptr) return;
  rdma::Registrations& registrations = channel.path->registrations();
  for (const Inbound::Grant& grant : channel.grants) {
    if (writes == Writes::kOver) {
      registrations.release(*grant.region);
    } else {
      registrations.release_now(*grant.region);
    }
  }
  channel.grants.clear();
  registrations.release_words(channel.word.words);
  channel.path = nullptr;
}

// Messages of the sender

Status Receiver::receive(std::span<const std::byte> bytes) {
  const auto head = read_as<Message>(bytes);
  if (head.slot >= kMaxSlots) return {StatusCode::kInvalidArgument, "link " + std::to_string(head.slot)};
  switch (head.type) {
    case MessageType::kOpen: on_open(read_as<Open>(bytes)); return {};
    case MessageType::kClose: fence(head.slot); return {};
    case MessageType::kAttach: on_attach(read_as<ChannelMessage>(bytes)); return {};
    case MessageType::kDetach:
      waiting_.erase(read_as<ChannelMessage>(bytes).key);
      on_over(read_as<ChannelMessage>(bytes));
      return {};
    case MessageType::kStopped: on_over(read_as<ChannelMessage>(bytes)); return {};
    case MessageType::kResolve: on_resolve(read_as<RegionMessage>(bytes)); return {};
    case MessageType::kRevoked: on_revoked(read_as<RegionMessage>(bytes)); return {};
    default: return {StatusCode::kInternal, "not a sender's message"};
  }
}

/// From here on nothing lands that was sent over the slot's connection, and what has landed can be counted.
void Receiver::fence(std::uint32_t slot) {
  links_.erase(slot);
  for (Inbound* channel : channels_) {
    if (channel->path != nullptr && channel->link.slot == slot) detach(*channel, Writes::kOver);
  }
  std::erase_if(waiting_, [&](const auto& entry) { return entry.second.slot == slot; });
}

Status Receiver::check_identity(const Open& open) const {
  const Identity& self = context_.options.base.identity;
  if (open.to_boot_id != self.boot_id) {
    return {StatusCode::kFailedPrecondition, "node " + self.node + " has boot id " +
                                                 std::to_string(self.boot_id) + ", not " +
                                                 std::to_string(open.to_boot_id) + ": it was started anew"};
  }
  if (open.from_boot_id != remote_.boot_id) {
    return {StatusCode::kFailedPrecondition, "node " + self.node + " knows node " + remote_.node +
                                                 " with boot id " + std::to_string(remote_.boot_id) +
                                                 ", not " + std::to_string(open.from_boot_id)};
  }
  return {};
}

void Receiver::on_open(const Open& open) {
  if (const Status known = check_identity(open); !known.ok()) return refuse(open.head, known, 0, true);
  fence(open.head.slot);
  Link link;
  if (const Status connected = connect(open, link); !connected.ok()) {
    return refuse(open.head, connected.with_context("node " + context_.options.base.identity.node), 0);
  }
  Message head = open.head;
  head.type = MessageType::kOpened;
  const Opened answer{head, link.queue.path().port(), link.queue.qpn(), link.queue.psn()};
  links_[head.slot] = std::move(link);
  context_.say(peer_, bytes_of(answer));
}

Status Receiver::connect(const Open& open, Link& link) {
  if (open.path >= context_.paths.size()) {
    return {StatusCode::kOutOfRange, "no path " + std::to_string(open.path)};
  }
  Path& path = *context_.paths[open.path];
  MK_RETURN_IF_ERROR(path.state());
  auto queue = QueuePair::make(context_.options, path, nullptr, context_.psn());
  if (!queue.ok()) return queue.status();
  MK_RETURN_IF_ERROR(queue->connect({open.port, open.qpn, open.psn}));
  link = {open.head.epoch, std::move(*queue)};
  return {};
}

void Receiver::on_attach(const ChannelMessage& message) {
  const auto link = links_.find(message.head.slot);
  if (link == links_.end() || link->second.epoch != message.head.epoch)
    return;  // of a connection that is over
  Inbound* const channel = find(message.key);
  if (channel != nullptr && !channel->stopping) return attach(*channel, message.head);
  if (waiting_.size() < kMaxWaiting) waiting_[message.key] = message.head;
}

/// The sender has nothing of the channel under way, and sends nothing more before it has attached again.
void Receiver::on_over(const ChannelMessage& message) {
  Inbound* const channel = find(message.key);
  if (channel != nullptr && channel->path != nullptr && same_link(channel->link, message.head)) {
    detach(*channel, Writes::kOver);
  }
}

void Receiver::attach(Inbound& channel, const Message& link) {
  Path& path = links_.at(link.slot).queue.path();
  detach(channel, Writes::kPossible);  // on a connection that goes on: only a peer that errs attaches twice
  if (channel.word.word == nullptr) {
    if (const Status known = context_.sink->arrival_word(channel.id, channel.word); !known.ok()) {
      return refuse(link, known, channel.key);
    }
  }
  const auto rkey = path.registrations().words(channel.word.words);
  if (!rkey.ok()) return refuse(link, rkey.status(), channel.key);
  channel.path = &path;
  channel.link = link;
  Message head = link;
  head.type = MessageType::kAttached;
  const Attached answer{head,
                        channel.key,
                        count_in(channel.word),
                        reinterpret_cast<std::uintptr_t>(channel.word.word),
                        rkey.value(),
                        0};
  context_.say(peer_, bytes_of(answer));
}

void Receiver::on_resolve(const RegionMessage& message) {
  Inbound* const channel = find(message.key);
  if (channel == nullptr || channel->path == nullptr || !same_link(channel->link, message.head)) return;
  const auto granted = grant(*channel, message.region);
  if (!granted.ok()) return refuse(message.head, granted.status(), channel->key);
  if (!granted.value()) {
    asked_.push_back(message);
    return;
  }
  const memory::Region& region = *granted.value()->region;
  const auto registration = channel->path->registrations().granted(region);
  Resolved answer{message.head,   channel->key,
                  message.region, granted.value()->number,
                  region.bytes,   channel->path->registrations().chunk_bytes()};
  answer.head.type = MessageType::kResolved;
  answer.head.count = static_cast<std::uint32_t>(registration->chunks.size());
  std::vector<std::byte> bytes(sizeof(answer) + answer.head.count * sizeof(RemoteChunk));
  std::memcpy(bytes.data(), &answer, sizeof(answer));
  for (std::size_t i = 0; i < registration->chunks.size(); ++i) {
    const RemoteChunk chunk{registration->chunks[i].address, registration->chunks[i].rkey, 0};
    std::memcpy(bytes.data() + sizeof(answer) + i * sizeof(chunk), &chunk, sizeof(chunk));
  }
  context_.say(peer_, bytes);
}

/// The permission that the channel has, or a new one.
Result<std::optional<Inbound::Grant>> Receiver::grant(Inbound& channel, std::uint32_t index) {
  Target target;
  MK_RETURN_IF_ERROR(context_.sink->place(channel.id, static_cast<std::uint16_t>(index), 0, 0, target));
  for (const Inbound::Grant& known : channel.grants) {
    if (known.region == target.region && !known.revoked) return std::optional(known);
  }
  rdma::Registrations& registrations = channel.path->registrations();
  const std::uint64_t most = kMaxChunks * registrations.chunk_bytes();
  if (target.region->bytes > most) {
    return Status(StatusCode::kOutOfRange, "region " + std::to_string(index) + " of " +
                                               std::to_string(target.region->bytes) +
                                               " bytes is larger than the " + std::to_string(most) +
                                               " that a peer may write to over RDMA");
  }
  const auto registered = registrations.target(*target.region);
  if (!registered.ok()) return registered.status().with_context("region " + std::to_string(index));
  if (registered.value() == nullptr) return std::optional<Inbound::Grant>();
  channel.grants.push_back({next_grant_++, index, target.region, false});
  return std::optional(channel.grants.back());
}

void Receiver::registered() {
  // Whose connection or region has gone meanwhile is told so, as if it had asked now.
  for (const RegionMessage& message : std::exchange(asked_, {})) on_resolve(message);
}

void Receiver::on_revoked(const RegionMessage& message) {
  Inbound* const channel = find(message.key);
  if (channel == nullptr || channel->path == nullptr || !same_link(channel->link, message.head)) return;
  std::erase_if(channel->grants, [&](const Inbound::Grant& grant) {
    if (!grant.revoked || grant.number != message.grant) return false;
    channel->path->registrations().release(*grant.region);
    return true;
  });
}

// What happens here

std::size_t Receiver::poll() {
  std::size_t news = 0;
  for (Inbound* channel : channels_) {
    if (channel->word.word == nullptr) {
      if (channel->stopping) continue;
      const auto waiting = waiting_.find(channel->key);
      if (waiting == waiting_.end()) continue;
      const Message link = waiting->second;
      waiting_.erase(waiting);
      attach(*channel, link);
      ++news;
      continue;
    }
    const std::uint64_t count = count_in(channel->word);
    if (count <= channel->seen) continue;
    channel->seen = count;
    context_.sink->arrived(channel->id, count);
    ++news;
  }
  return news;
}

void Receiver::say_broken(MessageType type, std::uint32_t slot, const Link& link, const Status& why) {
  const Message head{.type = type, .slot = slot, .epoch = link.epoch};
  const Status status(StatusCode::kUnavailable,
                      "node " + context_.options.base.identity.node + ": " + why.text());
  context_.say(peer_, bytes_of(refusal(head, status)));
}

void Receiver::path_changed(const Path& path) {
  const Status why =
      path.state().ok() ? Status(StatusCode::kUnavailable, path.text() + " has changed") : path.state();
  for (const auto& [slot, link] : links_) {
    if (&link.queue.path() == &path) say_broken(MessageType::kBroken, slot, link, why);
  }
}

void Receiver::queue_broken(const Path::News::BrokenQueue& broken) {
  const Status why(StatusCode::kUnavailable, broken.write_refused
                                                 ? "the device refused a write to memory that was taken back"
                                                 : "the device reported an error of the queue pair");
  const MessageType type = broken.write_refused ? MessageType::kWriteRefused : MessageType::kBroken;
  for (const auto& [slot, link] : links_) {
    if (link.queue.qpn() == broken.qpn) say_broken(type, slot, link, why);
  }
}

void Receiver::retire(const memory::Region& region) {
  for (Inbound* channel : channels_) {
    for (Inbound::Grant& grant : channel->grants) {
      if (grant.region != &region || std::exchange(grant.revoked, true)) continue;
      Message head = channel->link;
      head.type = MessageType::kRevoke;
      const RegionMessage stop{head, channel->key, grant.index, grant.number};
      context_.say(peer_, bytes_of(stop));
    }
  }
}

bool Receiver::holds(const memory::Region& region) const {
  return std::any_of(channels_.begin(), channels_.end(), [&](const Inbound* channel) {
    return std::any_of(channel->grants.begin(), channel->grants.end(),
                       [&](const Inbound::Grant& grant) { return grant.region == &region; });
  });
}

}  // namespace mkernel::transport::verbs
