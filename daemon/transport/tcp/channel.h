// The two kinds of channel end as the TCP transport keeps them. Plain data; the queues they wait in are
// intrusive.
#pragma once

#include <cstdint>

#include "daemon/transport/tcp/fifo.h"
#include "daemon/transport/transport.h"
#include "daemon/transport/window/receive_window.h"
#include "daemon/transport/window/send_window.h"
#include "proto/abi/status.h"

namespace mkernel::transport::tcp {

class Link;
class Peer;

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

  Hook<Outbound> round;      ///< StreamWriter: has puts to send
  Hook<Outbound> asking;     ///< StreamWriter: Open is to be sent
  Hook<Outbound> completed;  ///< Events: completed count grew
};

struct Inbound {
  Inbound(ChannelId id_, ChannelKey key_, Peer& peer_, std::uint32_t window_)
      : id(id_), key(key_), peer(peer_), window(window_) {}

  const ChannelId id;
  const ChannelKey key;
  Peer& peer;
  ReceiveWindow window;
  Status refusal;  ///< not OK once a put was refused: nothing of this channel is accepted any more

  Hook<Inbound> answering;  ///< StreamWriter: Held or Refused is to be sent
  Hook<Inbound> arrived;    ///< Events: arrival count grew
};

}  // namespace mkernel::transport::tcp
