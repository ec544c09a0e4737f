#include "daemon/session/session.h"

#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/post.hpp>
#include <boost/system/system_error.hpp>

#include "daemon/session/gather.h"

namespace mkernel::session {
namespace {

/// Packets handled before other sessions get their turn.
constexpr int kBatch = 16;
/// Batches handled after the client has hung up: all that it can have left in the socket, and a bound for a
/// child of it that goes on sending.
constexpr int kLastBatches = 16;

/// While a peer is far behind, who has used half of what may come at once waits until it is not.
constexpr double kCongestedShare = 0.5;
constexpr std::chrono::milliseconds kCongestedLook{10};

/// Packets with fds that a client may leave unread before no more of its requests are read.
constexpr std::size_t kUnreadReplies = 4;
constexpr std::chrono::milliseconds kUnreadLook{100};  ///< between looks whether it has read them
/// A session whose user's fds cannot be closed for so long ends.
constexpr std::chrono::seconds kUnclosedPatience{1};

/// So many ranks of this node that are told of something take the control thread about as long as a join,
/// which is told to all peers.
constexpr double kRanksPerMessage = 64;

}  // namespace

Session::Session(Services& services, dataplane::SessionId id, ipc::UniqueFd socket, PeerIdentity identity,
                 Account account, Charge charge)
    : services_(services),
      id_(id),
      identity_(std::move(identity)),
      socket_(services.io),
      pidfd_(services.io),
      hello_timer_(services.io),
      pace_timer_(services.io),
      in_flight_timer_(services.io),
      account_(std::move(account)),
      connection_charge_(std::move(charge)) {
  try {  // assign() may throw; when it does not, the descriptor owns the fd
    socket_.assign(socket.get());
    static_cast<void>(socket.release());
    if (!identity_.pidfd.valid()) return;
    pidfd_.assign(identity_.pidfd.get());
    static_cast<void>(identity_.pidfd.release());
  } catch (const boost::system::system_error&) {
    if (socket_.is_open()) socket.reset(socket_.release());
    services_.undertaker->close_connection(account_, std::move(socket));
    throw;
  }
}

Session::~Session() {
  // Not ended when the server goes first, or when it could not start.
  if (socket_.is_open()) {
    services_.undertaker->close_connection(account_, ipc::UniqueFd(socket_.release()));
  }
}

void Session::start() {
  wait_for_hello();
  wait_for_packets();
  if (pidfd_.is_open()) wait_for_exit();
}

void Session::wait_for_hello() {
  hello_timer_.expires_after(services_.limits.hello_timeout);
  hello_timer_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
    const auto self = weak.lock();
    if (error || self == nullptr || self->introduced()) return;
    self->end({StatusCode::kDeadlineExceeded,
               self->describe() + " said no hello within limits.hello_timeout_ms = " +
                   std::to_string(self->services_.limits.hello_timeout.count())});
  });
}

void Session::wait_for_packets() {
  socket_.async_wait(boost::asio::posix::descriptor_base::wait_read,
                     [weak = weak_from_this()](const boost::system::error_code& error) {
                       const auto self = weak.lock();
                       if (error || self == nullptr) return;
                       self->read_packets(true);
                       if (self->ending_) return;
                       const auto time = self->pause_needed();
                       time.count() == 0 ? self->wait_for_packets() : self->pause(time);
                     });
}

void Session::pause(std::chrono::nanoseconds time) {
  waiting_ = true;
  pace_timer_.expires_after(std::chrono::ceil<std::chrono::milliseconds>(time));
  pace_timer_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
    const auto self = weak.lock();
    if (error || self == nullptr || self->ending_) return;
    const auto more = self->pause_needed();
    if (self->no_room_since_ &&
        std::chrono::steady_clock::now() - *self->no_room_since_ > kUnclosedPatience) {
      if (const Status why = Accounts::check_unclosed(self->user()); !why.ok()) {
        return self->end(why.with_context(self->describe()));
      }
    }
    self->waiting_ = false;
    more.count() == 0 ? self->wait_for_packets() : self->pause(more);
  });
}

Status Session::check_room() const {
  MK_RETURN_IF_ERROR(Accounts::check_unclosed(account_.user()));
  if (services_.accounts.room_for_packet()) return {};
  return {StatusCode::kResourceExhausted, "no room for the fds of one more packet"};
}

std::chrono::nanoseconds Session::pause_needed() {
  const auto now = std::chrono::steady_clock::now();
  if (check_room().ok()) {
    no_room_since_.reset();
  } else {
    no_room_since_ = no_room_since_.value_or(now);
    return kCongestedLook;
  }
  if (!introduced()) return std::chrono::nanoseconds(0);
  if (in_flight_.size() >= kUnreadReplies) settle_in_flight();
  if (in_flight_.size() >= kUnreadReplies) return kCongestedLook;
  std::chrono::nanoseconds time(0);
  for (base::TokenBucket* bucket : {&account_.messages(), &account_.user().messages}) {
    time = std::max(time, bucket->wait(now));
    waits_for_peers_ = waits_for_peers_ || bucket->share(now) < kCongestedShare;
  }
  waits_for_peers_ = waits_for_peers_ && services_.coordinator->congested();
  return waits_for_peers_ ? std::max<std::chrono::nanoseconds>(time, kCongestedLook) : time;
}

void Session::spend(double messages) {
  const auto now = std::chrono::steady_clock::now();
  account_.messages().spend(messages, now);
  account_.user().messages.spend(messages, now);
}

void Session::spend(const SessionGroup& group, double messages) {
  spend(messages * ((group.spans_nodes() ? 1 : 0) + group.ranks_here() / kRanksPerMessage));
}

void Session::wait_for_exit() {
  // A child of the client may hold the socket open after the client itself has ended; its memory and rings
  // mean nothing any more.
  pidfd_.async_wait(boost::asio::posix::descriptor_base::wait_read,
                    [weak = weak_from_this()](const boost::system::error_code& error) {
                      const auto self = weak.lock();
                      if (error || self == nullptr) return;
                      self->hang_up();
                    });
}

void Session::hang_up() {
  hanging_up_ = true;
  for (int i = 0; i < kLastBatches && !ending_; ++i) read_packets(false);
  gone();
}

void Session::read_packets(bool paced) {
  for (int i = 0; i < kBatch && !ending_; ++i) {
    if (paced && pause_needed().count() != 0) return;
    if (!check_room().ok()) return;
    ipc::Packet packet;
    const Status received = ipc::receive_packet(socket_.native_handle(), packet);
    if (received.code() == StatusCode::kNotFound) return;
    if (!received.ok()) return gone();
    handle(packet);
    services_.undertaker->close_fds(account_, std::move(packet.fds));
  }
}

void Session::gone() {
  if (groups_.empty()) return end({StatusCode::kCancelled, describe() + " closed its session"});
  end({StatusCode::kUnavailable, describe() + " on node " + services_.node_name +
                                     " is gone: it ended or closed its session without leaving its groups"});
}

void Session::end(const Status& why) {
  if (ending_) return;
  ending_ = true;
  const bool expected = why.code() == StatusCode::kCancelled;
  if (services_.lines->admit(uid())) {
    spdlog::log(expected ? spdlog::level::info : spdlog::level::warn, "session {} ends: {}", id_,
                why.to_string());
  }
  hello_timer_.cancel();
  pace_timer_.cancel();
  in_flight_timer_.cancel();
  std::chrono::milliseconds drain(0);
  for (const auto& [handle, group] : groups_) {
    drain = std::max(drain, group->drain_limit());
    group->abandon(why);
  }
  if (introduced()) {
    write_session_failure(port_->segment, services_.node_name, why);
    services_.coordinator->session_ending(id_, why);
  }
  say_farewell(socket_.native_handle(), why);
  in_flight_.push_back(connection_charge_);
  services_.undertaker->close_session(account_, ipc::UniqueFd(socket_.release()), std::move(in_flight_));
  if (pidfd_.is_open()) pidfd_.close();

  const auto on_all =
      gather(services_.io, introduced() ? services_.rails() : 1, [weak = weak_from_this()](const Status&) {
        if (const auto self = weak.lock()) self->let_go();
      });
  if (!introduced()) return on_all(Status());
  // The others learn of the end when what this session has put has arrived: they may need nothing more of it.
  const auto on_drained =
      gather(services_.io, services_.rails(), [weak = weak_from_this(), why](const Status&) {
        if (const auto self = weak.lock()) self->services_.coordinator->session_gone(self->id_, why);
      });
  for (dataplane::Proxy* proxy : services_.proxies) {
    proxy->detach_session(
        id_, drain, [on_drained] { on_drained(Status()); }, [on_all] { on_all(Status()); });
  }
}

void Session::unsent(const Status& why) {
  if (why.code() != StatusCode::kUnavailable) {
    return end({StatusCode::kResourceExhausted, describe() + " does not read its replies: " + why.text()});
  }
  // Later, because this may be within the handling of a packet.
  hanging_up_ = true;
  boost::asio::post(services_.io, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->hang_up();
  });
}

void Session::settle_in_flight() {
  if (!in_flight_.empty() && !ending_ && Undertaker::all_read(socket_.native_handle())) in_flight_.clear();
}

void Session::watch_in_flight() {
  in_flight_timer_.expires_after(kUnreadLook);
  in_flight_timer_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
    const auto self = weak.lock();
    if (error || self == nullptr) return;
    self->settle_in_flight();
    if (!self->in_flight_.empty()) self->watch_in_flight();
  });
}

void Session::say_farewell(int socket, const Status& why) {
  ::shutdown(socket, SHUT_RD);
  abi::SessionEnded event{};
  event.header = ipc::header_of<abi::SessionEnded>(abi::MessageType::kSessionEnded, 0);
  event.status = ipc::to_reply(why);
  // The client may be gone, which is one reason to be here.
  static_cast<void>(ipc::send_message(socket, event));
  ::shutdown(socket, SHUT_RDWR);
}

void Session::let_go() {
  groups_.clear();
  if (!kept_.empty()) {
    services_.undertaker->workers()->post(
        uid(), [held = std::make_shared<decltype(kept_)>(std::exchange(kept_, {}))] {});
  }
  port_.reset();
  session_charge_.reset();
  connection_charge_.reset();
  services_.session_done(id_);
}

std::uint32_t Session::active() const {
  if (!introduced()) return 0;
  return std::atomic_ref<std::uint32_t>(port_->header()->active).load(std::memory_order_relaxed);
}

std::string Session::describe() const {
  return "client " + (client_name_.empty() ? std::string() : "\"" + client_name_ + "\" ") + "(pid " +
         std::to_string(identity_.pid) + ")";
}

std::shared_ptr<SessionGroup> Session::find_group(std::uint32_t handle) const {
  const auto found = groups_.find(handle);
  return found == groups_.end() ? nullptr : found->second;
}

std::uint64_t Session::pinned_bytes() const {
  std::uint64_t sum = 0;
  for (const auto& [handle, group] : groups_) sum += group->pinned_bytes();
  return sum;
}

}  // namespace mkernel::session
