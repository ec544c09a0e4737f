// Where everything that clients hold the other end of is closed: close() of a socket that lingers, or of a
// file whose server does not answer, takes as long as its owner likes. So no other thread that users share
// closes such an fd; each user has a thread of his own here, and what hangs on it delays nobody else.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <memory>
#include <vector>

#include "daemon/base/owner_workers.h"
#include "daemon/session/account.h"
#include "proto/ipc/fd.h"

namespace mkernel::session {

/// Control thread only, but for workers().
class Undertaker {
 public:
  /// The owner of what belongs to no user; no uid.
  static constexpr std::uint64_t kNobody = ~std::uint64_t{0};

  Undertaker(boost::asio::io_context& io, const Accounts& accounts) : accounts_(accounts), timer_(io) {}
  ~Undertaker();
  Undertaker(const Undertaker&) = delete;
  Undertaker& operator=(const Undertaker&) = delete;

  /// Closes fds that a user's client has sent. They count as his until then.
  void close_fds(const Account& account, std::vector<ipc::UniqueFd> fds);

  /// Closes the socket of a session that has ended, once the client has read what was sent to it or has hung
  /// up: until then fds of the daemon's may lie in its queue. `charges` are given back then. The socket is
  /// shut down in both directions.
  void close_session(const Account& account, ipc::UniqueFd socket, std::vector<Charge> charges);
  /// The same at once: of a connection that was turned away, and was sent no fd.
  void close_connection(const Account& account, ipc::UniqueFd socket);
  /// A listening socket, or one whose user is not known.
  void close_any(ipc::UniqueFd socket);

  /// The threads that close, for those who free a user's memory on them; jobs are posted under his uid.
  const std::shared_ptr<base::OwnerWorkers>& workers() const { return workers_; }

  /// True when nothing that was sent over a session's socket waits for its reader.
  static bool all_read(int socket);

 private:
  struct Unread {
    Account account;
    std::vector<Charge> charges;
    ipc::UniqueFd socket;
  };

  void look();
  void wait();
  void finish(Unread session);

  const Accounts& accounts_;
  boost::asio::steady_timer timer_;
  std::shared_ptr<base::OwnerWorkers> workers_ = std::make_shared<base::OwnerWorkers>("mk-undertaker");
  std::vector<Unread> unread_;
  /// The timer's handler holds a weak copy: it does nothing once this object is gone.
  std::shared_ptr<Undertaker*> self_ = std::make_shared<Undertaker*>(this);
};

}  // namespace mkernel::session
