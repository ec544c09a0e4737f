// The two kinds of channel end as the TCP transport keeps them. Plain data; the queues they wait in are
// intrusive.
#pragma once

#include <cstdint>

#include "daemon/transport/tcp/fifo.h"
#include "daemon/transport/tcp/message.h"
#include "daemon/transport/transport.h"
#include "daemon/transport/window/receive_window.h"
#include "daemon/transport/window/send_window.h"
#include "proto/abi/status.h"

namespace mkernel::transport::tcp {

class Link;
class Peer;

struct Outbound {
  Outbound(ChannelId id_, ChannelKey key_, Peer& peer_, std::uint32_t window_, std::shared_ptr<PeerLoad> load)
      : id(id_), key(key_), peer(peer_), window(window_, std::move(load)) {}

  const ChannelId id;
  const ChannelKey key;
  Peer& peer;
  SendWindow window;
  bool granted = false;             ///< the receiver has said on this connection what it holds
  bool failed = false;              ///< reported; puts of it are taken and forgotten
  std::uint32_t framed = 0;         ///< bytes of window.unsent() that the connection has been given
  std::uint64_t zero_copy_end = 0;  ///< zero-copy sends of the connection up to the last one of this channel

  std::uint32_t loading = 0;  ///< Loader: pieces of it there that were not given to the writer

  Hook<Outbound> round;       ///< StreamWriter: has puts to send
  Hook<Outbound> load_round;  ///< Loader: has puts to load
  Hook<Outbound> asking;      ///< StreamWriter: Open is to be sent
  Hook<Outbound> completed;   ///< Events: completed count grew
};

/// Gives the connection `bytes` more of the channel's next put, which is not null: what is sent before them.
inline PutFrame next_frame(Outbound& channel, std::uint32_t bytes) {
  const Put& put = *channel.window.unsent();
  const std::uint32_t rest = put.length - channel.framed - bytes;
  const PutFrame frame{.type = FrameType::kPut,
                       .continues = static_cast<std::uint8_t>(channel.framed > 0 ? 1 : 0),
                       .sequence = to_wire(put.sequence),
                       .length = bytes,
                       .key = channel.key,
                       .offset = put.remote_offset,
                       .region = put.remote_region,
                       .reserved = 0,
                       .rest = rest};
  channel.framed = rest > 0 ? channel.framed + bytes : 0;
  if (rest == 0) channel.window.mark_sent();
  return frame;
}

/// A put of which not all frames have come.
struct Partial {
  std::uint64_t number = 0;  ///< 0: none
  std::uint32_t rest = 0;    ///< bytes that are to come
  Target target;             ///< where they go
};

struct Inbound {
  Inbound(ChannelId id_, ChannelKey key_, Peer& peer_, std::uint32_t window_)
      : id(id_), key(key_), peer(peer_), window(window_) {}

  const ChannelId id;
  const ChannelKey key;
  Peer& peer;
  ReceiveWindow window;
  /// Number of the last put that came on this connection, 0 before it: ahead of the window while copies into
  /// GPU memory are under way.
  std::uint64_t received = 0;
  Partial partial;
  Status refusal;  ///< not OK once a put was refused: nothing of this channel is accepted any more

  Hook<Inbound> answering;  ///< StreamWriter: Held or Refused is to be sent
  Hook<Inbound> arrived;    ///< Events: arrival count grew
};

}  // namespace mkernel::transport::tcp
