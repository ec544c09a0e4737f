// What mkctl talks to: gRPC over a Unix socket, answered from snapshots taken on the control thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/base/slice_meter.h"
#include "daemon/cluster/peer_snapshot.h"
#include "daemon/rpc/control_listener.h"
#include "daemon/session/inspect.h"
#include "daemon/topology/machine.h"
#include "daemon/topology/rdma_device.h"
#include "daemon/transport/transport.h"
#include "proto/abi/status.h"

namespace mkernel::rpc {

/// What changes of an emulated link; the rest stays as it is.
struct LinkChange {
  std::optional<double> bandwidth_gbytes;
  std::optional<std::chrono::microseconds> latency;
  std::optional<double> drop, duplicate, reorder;
  std::optional<bool> down;
  std::optional<std::uint32_t> rail;  ///< `down` concerns the wire of this rail alone
};

struct DaemonSnapshot {
  std::string node;
  std::int64_t pid = 0;
  std::uint64_t boot_id = 0;
  double uptime_seconds = 0;
  std::vector<std::string> transports;
  std::uint32_t proxies = 0;
  std::vector<v1::NicPort> ports;     ///< of its rails, as peers are told
  std::vector<std::string> problems;  ///< why the daemon is not healthy; empty: it is
  /// Of the control thread and of every proxy thread, by the thread's name.
  std::vector<std::pair<std::string, base::SliceTimes>> slices;
  std::uint64_t log_lines_left_out_total = 0;  ///< because one user, or all of them, caused too many
  std::uint64_t log_lines_dropped_total = 0;   ///< because the reader was too slow, or gone
};

struct ReloadSnapshot {
  std::vector<std::string> applied;
  std::vector<std::string> needs_restart;
  std::vector<std::string> notes;  ///< what else is to be known, such as peers that stay
};

/// What the service shows and does. Implemented by the app; control thread only, unless it says otherwise.
class ControlBackend {
 public:
  virtual ~ControlBackend() = default;
  virtual const session::Inspector& inspector() const = 0;
  /// Adds what the sessions moved lately, and since when they are idle.
  virtual void add_rates(std::vector<session::SessionSnapshot>& sessions) const = 0;
  virtual DaemonSnapshot daemon() const = 0;
  virtual std::vector<cluster::PeerSnapshot> peers() const = 0;
  virtual std::string config_text() const = 0;
  /// RDMA devices of the node as they are now. Any thread: it reads hundreds of files.
  virtual std::vector<topology::RdmaDevice> devices() const = 0;
  /// What lies below the devices. Any thread: it takes tens of milliseconds.
  virtual Result<topology::Machine> machine() const = 0;
  /// topology.nics: the ports that may be rails, empty for all.
  virtual std::vector<std::string> chosen_ports() const = 0;
  /// Shapes the link to the peer of that node name on every rail; `done` with the whole shape, later, on any
  /// thread.
  virtual void set_link(const std::string& peer, const LinkChange& change,
                        std::function<void(Result<transport::LinkShape>)> done) = 0;
  /// Reads the configuration file again; `done` comes on the control thread, perhaps later.
  using ReloadDone = std::function<void(Result<ReloadSnapshot>)>;
  virtual void reload(ReloadDone done) = 0;
  /// False where NICs write into place: only what ranks of this node send each other is counted in bytes.
  virtual bool counts_arrived_bytes() const = 0;
};

/// Serves from construction to destruction. A request that the control thread does not answer within 5 s gets
/// DEADLINE_EXCEEDED, so a stuck daemon is an error and not a hang.
class ControlService {
 public:
  /// Listens on the Unix socket `path` (a stale one is removed), mode 0660. `io` runs the control thread;
  /// `backend` must outlive the service. Errors: those of ControlListener.
  static Result<std::unique_ptr<ControlService>> start(boost::asio::io_context& io, ControlBackend& backend,
                                                       const std::string& path);
  ~ControlService();  ///< stops serving, removes the socket

  /// The socket's file.
  base::SocketFile file() const;
  /// Listens on this socket instead, after the file has been lost. Requests go on.
  Status listen_again(ControlListener::Bound bound);

 private:
  class Impl;
  explicit ControlService(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace mkernel::rpc
