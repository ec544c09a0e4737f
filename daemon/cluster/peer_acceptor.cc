// NOTES
// Why gRPC does not listen itself. It takes every connection, makes a whole HTTP/2 transport of it (measured
// with gRPC 1.51: 15.6 KiB) and has no limit of their number. All of that is freed when the connection ends,
// but small objects that gRPC keeps for later connections lie between the freed ones, so that glibc cannot
// give the pages back: what a flood takes at its highest stays, and malloc_trim() frees only half of it.
//
// How the end of an admitted connection is noticed. gRPC owns the descriptor and tells nobody when it closes
// it. A second descriptor of the same socket would hold the socket open, and in gRPC's epoll set. So this one
// asks whether the number still stands for the socket with the same inode, when somebody wants its room.
#include "daemon/cluster/peer_acceptor.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "daemon/config/rules.h"

namespace mkernel::cluster {
namespace {

/// Accepted in one turn: others have their turn on the control thread after so many.
constexpr int kAcceptsPerTurn = 32;
/// After accept() has failed, which is for want of descriptors.
constexpr std::chrono::milliseconds kAcceptRetry{100};
/// How often those that wait for room are looked at, and those that say nothing.
constexpr std::chrono::milliseconds kLookForRoom{20}, kLookAtSilent{250};
/// What the first byte of a connection is: "PRI * HTTP/2.0", or the record of a TLS handshake.
constexpr char kFirstPlain = 'P', kFirstTls = 0x16;

/// 0 when there is none: the descriptor is closed.
std::uint64_t inode_of(int fd) {
  struct stat found {};
  return ::fstat(fd, &found) == 0 && S_ISSOCK(found.st_mode) ? found.st_ino : 0;
}

/// The same text for IPv4 addresses that come through an IPv6 listener.
std::string host_of(const boost::asio::ip::address& address) {
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    return boost::asio::ip::make_address_v4(boost::asio::ip::v4_mapped, address.to_v6()).to_string();
  }
  return address.to_string();
}

}  // namespace

PeerAcceptor::PeerAcceptor(boost::asio::io_context& io, bool tls, AcceptorLimits limits)
    : io_(io), tls_(tls), limits_(limits), timer_(io) {}

// ---- listening

Result<PeerAcceptor::Endpoints> PeerAcceptor::look_up(const std::string& address) {
  std::string host;
  std::uint16_t port = 0;
  if (!config::split_host_port(config::pinned(address), host, port)) {
    return Status(StatusCode::kInvalidArgument, address + " is not host:port");
  }
  Endpoints endpoints;
  if (host == "0.0.0.0" || host == "::") {
    endpoints = {{Tcp::v6(), port}, {Tcp::v4(), port}};  // the first one takes IPv4 as well
    return endpoints;
  }
  boost::asio::io_context io;
  boost::system::error_code error;
  const auto flags = Tcp::resolver::passive | Tcp::resolver::numeric_service;
  for (const auto& found : Tcp::resolver(io).resolve(host, std::to_string(port), flags, error)) {
    endpoints.push_back(found.endpoint());
  }
  if (error) return Status(StatusCode::kUnavailable, error.message());
  return endpoints;
}

Result<std::unique_ptr<PeerAcceptor>> PeerAcceptor::bind(boost::asio::io_context& io,
                                                         const Endpoints& endpoints, bool tls,
                                                         AcceptorLimits limits) {
  std::unique_ptr<PeerAcceptor> acceptor(new PeerAcceptor(io, tls, limits));
  Status last(StatusCode::kUnavailable, "no address");
  for (Tcp::endpoint endpoint : endpoints) {
    if (acceptor->port_ != 0) endpoint.port(acceptor->port_);
    const Status bound = acceptor->listen_at(endpoint);
    if (!bound.ok()) last = bound;
    if (bound.ok() && endpoint.address().is_unspecified()) break;
  }
  if (acceptor->listeners_.empty()) return last;
  return acceptor;
}

/// Without SO_REUSEPORT: two daemons that shared a port would each get half of the connections.
Status PeerAcceptor::listen_at(const Tcp::endpoint& endpoint) {
  boost::system::error_code error;
  Tcp::acceptor listener(io_);
  const auto step = [&error](auto&& action) {
    if (!error) action();
  };
  step([&] { listener.open(endpoint.protocol(), error); });
  step([&] { listener.set_option(Tcp::acceptor::reuse_address(true), error); });
  if (endpoint.protocol() == Tcp::v6()) {
    const bool any = endpoint.address().is_unspecified();
    step([&] { listener.set_option(boost::asio::ip::v6_only(!any), error); });
  }
  step([&] { listener.set_option(Tcp::no_delay(true), error); });  // inherited by what is accepted
  step([&] { listener.bind(endpoint, error); });
  step([&] { listener.listen(Tcp::acceptor::max_listen_connections, error); });
  step([&] { listener.non_blocking(true, error); });
  if (error) return {StatusCode::kUnavailable, error.message()};
  ::fcntl(listener.native_handle(), F_SETFD, FD_CLOEXEC);
  port_ = listener.local_endpoint().port();
  listeners_.push_back(std::move(listener));
  return {};
}

void PeerAcceptor::start(Admit admit) {
  admit_ = std::move(admit);
  for (std::size_t listener = 0; listener < listeners_.size(); ++listener) wait_to_accept(listener);
}

void PeerAcceptor::wait_to_accept(std::size_t listener) {
  listeners_[listener].async_wait(Tcp::acceptor::wait_read, [this, listener, alive = std::weak_ptr(life_)](
                                                                const boost::system::error_code& error) {
    if (!error && !alive.expired()) accept_some(listener);
  });
}

void PeerAcceptor::accept_some(std::size_t listener) {
  Tcp::acceptor& from = listeners_[listener];
  for (int turn = 0; turn < kAcceptsPerTurn; ++turn) {
    Tcp::endpoint source;
    auto size = static_cast<socklen_t>(source.capacity());
    ipc::UniqueFd fd(::accept4(from.native_handle(), source.data(), &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid() && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (!fd.valid() && errno == EAGAIN) break;
    if (!fd.valid()) {
      const auto retry = std::make_shared<boost::asio::steady_timer>(io_, kAcceptRetry);
      return retry->async_wait([this, listener, retry, alive = std::weak_ptr(life_)](const auto&) {
        if (!alive.expired()) wait_to_accept(listener);
      });
    }
    source.resize(size);
    Tcp::socket socket(io_);
    boost::system::error_code error;
    socket.assign(source.protocol(), fd.get(), error);
    if (error) continue;
    fd.release();
    take_in(std::move(socket), source);
  }
  wait_to_accept(listener);
}

// ---- those that wait

void PeerAcceptor::take_in(Tcp::socket socket, const Tcp::endpoint& from) {
  const auto waiting = std::make_shared<Waiting>(std::move(socket));
  waiting->host = host_of(from.address());
  waiting->since = Clock::now();
  make_room(waiting->host);
  waiting_.push_back(waiting);
  ++hosts_[waiting->host].waiting;
  hear(waiting);
  watch();
}

/// Somebody who has spoken is handed on before the next one is accepted, so that a crowd of silent ones
/// cannot push it out.
void PeerAcceptor::hear(const WaitingPtr& waiting) {
  if (look_at(waiting)) return;
  waiting->socket.async_wait(Tcp::socket::wait_read, [this, weak = std::weak_ptr(waiting),
                                                      alive = std::weak_ptr(life_)](const auto& error) {
    const WaitingPtr same = weak.lock();
    if (!error && same != nullptr && !alive.expired()) hear(same);
  });
}

/// A flood takes the room of its own host first, and then that of the oldest; in both the silent ones go
/// first.
void PeerAcceptor::make_room(const std::string& host) {
  const bool crowd = hosts_[host].waiting >= limits_.waiting_of_host;
  if (!crowd && waiting_.size() < limits_.waiting) return;
  WaitingPtr victim;
  for (const WaitingPtr& waiting : waiting_) {
    if (crowd && waiting->host != host) continue;
    if (victim == nullptr || !waiting->spoke) victim = waiting;
    if (!waiting->spoke) break;
  }
  if (victim != nullptr) drop(victim);
}

/// False when nothing has come.
bool PeerAcceptor::look_at(const WaitingPtr& waiting) {
  char first = 0;
  const ssize_t got = ::recv(waiting->socket.native_handle(), &first, 1, MSG_PEEK | MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (got != 1 || first != (tls_ ? kFirstTls : kFirstPlain)) {
    drop(waiting);
    return true;
  }
  waiting->spoke = true;
  if (!admit(waiting)) watch();
  return true;
}

/// False when there is no room.
bool PeerAcceptor::admit(const WaitingPtr& waiting) {
  if (!has_room(waiting->host, Clock::now())) return false;
  boost::system::error_code error;
  ipc::UniqueFd fd(waiting->socket.release(error));
  if (error) {
    drop(waiting);
    return true;
  }
  // A number that is there already was closed by gRPC and is used again.
  auto& of_host = hosts_[waiting->host].admitted;
  if (of_host.insert_or_assign(fd.get(), inode_of(fd.get())).second) ++admitted_;
  leave(waiting);
  admit_(std::move(fd));
  return true;
}

void PeerAcceptor::drop(const WaitingPtr& waiting) {
  boost::system::error_code ignored;
  waiting->socket.close(ignored);
  leave(waiting);
}

void PeerAcceptor::leave(const WaitingPtr& waiting) {
  const auto host = hosts_.find(waiting->host);
  if (--host->second.waiting == 0 && host->second.admitted.empty()) hosts_.erase(host);
  waiting_.remove(waiting);
}

// ---- those that were handed on

bool PeerAcceptor::has_room(const std::string& host, Clock::time_point now) {
  Host& own = hosts_[host];
  // Once in a while: all that wait ask for room each time, and a search is a system call for each admitted.
  if (own.admitted.size() >= limits_.admitted_of_host && now >= own.searched + kLookForRoom) {
    own.searched = now;
    forget_closed(own);
  }
  if (own.admitted.size() >= limits_.admitted_of_host) return false;
  if (admitted_ >= limits_.admitted && now >= searched_ + kLookForRoom) {
    searched_ = now;
    forget_all_closed();
  }
  return admitted_ < limits_.admitted;
}

void PeerAcceptor::forget_closed(Host& host) {
  admitted_ -=
      std::erase_if(host.admitted, [](const auto& entry) { return inode_of(entry.first) != entry.second; });
}

void PeerAcceptor::forget_all_closed() {
  for (auto& [name, host] : hosts_) forget_closed(host);
  std::erase_if(hosts_,
                [](const auto& entry) { return entry.second.waiting == 0 && entry.second.admitted.empty(); });
}

// ---- time

void PeerAcceptor::watch() {
  if (timed_ || waiting_.empty()) return;
  timed_ = true;
  const bool spoke =
      std::any_of(waiting_.begin(), waiting_.end(), [](const auto& waiting) { return waiting->spoke; });
  timer_.expires_after(spoke ? kLookForRoom : kLookAtSilent);
  timer_.async_wait([this, alive = std::weak_ptr(life_)](const boost::system::error_code& error) {
    if (!error && !alive.expired()) on_time();
  });
}

void PeerAcceptor::on_time() {
  timed_ = false;
  const auto now = Clock::now();
  while (!waiting_.empty() && waiting_.front()->since + limits_.patience < now) drop(waiting_.front());
  std::vector<WaitingPtr> wish;
  for (const WaitingPtr& waiting : waiting_) {
    if (waiting->spoke) wish.push_back(waiting);
  }
  if (!wish.empty() && admitted_ >= limits_.admitted) {
    searched_ = now;
    forget_all_closed();
  }
  // Hosts that hold least come first, so that a host with many takes no room from others.
  std::stable_sort(wish.begin(), wish.end(), [this](const WaitingPtr& a, const WaitingPtr& b) {
    return hosts_[a->host].admitted.size() < hosts_[b->host].admitted.size();
  });
  for (const WaitingPtr& waiting : wish) admit(waiting);
  watch();
}

}  // namespace mkernel::cluster
