// The two kinds of channel end as the TCP transport keeps them. Plain data; the queues they wait in are
// intrusive.
#pragma once

#include <cstdint>

#include "daemon/transport/tcp/fifo.h"
#include "daemon/transport/tcp/wire.h"
#include "daemon/transport/transport.h"
#include "daemon/transport/window/receive_window.h"
#include "daemon/transport/window/send_window.h"
#include "proto/abi/status.h"

namespace mkernel::transport::tcp {

class Link;
class Peer;

/// What is sent before the payload of a put.
inline PutFrame put_frame(ChannelKey key, const Put& put) {
  return {FrameType::kPut,   0, to_wire(put.sequence), put.length, key, put.remote_offset,
          put.remote_region, {}};
}

struct Outbound {
  Outbound(ChannelId id_, ChannelKey key_, Peer& peer_, std::uint32_t window_)
      : id(id_), key(key_), peer(peer_), window(window_) {}

  const ChannelId id;
  const ChannelKey key;
  Peer& peer;
  SendWindow window;
  bool granted = false;             ///< the receiver has said on this connection what it holds
  bool failed = false;              ///< reported; puts of it are taken and forgotten
  std::uint64_t zero_copy_end = 0;  ///< zero-copy sends of the connection up to the last one of this channel

  std::uint32_t loading_puts = 0;  ///< Loader: puts of it there, not all given to the writer

  Hook<Outbound> round;       ///< StreamWriter: has puts to send
  Hook<Outbound> load_round;  ///< Loader: has puts to load
  Hook<Outbound> asking;      ///< StreamWriter: Open is to be sent
  Hook<Outbound> completed;   ///< Events: completed count grew
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
  Status refusal;  ///< not OK once a put was refused: nothing of this channel is accepted any more

  Hook<Inbound> answering;  ///< StreamWriter: Held or Refused is to be sent
  Hook<Inbound> arrived;    ///< Events: arrival count grew
};

}  // namespace mkernel::transport::tcp
