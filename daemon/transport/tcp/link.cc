#include "daemon/transport/tcp/link.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "daemon/transport/tcp/peer.h"
#include "daemon/transport/tcp/socket.h"

namespace mkernel::transport::tcp {
namespace {

constexpr std::chrono::milliseconds kMaxBackoff{1000};

/// Silence on a connection that ends it: half of what a peer may be unreachable, so that the other half is
/// left to find it again.
std::chrono::milliseconds silence(const TcpOptions& options) {
  return std::max(options.base.peer_timeout / 2, std::chrono::milliseconds(1));
}

}  // namespace

Link::Link(Context& context, Peer& peer, std::uint32_t number)
    : context_(context),
      peer_(peer),
      number_(number),
      backoff_(context.options.base.reconnect_interval),
      unloader_(context.gpu, *this),
      reader_(*this, unloader_),
      writer_(context) {}

Link::~Link() {
  context_.forget(*this);
}

std::string Link::describe() const {
  return peer_.describe() + ", connection " + std::to_string(number_) + " of " +
         std::to_string(peer_.connections());
}

// Coming up

void Link::start(Clock::time_point now) {
  wanted_ = true;
  down_since_ = retry_at_ = now;
  context_.deadlines_changed = true;
  if (peer_.may_dial()) dial(now);
}

void Link::secret_known(Clock::time_point now) {
  context_.deadlines_changed = true;
  if (wanted_ && state_ == State::kDown && peer_.may_dial()) dial(now);
}

void Link::dial(Clock::time_point now) {
  state_ = State::kDialling;
  handshake_until_ = now + silence(context_.options);
  context_.deadlines_changed = true;
  auto socket = tcp::dial(peer_.remote());
  if (!socket.ok()) return lose(socket.status());
  socket_ = std::move(*socket);
  if (Status watched = context_.watch(socket_.get(), *this); !watched.ok()) lose(watched);
}

std::size_t Link::finish_dial() {
  if (!writable_ && !error_ && !ending_) return 0;
  Status outcome = socket_error(socket_.get(), "connect to " + peer_.remote().text());
  if (outcome.ok()) outcome = say_hello();
  if (outcome.ok()) {
    state_ = State::kGreeting;
  } else {
    lose(outcome);
  }
  return 1;
}

Status Link::say_hello() {
  const Identity& self = context_.options.base.identity;
  MK_RETURN_IF_ERROR(handshake_.begin(self, peer_.identity(), number_, peer_.connections()));
  answer_bytes_ = 0;
  if (send_whole(socket_.get(), &handshake_.hello(), sizeof(Hello))) return {};
  return {StatusCode::kUnavailable, std::string("send of the handshake: ") + std::strerror(errno)};
}

/// OK while an answer is incomplete, and when it is good.
Status Link::go_on_greeting() {
  if (state_ == State::kProving) return read_welcome();
  switch (fill(socket_.get(), &challenge_, sizeof(challenge_), answer_bytes_)) {
    case Filled::kNotYet: readable_ = false; return {};
    case Filled::kEnded:
      return {StatusCode::kUnavailable, "the peer closed the connection during the handshake"};
    case Filled::kWhole: break;
  }
  MK_RETURN_IF_ERROR(handshake_.challenged(challenge_));
  const Proof proof = handshake_.proof(peer_.secret());
  if (!send_whole(socket_.get(), &proof, sizeof(proof))) {
    return {StatusCode::kUnavailable, std::string("send of the handshake: ") + std::strerror(errno)};
  }
  state_ = State::kProving;
  answer_bytes_ = 0;
  return read_welcome();
}

Status Link::read_welcome() {
  switch (fill(socket_.get(), &welcome_, sizeof(welcome_), answer_bytes_)) {
    case Filled::kNotYet: readable_ = false; return {};
    case Filled::kEnded:
      return {StatusCode::kUnavailable, "the peer closed the connection during the handshake"};
    case Filled::kWhole: break;
  }
  MK_RETURN_IF_ERROR(handshake_.welcomed(peer_.secret(), welcome_));
  go_up();
  return {};
}

void Link::adopt(ipc::UniqueFd socket) {
  socket_ = std::move(socket);
  if (Status watched = context_.rewatch(socket_.get(), *this); !watched.ok()) return lose(watched);
  go_up();
}

void Link::go_up() {
  const TcpOptions& options = context_.options;
  const bool zero_copy = options.zero_copy != ZeroCopy::kNever;
  writer_.start(tune(socket_.get(), {silence(options), options.socket_buffer_bytes, zero_copy}));
  ends_ = ends_of(socket_.get()) + ", connection " + std::to_string(number_) + " of " +
          std::to_string(peer_.connections());
  state_ = State::kUp;
  readable_ = writable_ = true;
  backoff_ = options.base.reconnect_interval;
  context_.deadlines_changed = true;
  context_.wake(*this);
  peer_.link_up(*this);
}

// Going down

void Link::close() {
  socket_.reset();
  reader_.reset();
  writer_.reset();
  readable_ = writable_ = ending_ = error_ = false;
  state_ = State::kDown;
  wanted_ = false;
  context_.forget(*this);
}

void Link::lose(const Status& why) {
  if (state_ == State::kDown) return;
  const auto now = Clock::now();
  if (state_ == State::kUp) {
    // A connection that died of silence has been unreachable since that began.
    down_since_ = why.code() == StatusCode::kDeadlineExceeded ? now - silence(context_.options) : now;
    ++context_.statistics.connections_lost;
  }
  if (socket_.valid()) cut_on_close(socket_.get());
  close();
  wanted_ = true;
  last_error_ = why;
  retry_at_ = now + backoff_;
  backoff_ = std::min(backoff_ * 2, kMaxBackoff);
  context_.deadlines_changed = true;
  if (unloader_.busy()) context_.wake(*this);
  peer_.link_down(*this, why);
}

Clock::time_point Link::give_up_at() const {
  return down_since_ + context_.options.base.peer_timeout;
}

Clock::time_point Link::deadline() const {
  if (!wanted_ || state_ == State::kUp) return kNever;
  if (state_ != State::kDown) return std::min(handshake_until_, give_up_at());
  return peer_.may_dial() ? std::min(retry_at_, give_up_at()) : give_up_at();
}

void Link::expire(Clock::time_point now) {
  if (now < deadline()) return;
  if (now >= give_up_at()) {
    std::string last = last_error_.ok() ? "it never answered" : "last error: " + last_error_.text();
    if (!peer_.secret().complete()) {
      last = "it has not sent its half of the secret for data connections over the peer link";
    }
    return peer_.fail({StatusCode::kUnavailable,
                       describe() + ": unreachable for " +
                           std::to_string(context_.options.base.peer_timeout.count()) + " ms; " + last});
  }
  if (state_ == State::kDown) return dial(now);
  lose({StatusCode::kDeadlineExceeded, "no answer to the handshake"});
}

// Channels

void Link::ask(Outbound& channel) {
  if (!up()) return;
  writer_.ask(channel);
  if (writable_) context_.wake(*this);
}

void Link::answer(Inbound& channel) {
  if (!up()) return;
  writer_.answer(channel);
  if (writable_) context_.wake(*this);
}

void Link::offer(Outbound& channel) {
  if (!up() || !channel.granted) return;
  writer_.offer(channel);
  if (writable_) context_.wake(*this);
}

void Link::forget(Outbound& channel) {
  if (!writer_.forget(channel)) {
    lose({StatusCode::kCancelled, "a channel was closed while the kernel sent its memory without a copy"});
  } else if (up() && writable_ && !writer_.idle()) {
    context_.wake(*this);
  }
}

void Link::forget(Inbound& channel) {
  writer_.forget(channel);
  reader_.forget(channel);
  unloader_.forget(channel);
}

// Being served

void Link::on_events(std::uint32_t events) {
  readable_ = readable_ || (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP)) != 0;
  writable_ = writable_ || (events & EPOLLOUT) != 0;
  ending_ = ending_ || (events & (EPOLLRDHUP | EPOLLHUP)) != 0;
  error_ = error_ || (events & EPOLLERR) != 0;
  context_.ready.push(*this);
}

bool Link::has_work() const {
  if (wanted_ && unloader_.busy()) return true;
  if (state_ == State::kGreeting || state_ == State::kProving) return readable_;
  return up() && (readable_ || error_ || (writable_ && !writer_.idle()));
}

std::size_t Link::receive(std::size_t& left) {
  const std::size_t landed = wanted_ ? unloader_.collect() : 0;
  return landed + receive_bytes(left);
}

std::size_t Link::receive_bytes(std::size_t& left) {
  if (state_ == State::kDown) return 0;
  if (state_ == State::kDialling) return finish_dial();
  if (error_ && state_ == State::kUp) {
    error_ = false;
    writer_.reap_zero_copy(socket_.get());
    if (Status broken = socket_error(socket_.get(), describe()); !broken.ok()) {
      lose(broken);
      return 1;
    }
  }
  if (!readable_ && !reader_.waiting()) return 0;
  if (state_ == State::kUp) return receive_frames(left);
  if (const Status greeted = go_on_greeting(); !greeted.ok()) lose(greeted);
  return 1;
}

std::size_t Link::receive_frames(std::size_t& left) {
  ReadProgress progress;
  const Status status = reader_.read(socket_.get(), left, ending_, progress);
  left -= std::min(left, progress.work);
  if (progress.drained) readable_ = false;
  if (!status.ok()) lose(status.with_context(describe()));
  return progress.bytes > 0 || !status.ok() ? 1 : 0;
}

std::size_t Link::send(std::size_t& left) {
  // While copies of the last connection are under way not a word: what is held is not known yet.
  if (!up() || !writable_ || writer_.idle() || unloader_.draining()) return 0;
  WriteProgress progress;
  const Status status = writer_.flush(socket_.get(), left, progress);
  left -= std::min(left, progress.work);
  if (progress.blocked) writable_ = false;
  if (!status.ok()) lose(status.with_context(describe()));
  return progress.work > 0 || !status.ok() ? 1 : 0;
}

}  // namespace mkernel::transport::tcp
