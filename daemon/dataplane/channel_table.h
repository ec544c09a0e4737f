// What one proxy knows about sessions, groups, channels and regions. Owned by the proxy thread alone: no
// lock, no atomics, plain pointers between entries. Memory is only allocated when the control path adds
// something.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "daemon/base/growing_array.h"
#include "daemon/dataplane/ports.h"
#include "daemon/transport/transport.h"

namespace mkernel::dataplane {

struct Group;
struct Session;

inline constexpr transport::ChannelId kNoChannel = ~transport::ChannelId{0};

/// The sending end of one channel: this rank -> `target`.
struct Outbound {
  Group* group = nullptr;
  std::uint32_t target = 0;
  std::uint32_t lane = 0;
  transport::ChannelId id = kNoChannel;  ///< the transport's; none for ranks on this node
  std::uint32_t max_put_bytes = 0;
  bool mine = false;       ///< this proxy serves the lane
  bool local = false;      ///< the proxy copies: the target lives on this node, or is gone, wherever it was
  bool host_only = false;  ///< the source must be host memory
  std::uint64_t submitted = 0;
  std::uint64_t completed = 0;
  std::uint64_t* completed_word = nullptr;      ///< in the sender's group segment
  Counters* counters = nullptr;                 ///< of the channel
  std::span<const std::uint64_t> remote_bytes;  ///< by region index, as the target registered them
};

/// The receiving end of one channel that a transport feeds: `source` -> this rank.
struct Inbound {
  std::uint32_t source = 0;
  std::uint32_t lane = 0;
  std::uint64_t arrived = 0;
};

/// A transport channel id points at one of the two.
struct ChannelEnd {
  Group* group = nullptr;  ///< null: the id is free
  Outbound* outbound = nullptr;
  Inbound inbound;
};

/// A joined group as one rank of this node sees it.
struct Group {
  std::shared_ptr<GroupPort> port;
  std::uint64_t serial = 0;  ///< unique on this proxy: a key may come again, with another group
  Session* session = nullptr;
  std::vector<Outbound> outbound;  ///< [target * lanes + lane]
  std::vector<Group*> neighbours;  ///< by rank, of this node, found at the first put
  std::vector<bool> gone;  ///< by rank: it has left or is lost; what happens to its channels is no failure
  std::vector<std::pair<transport::PeerId, std::uint32_t>> peers;  ///< each once, sorted, with its first rank
  std::vector<transport::ChannelId> open_channels;                 ///< to close with the group
  std::vector<std::shared_ptr<const memory::Region>> regions;      ///< by index; null = nothing registered
  std::vector<std::shared_ptr<const memory::Region>> retired;      ///< unregistered, perhaps still in use
  /// [rank * region_capacity + index], 0 = none. Megabytes in a large group, of which few are used: pages
  /// come when they are written to.
  base::GrowingArray<std::uint64_t> remote_bytes;
  std::uint64_t* arrival_words = nullptr;    ///< [source * lanes + lane]
  std::uint64_t* completed_words = nullptr;  ///< [target * lanes + lane]
  std::uint64_t in_flight = 0;               ///< puts taken from the ring, not completed
  bool failed = false;                       ///< its puts are consumed and dropped

  std::size_t channel_count() const { return std::size_t{port->world_size} * port->lanes; }
  std::size_t channel_index(std::uint32_t rank, std::uint32_t lane) const {
    return std::size_t{rank} * port->lanes + lane;
  }
  std::uint64_t& remote_bytes_of(std::uint32_t rank, std::uint32_t index) {
    return remote_bytes[std::size_t{rank} * port->region_capacity + index];
  }
};

/// Dense ids for transport channels, reused only after release().
class ChannelEnds {
 public:
  transport::ChannelId acquire(const ChannelEnd& end);
  void release(transport::ChannelId id);
  /// Null when the id is not open: a transport that reports a closed channel is ignored.
  ChannelEnd* find(transport::ChannelId id) {
    return id < ends_.size() && ends_[id].group != nullptr ? &ends_[id] : nullptr;
  }

 private:
  base::GrowingArray<ChannelEnd> ends_;
  std::vector<transport::ChannelId> free_;
};

/// What the tables need to know about the proxy and its transport.
struct RailTraits {
  std::uint32_t index = 0;
  std::uint32_t count = 1;
  std::uint32_t max_put_bytes = 0;
  bool gpu_memory = false;
};

/// Makes room for a group's tables as its port describes it. The segment's layout is computed anew from the
/// port, never read back from memory that the client can write. Errors: kInternal when the port contradicts
/// itself.
Status begin_group(Group& group);

/// Adds the next channel to `outbound`, until it has channel_count() of them: every channel of the group,
/// those of other rails marked as not mine.
void add_channel(Group& group, const RailTraits& rail);

/// begin_group() and all channels. A large group is built in slices instead.
Status build_group(Group& group, const RailTraits& rail);

/// "rank 1 -> rank 2 of group g" for texts.
std::string route_text(const Outbound& channel);

/// Adds to a counter that only this thread writes: no locked instruction.
inline void bump(std::atomic<std::uint64_t>& counter, std::uint64_t more) {
  counter.store(counter.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
}

/// Publishes a count to the client.
inline void publish_count(std::uint64_t& word, std::uint64_t count) {
  std::atomic_ref<std::uint64_t>(word).store(count, std::memory_order_release);
}

}  // namespace mkernel::dataplane
