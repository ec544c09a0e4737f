#include "daemon/session/undertaker.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "proto/ipc/packet.h"

namespace mkernel::session {
namespace {

constexpr std::chrono::milliseconds kLook{100};  ///< between looks at queues that somebody has yet to read

/// What a job of the workers closes, and then gives back.
struct Closing {
  std::vector<Charge> charges;     ///< destroyed last
  std::vector<ipc::UniqueFd> fds;  ///< destroyed first
};

void post(base::OwnerWorkers& workers, std::uint64_t owner, std::vector<ipc::UniqueFd> fds,
          std::vector<Charge> charges) {
  workers.post(owner, [closing = std::make_shared<Closing>(Closing{std::move(charges), std::move(fds)})] {});
}

std::vector<ipc::UniqueFd> only(ipc::UniqueFd fd) {
  std::vector<ipc::UniqueFd> fds;
  fds.push_back(std::move(fd));
  return fds;
}

}  // namespace

Undertaker::~Undertaker() {
  for (Unread& session : unread_) finish(std::move(session));
}

bool Undertaker::all_read(int socket) {
  int bytes = 0;
  return ::ioctl(socket, SIOCOUTQ, &bytes) != 0 || bytes == 0;
}

void Undertaker::close_fds(const Account& account, std::vector<ipc::UniqueFd> fds) {
  std::erase_if(fds, [](const ipc::UniqueFd& fd) { return !fd.valid(); });  // a request has taken them
  if (fds.empty()) return;
  Charge charge =
      accounts_.add(account, {{Resource::kFds, fds.size()}, {Resource::kUnclosedFds, fds.size()}});
  post(*workers_, account.user().uid, std::move(fds), {std::move(charge)});
}

void Undertaker::close_connection(const Account& account, ipc::UniqueFd socket) {
  ::shutdown(socket.get(), SHUT_RDWR);
  if (ipc::discard_packets(socket.get())) return;  // closed here: no fd is in it
  close_fds(account, only(std::move(socket)));
}

void Undertaker::close_any(ipc::UniqueFd socket) {
  if (socket.valid()) post(*workers_, kNobody, only(std::move(socket)), {});
}

void Undertaker::close_session(const Account& account, ipc::UniqueFd socket, std::vector<Charge> charges) {
  if (all_read(socket.get())) return finish({account, std::move(charges), std::move(socket)});
  unread_.push_back({account, std::move(charges), std::move(socket)});
  if (unread_.size() == 1) wait();
}

void Undertaker::finish(Unread session) {
  // Its charge counts the socket.
  if (ipc::discard_packets(session.socket.get())) return;
  post(*workers_, session.account.user().uid, only(std::move(session.socket)), std::move(session.charges));
}

void Undertaker::wait() {
  timer_.expires_after(kLook);
  timer_.async_wait([this, alive = std::weak_ptr(self_)](const boost::system::error_code& error) {
    if (!error && !alive.expired()) look();
  });
}

void Undertaker::look() {
  const auto read = std::partition(unread_.begin(), unread_.end(),
                                   [](const Unread& session) { return !all_read(session.socket.get()); });
  std::vector<Unread> done(std::make_move_iterator(read), std::make_move_iterator(unread_.end()));
  unread_.erase(read, unread_.end());
  for (Unread& session : done) finish(std::move(session));
  if (!unread_.empty()) wait();
}

}  // namespace mkernel::session
