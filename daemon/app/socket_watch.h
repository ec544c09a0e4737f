// The files of the daemon's two sockets, looked at now and then: who cleans folders for temporary files
// removes them, and from then on nobody would find the daemon.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "daemon/base/aside.h"
#include "daemon/rpc/control_service.h"
#include "daemon/session/session_server.h"

namespace mkernel::app {

/// Makes a lost file again, with a new socket behind it; sessions, and requests of mkctl, go on. A file of
/// another daemon in its place is left alone, and an error says so once. Control thread only; the looking
/// happens on another.
class SocketWatch {
 public:
  /// Looks every `every`. Both servers outlive this. `runtime_dir` is made again if it is gone.
  SocketWatch(boost::asio::io_context& io, std::string runtime_dir, session::SessionServer& sessions,
              rpc::ControlService& control, std::chrono::milliseconds every);

 private:
  struct Seen {
    base::SocketFileState state = base::SocketFileState::kOurs;
    Status made;  ///< of a new socket, when the file was missing
  };
  /// What one look came to.
  struct Look {
    Seen sessions, control;
    std::optional<session::Listener> sessions_socket;
    std::optional<rpc::ControlListener::Bound> control_socket;
  };
  static Look look(const std::string& runtime_dir, const session::ListenerOptions& options,
                   const base::SocketFile& sessions, const base::SocketFile& control);
  void wait();
  void take(Look found);
  void report(const std::string& path, const Seen& seen);

  const std::string runtime_dir_;
  session::SessionServer& sessions_;
  rpc::ControlService& control_;
  const std::chrono::milliseconds every_;
  base::Aside looker_;
  boost::asio::steady_timer timer_;
  std::set<std::string> reported_;                             ///< paths that are not this daemon's now
  const std::shared_ptr<int> life_ = std::make_shared<int>();  ///< dies with this
};

}  // namespace mkernel::app
