// What all parts of one EFA transport share, and the two ends of a channel.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "daemon/transport/efa/device.h"
#include "daemon/transport/rdma/context.h"
#include "daemon/transport/rdma/registrations.h"
#include "daemon/transport/window/receive_window.h"
#include "daemon/transport/window/send_window.h"

namespace mkernel::transport::efa {

using rdma::Clock;
using rdma::kNever;
using rdma::Route;
using rdma::Time;

using rdma::Grant;

struct Context : rdma::Context<EfaOptions, Device> {
  /// With a device that completes nothing: half of what a peer has, so that another route gets its chance.
  std::chrono::milliseconds patience() const { return options.base.peer_timeout / 2; }
};

/// Registrations of one channel, with the device of its connection; empty until something is registered, and
/// again when the connection is over. Not shared with other channels: what a channel may touch ends with it,
/// at once and without a word to the other end, because the device then refuses what is still under way.
using ChannelMemory = std::optional<rdma::Registrations>;

/// Every region is one chunk: it has one key.
inline constexpr std::uint64_t kWhole = std::uint64_t{1} << 46;

/// `pd`: of the peer, on the device.
inline rdma::Registrations& memory_on(const Device& device, const std::shared_ptr<ibv_pd>& pd,
                                      rdma::Registrar* registrar, ChannelMemory& memory) {
  if (!memory) memory.emplace(rdma::Domain{&device.verbs(), pd, device.name(), kWhole, registrar});
  return *memory;
}

/// Where the puts of a channel go, over this connection.
struct RemoteRegion {
  std::uint32_t region = 0;
  std::uint32_t grant = 0;
  bool known = false;  ///< false: asked for
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint32_t rkey = 0;
};

struct Outbound {
  Outbound(const Context& context, ChannelId id_, ChannelKey key_, std::shared_ptr<PeerLoad> load)
      : id(id_), key(key_), window(context.options.window, std::move(load)), done(context.options.window) {}

  const ChannelId id;
  const ChannelKey key;
  std::uint32_t serial =
      0;  ///< names it in completions, never used again: another for each number it is given
  SendWindow window;
  ReceiveWindow done;  ///< requests that have completed: they do so in any order
  std::uint64_t reported = 0;
  ChannelMemory memory;
  rdma::LastSource last_source;
  std::vector<const memory::Region*> sources;  ///< that its puts have read from, over whichever connection
  std::vector<RemoteRegion> targets;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> revoked;  ///< (region, grant) to confirm
  std::optional<std::uint32_t> index;                            ///< in this epoch; none: not attached
  std::uint32_t flying = 0;                                      ///< requests posted and not completed
  std::uint64_t outstanding = 0;  ///< puts sent with this number and not acknowledged
  bool source_pending = false;    ///< its next put waits for its source to be registered
  bool accused = false;  ///< a put was refused by the peer's device: is the channel still open there?
  bool failed = false;
};

struct Inbound {
  Inbound(const Context& context, ChannelId id_, ChannelKey key_)
      : id(id_), key(key_), window(context.options.window) {}

  const ChannelId id;
  const ChannelKey key;
  ReceiveWindow window;
  ChannelMemory memory;
  std::vector<Grant> grants;
  std::optional<std::uint32_t> index;  ///< in this epoch
  std::uint32_t serial = 0;            ///< of the sender's Attach that the index was given for
  std::uint64_t published = 0;
  std::uint64_t acknowledged = 0;  ///< what the last acknowledgement said
  /// One at a time: they would overtake each other, and a late one could be taken for one of a later lap.
  bool acknowledging = false;
};

}  // namespace mkernel::transport::efa
