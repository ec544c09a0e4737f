// The data plane of one daemon: for every rail a proxy thread and its transport, made from the configuration.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "daemon/app/rail_places.h"
#include "daemon/cluster/peer_bus.h"
#include "daemon/config/config.h"
#include "daemon/dataplane/proxy.h"
#include "proto/abi/status.h"

namespace mkernel::app {

/// Control thread only.
class Rails {
 public:
  /// Opens every transport (ports are bound, nobody is dialled); no thread runs yet. `sink` outlives the
  /// rails, and so does `sleep_watch`. Errors: those of the transports, with the rail named.
  static Result<std::unique_ptr<Rails>> create(const config::Config& config, std::uint64_t boot_id,
                                               dataplane::ControlSink& sink, memory::SleepWatch& sleep_watch);

  void start();
  /// All rails side by side; returns when every thread has ended.
  void stop(std::chrono::milliseconds limit);

  /// By rail; valid as long as the rails.
  std::vector<dataplane::Proxy*> proxies() const;
  /// What peers need to reach each rail.
  std::vector<std::string> endpoints() const;
  /// Of the messages that the transports of two nodes exchange; all rails are of one kind.
  std::uint32_t message_version() const { return message_version_; }
  const RailPlaces& places() const { return places_; }

  /// OK when the peer has as many rails as this node, and each was told to connect.
  Status connect_peer(const cluster::PeerInfo& peer);
  void disconnect_peer(transport::PeerId peer);
  /// Hands a message on to the transport of `rail`; kInvalidArgument when there is no such rail.
  Status receive_from_peer(std::uint32_t rail, transport::PeerId peer, const std::string& message);
  /// `done` once, on a proxy thread, with the first error of any rail.
  void set_link(transport::PeerId peer, const transport::LinkShape& shape, std::function<void(Status)> done);

 private:
  std::vector<std::unique_ptr<dataplane::Proxy>> proxies_;
  RailPlaces places_;
  std::uint32_t message_version_ = 0;
};

/// The shape that the configuration gives every emulated link.
transport::LinkShape link_shape(const config::Emulated& emulated);

}  // namespace mkernel::app
