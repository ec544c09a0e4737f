// The whole daemon, composed. Start order, each step ready before the next one needs it:
//
//   1 transports and proxies    ports bound, no thread runs
//   2 group directory, sessions the objects know each other, nobody comes in
//   3 proxy threads
//   4 peer links                other nodes may come in
//   5 control service           mkctl may come in
//   6 session socket            jobs may come in
//   7 systemd is told           READY=1
//
// Stop is the reverse: jobs are drained and told (6), then mkctl (5), peers (4) and the proxies (3) go, then
// the objects. Everything runs on one control thread, that of run(), beside the proxies and gRPC's threads.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "daemon/app/nic_watch.h"
#include "daemon/app/path_book.h"
#include "daemon/app/rails.h"
#include "daemon/app/socket_watch.h"
#include "daemon/base/aside.h"
#include "daemon/base/slice_meter.h"
#include "daemon/cluster/executor.h"
#include "daemon/cluster/group_directory.h"
#include "daemon/cluster/peer_links.h"
#include "daemon/config/config.h"
#include "daemon/observe/service_manager.h"
#include "daemon/rpc/control_service.h"
#include "daemon/session/control_bridge.h"
#include "daemon/session/rate_book.h"
#include "daemon/session/session_server.h"

namespace mkernel::app {

class App final : private rpc::ControlBackend, private cluster::PeerEvents {
 public:
  explicit App(config::Config config);
  ~App() override;

  /// Steps 1 to 7. On an error everything started so far is taken down by the destructor.
  Status start();

  /// The control thread: returns when the daemon has stopped. SIGTERM and SIGINT stop it, draining for at
  /// most limits.drain_ms; a second one ends it at once. SIGHUP reloads the configuration file.
  void run();

  /// As SIGTERM; any thread.
  void request_stop();

 private:
  Status prepare_folders() const;
  Status open_peer_links();
  void watch_nics();
  void look_at_rates();
  void wait_for_signal();
  void stop();
  void take_down();
  std::vector<std::string> apply(const config::Reload& change);
  void forget_dead_peers();
  void path_changed(std::uint32_t rail, transport::PeerId peer, const std::string& path, const Status& lost);
  void send_to_rail(std::uint32_t rail, transport::PeerId peer, const std::vector<std::byte>& bytes);

  // cluster::PeerEvents: the rails must know a peer before the directory forms a group with it.
  void peer_up(const cluster::PeerInfo& peer) override;
  void peer_down(transport::PeerId peer, const Status& why) override;
  void received(transport::PeerId peer, const v1::PeerMessage& message) override;

  // rpc::ControlBackend
  const session::Inspector& inspector() const override { return *sessions_; }
  void add_rates(std::vector<session::SessionSnapshot>& sessions) const override;
  rpc::DaemonSnapshot daemon() const override;
  std::vector<cluster::PeerSnapshot> peers() const override;
  std::string config_text() const override { return config::dump(config_); }
  std::vector<topology::RdmaDevice> devices() const override;
  Result<topology::Machine> machine() const override { return topology::this_machine(); }
  std::vector<std::string> chosen_ports() const override { return config_.topology.nics; }
  void set_link(const std::string& peer, const rpc::LinkChange& change,
                std::function<void(Result<transport::LinkShape>)> done) override;
  bool counts_arrived_bytes() const override;
  void reload(ReloadDone done) override;
  void read_configuration();
  void take_configuration(const Result<config::Config>& fresh);

  // In the order of start; destroyed in reverse.
  config::Config config_;
  const std::uint64_t boot_id_;
  const std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
  boost::asio::io_context io_;
  boost::asio::signal_set signals_;
  observe::ServiceManager service_manager_;
  base::Aside reader_;  ///< of the configuration file
  std::vector<ReloadDone> reading_for_, read_next_for_;
  session::ControlBridge bridge_;
  memory::SleepWatch sleep_watch_;  ///< of the proxy threads
  cluster::AsioExecutor executor_;
  boost::asio::steady_timer rate_timer_;
  session::RateBook rates_;
  std::unique_ptr<Rails> rails_;
  std::unique_ptr<cluster::GroupDirectory> directory_;
  std::unique_ptr<session::SessionServer> sessions_;
  std::unique_ptr<cluster::PeerLinks> links_;
  std::unique_ptr<rpc::ControlService> control_;
  std::unique_ptr<SocketWatch> socket_files_;
  std::unique_ptr<NicWatch> nics_;  ///< none without NICs
  std::vector<v1::NicPort> ports_;  ///< of the rails, as peers are told

  struct AlivePeer {
    std::string node;
    transport::LinkShape shape;  ///< of an emulated link, as last set
  };
  std::map<transport::PeerId, AlivePeer> alive_;
  PathBook paths_;
  std::set<transport::PeerId> dead_;  ///< down, but some group still has channels to it
  base::SliceMeter slices_;           ///< of the control thread
  bool stopping_ = false;
};

}  // namespace mkernel::app
