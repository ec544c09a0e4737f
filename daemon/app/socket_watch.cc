#include "daemon/app/socket_watch.h"

#include <spdlog/spdlog.h>

#include <filesystem>
#include <utility>

namespace mkernel::app {
namespace {

constexpr std::chrono::seconds kLookWithin{30};

}  // namespace

SocketWatch::SocketWatch(boost::asio::io_context& io, std::string runtime_dir,
                         session::SessionServer& sessions, rpc::ControlService& control,
                         std::chrono::milliseconds every)
    : runtime_dir_(std::move(runtime_dir)),
      sessions_(sessions),
      control_(control),
      every_(every),
      looker_(io, "looking at the socket files"),
      timer_(io) {
  wait();
}

void SocketWatch::wait() {
  timer_.expires_after(every_);
  timer_.async_wait([this, alive = std::weak_ptr(life_)](const boost::system::error_code& stopped) {
    if (stopped || alive.expired()) return;
    looker_.run<Look>(
        kLookWithin,
        [dir = runtime_dir_, options = sessions_.listener_options(), sessions = sessions_.socket_file(),
         control = control_.file()]() -> Result<Look> { return look(dir, options, sessions, control); },
        [this](Result<Look> found) {
          if (found.ok()) take(std::move(found).value());
          wait();
        });
  });
}

SocketWatch::Look SocketWatch::look(const std::string& runtime_dir, const session::ListenerOptions& options,
                                    const base::SocketFile& sessions, const base::SocketFile& control) {
  using base::SocketFileState;
  Look found;
  found.sessions.state = sessions.look();
  found.control.state = control.look();
  const bool missing =
      found.sessions.state == SocketFileState::kMissing || found.control.state == SocketFileState::kMissing;
  std::error_code ignored;  // bind() says what is wrong
  if (missing) std::filesystem::create_directories(runtime_dir, ignored);
  if (found.sessions.state == SocketFileState::kMissing) {
    auto made = session::open_listener(options);
    found.sessions.made = made.status();
    if (made.ok()) found.sessions_socket = std::move(made).value();
  }
  if (found.control.state == SocketFileState::kMissing) {
    auto made = rpc::ControlListener::bind(control.path());
    found.control.made = made.status();
    if (made.ok()) found.control_socket = std::move(made).value();
  }
  return found;
}

void SocketWatch::take(Look found) {
  if (found.control_socket) {
    found.control.made = control_.listen_again(std::move(*found.control_socket));
  }
  report(control_.file().path(), found.control);
  if (found.sessions_socket) sessions_.listen_again(std::move(*found.sessions_socket));
  report(sessions_.socket_file().path(), found.sessions);
}

void SocketWatch::report(const std::string& path, const Seen& seen) {
  if (seen.state == base::SocketFileState::kOurs) {
    reported_.erase(path);
  } else if (seen.state == base::SocketFileState::kReplaced) {
    if (!reported_.insert(path).second) return;
    spdlog::error(
        "{}: another file has taken the place of this daemon's socket, which nobody finds there now", path);
  } else if (seen.made.ok()) {
    reported_.erase(path);
    spdlog::warn("{}: the socket's file had been removed, and was made again", path);
  } else if (reported_.insert(path).second) {
    spdlog::error("{}: the socket's file has been removed and cannot be made again: {}", path,
                  seen.made.text());
  }
}

}  // namespace mkernel::app
