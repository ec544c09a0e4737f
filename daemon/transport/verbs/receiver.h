// All that this node receives from one peer: the queue pairs that take its writes, the channels it writes to,
// and which memory it may write.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "daemon/transport/verbs/context.h"
#include "daemon/transport/verbs/queue_pair.h"

namespace mkernel::transport::verbs {

/// The receiving end of a channel. What it has registered, it has on `path`.
struct Inbound {
  Inbound(ChannelId id_, ChannelKey key_) : id(id_), key(key_) {}

  const ChannelId id;
  const ChannelKey key;
  ArrivalWord word;       ///< from the first attachment on
  Path* path = nullptr;   ///< null: not attached
  Message connection;     ///< (slot, epoch) that it is attached to
  bool stopping = false;  ///< about to be closed: the sender was asked to stop, and attaches no more
  std::vector<Grant> grants;
};

/// Proxy thread.
class Receiver {
 public:
  Receiver(Context& context, PeerId peer, const Identity& remote);
  ~Receiver() { close(); }

  Result<Inbound*> add(ChannelId channel, ChannelKey key);
  /// Takes back all that the peer may write to for this channel, at once. A put of it that is under way then
  /// breaks its connection, which the sender opens again for the others.
  void remove(Inbound& channel);
  /// Asks the sender to send no more of it.
  void quiesce(Inbound& channel);

  /// A checked message of the sender's. Returns why the peer is lost, or OK.
  Status receive(std::span<const std::byte> bytes);
  /// Attaches channels for which the sender asked before they were opened here. Returns how many.
  std::size_t poll();
  void path_changed(const Path& path);
  void queue_broken(const Path::News::BrokenQueue& broken);

  void retire(const memory::Region& region);
  bool holds(const memory::Region& region) const;
  /// Something that was being registered is there, or has failed.
  void registered();
  /// Forgets the channels too: no word of theirs is read any more.
  void close();

 private:
  /// The receiving end of one.
  struct Connection {
    std::uint32_t epoch = 0;
    QueuePair queue;
  };

  Inbound* find(ChannelKey key) const { return rdma::find_in(channels_, key); }
  void on_open(const Open& open);
  Status connect(const Open& open, Connection& connection);
  void on_attach(const ChannelMessage& attach);
  void on_over(const ChannelMessage& over);
  void on_resolve(const RegionMessage& resolve);
  void on_revoked(const RegionMessage& revoked);
  void attach(Inbound& channel, const Message& connection);
  /// None: the region is being registered.
  Result<std::optional<Grant>> grant(Inbound& channel, std::uint32_t index);
  enum class Writes { kOver, kPossible };
  void detach(Inbound& channel, Writes writes);
  void fence(std::uint32_t slot);
  void say_stop(const Inbound& channel);
  void say_broken(MessageType type, std::uint32_t slot, const Connection& connection, const Status& why);
  void refuse(const Message& head, const Status& why, ChannelKey key, bool final = false);

  Context& context_;
  const PeerId peer_;
  const Identity remote_;
  std::uint32_t next_grant_ = 1;
  std::map<std::uint32_t, Connection> connections_;  ///< by the sender's slot
  std::unordered_map<ChannelKey, std::unique_ptr<Inbound>> channels_;
  std::vector<ChannelKey> opened_;                   ///< since the last poll, and waited for
  std::vector<RegionMessage> asked_;                 ///< what is answered when a registration is there
  std::unordered_map<ChannelKey, Message> waiting_;  ///< attachments to channels that are not open here yet
};

}  // namespace mkernel::transport::verbs
