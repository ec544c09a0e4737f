#include "daemon/transport/verbs/receiver.h"

#include <algorithm>
#include <string>
#include <utility>

namespace mkernel::transport::verbs {
namespace {

using rdma::with_type;

constexpr std::uint32_t kMaxSlots = 256;
constexpr std::size_t kMaxWaiting = 1U << 20;

bool same_connection(const Message& one, const Message& other) {
  return one.slot == other.slot && one.epoch == other.epoch;
}

}  // namespace

Receiver::Receiver(Context& context, PeerId peer, const Identity& remote)
    : context_(context), peer_(peer), remote_(remote) {}

void Receiver::close() {
  connections_.clear();
  for (auto& [key, channel] : channels_) {
    detach(*channel, Writes::kOver);
    context_.arrivals.remove(channel->id);
  }
  channels_.clear();
  asked_.clear();
  waiting_.clear();
}

void Receiver::refuse(const Message& head, const Status& why, ChannelKey key, bool final) {
  const MessageType type = key != 0 ? MessageType::kRefused : MessageType::kNotOpened;
  context_.say(peer_, refusal(with_type(head, type), why, key, final));
}

// Channels

Result<Inbound*> Receiver::add(ChannelId channel, ChannelKey key) {
  auto& entry = channels_[key];
  if (entry != nullptr) {
    return Status(StatusCode::kAlreadyExists,
                  "inbound channel key " + std::to_string(key) + " is open already");
  }
  entry = std::make_unique<Inbound>(channel, key);
  if (waiting_.contains(key)) opened_.push_back(key);
  return entry.get();
}

void Receiver::remove(Inbound& channel) {
  // What is under way is refused from here on; the sender need not send more of it and break its connection
  // by that.
  if (channel.path != nullptr && !channel.stopping) say_stop(channel);
  detach(channel, Writes::kPossible);
  context_.arrivals.remove(channel.id);
  channels_.erase(channel.key);
}

void Receiver::quiesce(Inbound& channel) {
  if (std::exchange(channel.stopping, true) || channel.path == nullptr) return;
  say_stop(channel);
}

void Receiver::say_stop(const Inbound& channel) {
  context_.say(peer_, ChannelMessage{with_type(channel.connection, MessageType::kStop), channel.key});
}

/// The sender must attach again before it can write anything of the channel. Where writes of its are possible
/// still, it is the keys that stop them, and they go before this returns.
void Receiver::detach(Inbound& channel, Writes writes) {
  if (channel.path == nullptr) return;
  rdma::Registrations& registrations = channel.path->registrations();
  for (const Grant& grant : channel.grants) {
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
  if (head.slot >= kMaxSlots)
    return {StatusCode::kInvalidArgument, "connection " + std::to_string(head.slot)};
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
  connections_.erase(slot);
  for (auto& [key, channel] : channels_) {
    if (channel->path != nullptr && channel->connection.slot == slot) detach(*channel, Writes::kOver);
  }
  std::erase_if(waiting_, [&](const auto& entry) { return entry.second.slot == slot; });
}

void Receiver::on_open(const Open& open) {
  const Status known =
      rdma::check_lives(context_.options.base.identity, remote_, open.to_boot_id, open.from_boot_id);
  if (!known.ok()) return refuse(open.head, known, 0, true);
  fence(open.head.slot);
  Connection connection;
  if (const Status connected = connect(open, connection); !connected.ok()) {
    return refuse(open.head, connected.with_context("node " + context_.options.base.identity.node), 0);
  }
  const QueuePair& queue = connection.queue;
  context_.say(peer_, Opened{with_type(open.head, MessageType::kOpened), queue.path().port(), queue.qpn(),
                             queue.psn()});
  connections_[open.head.slot] = std::move(connection);
}

Status Receiver::connect(const Open& open, Connection& connection) {
  if (open.path >= context_.paths.size()) {
    return {StatusCode::kOutOfRange, "no path " + std::to_string(open.path)};
  }
  Path& path = *context_.paths[open.path];
  MK_RETURN_IF_ERROR(path.state());
  auto queue = QueuePair::make(context_.options, path, nullptr, context_.psn());
  if (!queue.ok()) return queue.status();
  MK_RETURN_IF_ERROR(queue->connect({open.port, open.qpn, open.psn}));
  connection = {open.head.epoch, std::move(*queue)};
  return {};
}

void Receiver::on_attach(const ChannelMessage& message) {
  const auto connection = connections_.find(message.head.slot);
  if (connection == connections_.end() || connection->second.epoch != message.head.epoch)
    return;  // of a connection that is over
  Inbound* const channel = find(message.key);
  if (channel != nullptr && !channel->stopping) return attach(*channel, message.head);
  if (waiting_.size() < kMaxWaiting) waiting_[message.key] = message.head;
}

/// The sender has nothing of the channel under way, and sends nothing more before it has attached again.
void Receiver::on_over(const ChannelMessage& message) {
  Inbound* const channel = find(message.key);
  if (channel != nullptr && channel->path != nullptr && same_connection(channel->connection, message.head)) {
    detach(*channel, Writes::kOver);
  }
}

void Receiver::attach(Inbound& channel, const Message& connection) {
  Path& path = connections_.at(connection.slot).queue.path();
  detach(channel, Writes::kPossible);  // on a connection that goes on: only a peer that errs attaches twice
  if (channel.word.word == nullptr) {
    if (const Status known = context_.sink->arrival_word(channel.id, channel.word); !known.ok()) {
      return refuse(connection, known, channel.key);
    }
    context_.arrivals.add(channel.id, channel.word.word);
  }
  const auto rkey = path.registrations().words(channel.word.words);
  if (!rkey.ok()) return refuse(connection, rkey.status(), channel.key);
  channel.path = &path;
  channel.connection = connection;
  std::uint64_t* const word = channel.word.word;
  context_.say(peer_, Held{with_type(connection, MessageType::kHeld), channel.key, arrival_count(word),
                           reinterpret_cast<std::uintptr_t>(word), rkey.value(), 0});
}

void Receiver::on_resolve(const RegionMessage& message) {
  Inbound* const channel = find(message.key);
  if (channel == nullptr || channel->path == nullptr || !same_connection(channel->connection, message.head))
    return;
  const auto granted = grant(*channel, message.region);
  if (!granted.ok()) return refuse(message.head, granted.status(), channel->key);
  if (!granted.value()) {
    asked_.push_back(message);
    return;
  }
  const memory::Region& region = *granted.value()->region;
  const auto registration = channel->path->registrations().granted(region);
  const Resolved answer{with_type(message.head, MessageType::kResolved),
                        channel->key,
                        message.region,
                        granted.value()->number,
                        region.bytes,
                        channel->path->registrations().chunk_bytes()};
  std::vector<RemoteChunk> chunks;
  for (const rdma::Chunk& chunk : registration->chunks) chunks.push_back({chunk.address, chunk.rkey, 0});
  context_.say(peer_, rdma::resolved_with(answer, chunks));
}

/// The permission that the channel has, or a new one.
Result<std::optional<Grant>> Receiver::grant(Inbound& channel, std::uint32_t index) {
  Target target;
  MK_RETURN_IF_ERROR(context_.sink->place(channel.id, static_cast<std::uint16_t>(index), 0, 0, target));
  for (const Grant& known : channel.grants) {
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
  if (registered.value() == nullptr) return std::optional<Grant>();
  channel.grants.push_back({next_grant_++, index, target.region, false});
  return std::optional(channel.grants.back());
}

void Receiver::registered() {
  // Whose connection or region has gone meanwhile is told so, as if it had asked now.
  for (const RegionMessage& message : std::exchange(asked_, {})) on_resolve(message);
}

void Receiver::on_revoked(const RegionMessage& message) {
  Inbound* const channel = find(message.key);
  if (channel == nullptr || channel->path == nullptr || !same_connection(channel->connection, message.head))
    return;
  std::erase_if(channel->grants, [&](const Grant& grant) {
    if (!grant.revoked || grant.number != message.grant) return false;
    channel->path->registrations().release(*grant.region);
    return true;
  });
}

// What happens here

std::size_t Receiver::poll() {
  std::size_t attached = 0;
  for (const ChannelKey key : std::exchange(opened_, {})) {
    Inbound* const channel = find(key);
    const auto waiting = waiting_.find(key);
    if (channel == nullptr || channel->stopping || waiting == waiting_.end()) continue;
    const Message connection = waiting->second;
    waiting_.erase(waiting);
    attach(*channel, connection);
    ++attached;
  }
  return attached;
}

void Receiver::say_broken(MessageType type, std::uint32_t slot, const Connection& connection,
                          const Status& why) {
  const Message head{.type = type, .slot = slot, .epoch = connection.epoch};
  const Status status(StatusCode::kUnavailable,
                      "node " + context_.options.base.identity.node + ": " + why.text());
  context_.say(peer_, refusal(head, status));
}

void Receiver::path_changed(const Path& path) {
  const Status why =
      path.state().ok() ? Status(StatusCode::kUnavailable, path.text() + " has changed") : path.state();
  for (const auto& [slot, connection] : connections_) {
    if (&connection.queue.path() == &path) say_broken(MessageType::kBroken, slot, connection, why);
  }
}

void Receiver::queue_broken(const Path::News::BrokenQueue& broken) {
  const Status why(StatusCode::kUnavailable, broken.write_refused
                                                 ? "the device refused a write to memory that was taken back"
                                                 : "the device reported an error of the queue pair");
  const MessageType type = broken.write_refused ? MessageType::kWriteRefused : MessageType::kBroken;
  for (const auto& [slot, connection] : connections_) {
    if (connection.queue.qpn() == broken.qpn) say_broken(type, slot, connection, why);
  }
}

void Receiver::retire(const memory::Region& region) {
  for (auto& [key, channel] : channels_) {
    for (Grant& grant : channel->grants) {
      if (grant.region != &region || std::exchange(grant.revoked, true)) continue;
      const Message head = with_type(channel->connection, MessageType::kRevoke);
      context_.say(peer_, RegionMessage{head, key, grant.index, grant.number});
    }
  }
}

bool Receiver::holds(const memory::Region& region) const {
  return std::any_of(channels_.begin(), channels_.end(), [&](const auto& entry) {
    const Inbound* const channel = entry.second.get();
    return std::any_of(channel->grants.begin(), channel->grants.end(),
                       [&](const Grant& grant) { return grant.region == &region; });
  });
}

}  // namespace mkernel::transport::verbs
