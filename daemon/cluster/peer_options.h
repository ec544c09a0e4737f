// What the peer links of a node are configured with.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "daemon/cluster/peer.h"
#include "daemon/cluster/peer_clock.h"

namespace mkernel::cluster {

struct PeerLinksOptions {
  std::string node;
  std::uint64_t boot_id = 0;
  std::string software_version;
  std::string listen = "127.0.0.1:0";
  std::string advertise;           ///< host:port that peers dial; `listen` with its real port when empty
  std::vector<std::string> peers;  ///< host:port of each; this node itself may be among them
  std::string dns;                 ///< name:port, every address of it is a peer; empty: none
  std::chrono::seconds dns_refresh{10};
  bool open = false;  ///< daemons that are not configured may come in, without certificates too
  std::string
      shared_name;  ///< in every node's certificate, so that it proves nobody's name; empty: there is none
  bool certified = false;  ///< the wire asks every peer for a certificate of the authority (TLS)
  double time_scale = 1;   ///< multiplies the times: keepalive 1 s, warn 5 s, error 20 s, dead 60 s
  std::string transport;   ///< kind of the data plane; all nodes have the same
  std::vector<std::string> endpoints;  ///< of the data plane, by rail
  std::uint32_t rail_version = 0;      ///< of the transport's messages; all nodes have the same
  std::function<std::int64_t()> wall_clock = wall_time;  ///< what peers are told

  /// Who is not configured may come in: a certificate vouches for it, or nobody has to.
  bool admits_all() const { return open || certified; }

  /// gRPC needs some time to connect on a busy machine, however small the scale.
  std::chrono::milliseconds least_patience{2000};

  /// How long a stream that was dialled may take to begin.
  std::chrono::milliseconds patience() const { return std::max(PeerTimes(time_scale).error, least_patience); }
  /// The same after it has taken too long several times. Where a flood fills the queue of a port, each stream
  /// waits behind it; to give one up and dial again is then to begin at the end of the queue.
  std::chrono::milliseconds longest_patience() const { return std::max(patience(), 8 * least_patience); }
};

}  // namespace mkernel::cluster
