// NOTES: reactors run on gRPC's threads and never wait for the control thread: what they have to say is
// posted to it, and a cancelled call finishes by itself. So the control thread may block in the destructor
// until all have ended.
#include "daemon/rpc/grpc_wire.h"

#include <grpcpp/grpcpp.h>

#include <boost/asio/post.hpp>
#include <condition_variable>
#include <deque>
#include <fstream>
#include <mutex>
#include <set>
#include <sstream>
#include <utility>

#include "daemon/base/port_holder.h"
#include "daemon/rpc/grpc_status.h"
#include "daemon/transport/transport.h"
#include "mkernel/v1/peer.grpc.pb.h"

namespace mkernel::rpc {
namespace {

/// The largest message is a contribution of half a KiB; a status text and a name are not much more.
constexpr int kMaxMessageBytes = 64 * 1024;
static_assert(transport::kMaxMessageBytes + 1024 <= kMaxMessageBytes, "a transport's message and its frame");
constexpr std::chrono::milliseconds kFarewell{500};

/// The way from gRPC's threads to the control thread. `handler` belongs to the control thread.
struct Outlet {
  explicit Outlet(boost::asio::io_context& context) : io(context) {}

  static void message(const std::shared_ptr<Outlet>& self, v1::PeerMessage message) {
    boost::asio::post(self->io, [self, message = std::move(message)]() mutable {
      if (self->handler.message) self->handler.message(std::move(message));
    });
  }
  /// `call` is let go of on the control thread, not here: gRPC cannot lose its last channel on a thread of
  /// its own.
  static void closed(std::shared_ptr<Outlet> self, Status why, std::shared_ptr<void> call) {
    auto& io = self->io;
    boost::asio::post(io, [self = std::move(self), why = std::move(why), call = std::move(call)] {
      const StreamHandler last = std::exchange(self->handler, {});
      if (last.closed) last.closed(why);
    });
  }

  boost::asio::io_context& io;
  StreamHandler handler;
};

/// Counts what gRPC still holds.
class Gate {
 public:
  void enter() {
    const std::lock_guard lock(mutex_);
    ++inside_;
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    if (--inside_ == 0) empty_.notify_all();
  }
  bool wait_empty(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    return empty_.wait_for(lock, limit, [this] { return inside_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable empty_;
  std::size_t inside_ = 0;
};

/// One call. Base is the client's or the server's reactor of gRPC; both have the same read and write
/// operations.
template <typename Base>
class Call : public Base {
 public:
  Call(std::shared_ptr<Outlet> outlet, std::shared_ptr<Gate> gate)
      : outlet_(std::move(outlet)), gate_(std::move(gate)) {
    gate_->enter();
  }

  void send(v1::PeerMessage message) {
    const std::lock_guard lock(mutex_);
    if (ending_) return;
    outbox_.push_back(std::move(message));
    if (outbox_.size() == 1) this->StartWrite(&outbox_.front());
  }
  void read() {
    const std::lock_guard lock(mutex_);
    if (!ending_) this->StartRead(&inbox_);
  }
  /// Ends the call after what has been sent.
  void end(const Status& why) {
    {
      const std::lock_guard lock(mutex_);
      if (std::exchange(ending_, true)) return;
      why_ = why;
      if (!outbox_.empty()) return;  // OnWriteDone() finishes
    }
    finish(why);
  }

  void OnReadDone(bool ok) override {
    if (ok) return Outlet::message(outlet_, std::move(inbox_));
    end({});
  }
  void OnWriteDone(bool ok) override {
    {
      const std::lock_guard lock(mutex_);
      outbox_.pop_front();
      if (!ok) {
        outbox_.clear();
        ending_ = true;
      }
      if (!outbox_.empty()) return this->StartWrite(&outbox_.front());
      if (!ending_) return;
    }
    finish(why_);
  }

 protected:
  /// Called once, with no write under way and without the lock: gRPC may end the call, and all be gone, at
  /// once.
  virtual void finish(const Status& why) = 0;
  /// The last thing that happens to a call: gRPC has let go of it. This may be destroyed inside.
  void done(const Status& why, std::shared_ptr<void> self) {
    const std::shared_ptr<Gate> gate = gate_;
    Outlet::closed(outlet_, why, std::move(self));
    gate->leave();
  }

  std::mutex mutex_;
  const std::shared_ptr<Outlet> outlet_;

 private:
  const std::shared_ptr<Gate> gate_;
  std::deque<v1::PeerMessage> outbox_;  ///< the front one is being written
  v1::PeerMessage inbox_;
  bool ending_ = false;
  Status why_;
};

using ClientBase = grpc::ClientBidiReactor<v1::PeerMessage, v1::PeerMessage>;
using ServerBase = grpc::ServerBidiReactor<v1::PeerMessage, v1::PeerMessage>;

/// The hold keeps gRPC from ending the call while the control thread may still write.
class DialledCall final : public Call<ClientBase> {
 public:
  DialledCall(std::shared_ptr<Outlet> outlet, std::shared_ptr<Gate> gate,
              std::shared_ptr<grpc::Channel> channel)
      : Call(std::move(outlet), std::move(gate)),
        channel_(std::move(channel)),
        stub_(v1::Peer::NewStub(channel_)) {}

  void begin(std::shared_ptr<DialledCall> self) {
    self_ = std::move(self);
    stub_->async()->Link(&context_, this);
    AddHold();
    StartCall();
  }
  void cancel() { context_.TryCancel(); }
  void OnDone(const grpc::Status& status) override {
    done(status.ok() ? Status(StatusCode::kUnavailable, "the peer closed the connection") : from_grpc(status),
         std::exchange(self_, nullptr));
  }

 private:
  void finish(const Status&) override {
    StartWritesDone();
    RemoveHold();
  }

  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Peer::Stub> stub_;
  grpc::ClientContext context_;
  std::shared_ptr<DialledCall> self_;
};

class AcceptedCall final : public Call<ServerBase> {
 public:
  using Call::Call;
  void begin(std::shared_ptr<AcceptedCall> self) { self_ = std::move(self); }
  void cancel() {}  // finishing an accepted call waits for nobody
  void OnCancel() override { end({StatusCode::kCancelled, "the peer is gone"}); }
  void OnDone() override {
    done({StatusCode::kUnavailable, "the peer closed the connection"}, std::exchange(self_, nullptr));
  }

 private:
  void finish(const Status& why) override { Finish(to_grpc(why)); }
  std::shared_ptr<AcceptedCall> self_;
};

template <typename CallType>
class GrpcStream final : public PeerStream {
 public:
  GrpcStream(std::shared_ptr<Outlet> outlet, std::shared_ptr<CallType> call, std::string remote)
      : outlet_(std::move(outlet)), call_(std::move(call)), remote_(std::move(remote)) {}
  ~GrpcStream() override { close({StatusCode::kUnavailable, "the stream was given up"}); }

  void start(StreamHandler handler) override { outlet_->handler = std::move(handler); }
  void send(v1::PeerMessage message) override { call_->send(std::move(message)); }
  void read() override { call_->read(); }
  void close(const Status& why) override {
    finish(why);
    call_->cancel();
  }
  void finish(const Status& why) override {
    outlet_->handler = {};
    call_->end(why);
  }
  std::string remote_host() const override { return remote_; }

 private:
  const std::shared_ptr<Outlet> outlet_;
  const std::shared_ptr<CallType> call_;
  const std::string remote_;
};

/// "ipv4:10.0.0.7:4711" -> "10.0.0.7", "ipv6:%5Bfd00::7%5D:4711" or "ipv6:[fd00::7]:4711" -> "[fd00::7]".
std::string host_of(std::string peer) {
  const auto first = peer.find(':'), last = peer.rfind(':');
  if (first == std::string::npos || first == last) return {};
  std::string host = peer.substr(first + 1, last - first - 1);
  for (const auto& [code, sign] : {std::pair{"%5B", "["}, std::pair{"%5D", "]"}}) {
    if (const auto at = host.find(code); at != std::string::npos) host.replace(at, 3, sign);
  }
  return host;
}

Result<std::string> read_file(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (!(text << file.rdbuf())) return Status(StatusCode::kNotFound, "cannot read TLS file " + path);
  return text.str();
}

class GrpcWire final : public PeerWire, private v1::Peer::CallbackService {
 public:
  GrpcWire(boost::asio::io_context& io, std::chrono::milliseconds dial_timeout)
      : io_(io), dial_timeout_(dial_timeout) {}

  ~GrpcWire() override {
    if (!dialled_gate_->wait_empty(kFarewell)) {
      for (const auto& weak : dialled_) {
        if (const auto call = weak.lock()) call->cancel();
      }
    }
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    for (Gate* gate : {dialled_gate_.get(), accepted_gate_.get()}) gate->wait_empty(std::chrono::hours(1));
  }

  Status load(const TlsFiles& tls) {
    if (tls.cert.empty()) return {};
    const auto cert = read_file(tls.cert), key = read_file(tls.key), ca = read_file(tls.ca);
    for (const auto* file : {&cert, &key, &ca}) MK_RETURN_IF_ERROR(file->status());
    grpc::SslServerCredentialsOptions server(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    server.pem_root_certs = ca.value();
    server.pem_key_cert_pairs.push_back({key.value(), cert.value()});
    server_credentials_ = grpc::SslServerCredentials(server);
    client_credentials_ = grpc::SslCredentials({ca.value(), key.value(), cert.value()});
    server_name_ = tls.server_name;
    return {};
  }

  Result<std::string> listen(const std::string& address, Accept accept) override {
    const auto colon = address.rfind(':');
    if (colon == std::string::npos)
      return Status(StatusCode::kInvalidArgument, address + " is not host:port");
    accept_ = std::make_shared<Accept>(std::move(accept));
    grpc::ServerBuilder builder;
    // Without this two daemons could share one port, and each would get half of the calls.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
    int port = 0;
    builder.AddListeningPort(address, server_credentials_, &port);
    builder.RegisterService(static_cast<v1::Peer::CallbackService*>(this));
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port == 0) {
      const auto wanted = static_cast<std::uint16_t>(std::strtoul(address.c_str() + colon + 1, nullptr, 10));
      const std::string holder = wanted == 0 ? "" : base::port_holder(wanted);
      if (holder.empty()) return Status(StatusCode::kUnavailable, "cannot listen for peers on " + address);
      return Status(StatusCode::kAlreadyExists, "cannot listen for peers on " + address + holder);
    }
    return address.substr(0, colon + 1) + std::to_string(port);
  }

  std::shared_ptr<PeerStream> dial(const std::string& address) override {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // each dial is a fresh attempt
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, static_cast<int>(dial_timeout_.count()));
    arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
    if (!server_name_.empty()) arguments.SetSslTargetNameOverride(server_name_);
    const auto outlet = std::make_shared<Outlet>(io_);
    const auto call = std::make_shared<DialledCall>(
        outlet, dialled_gate_, grpc::CreateCustomChannel(address, client_credentials_, arguments));
    std::erase_if(dialled_, [](const auto& weak) { return weak.expired(); });
    dialled_.push_back(call);
    call->begin(call);
    return std::make_shared<GrpcStream<DialledCall>>(outlet, call, std::string());
  }

 private:
  ServerBase* Link(grpc::CallbackServerContext* context) override {
    const auto outlet = std::make_shared<Outlet>(io_);
    const auto call = std::make_shared<AcceptedCall>(outlet, accepted_gate_);
    call->begin(call);
    auto stream = std::make_shared<GrpcStream<AcceptedCall>>(outlet, call, host_of(context->peer()));
    boost::asio::post(io_, [weak = std::weak_ptr(accept_), stream] {
      if (const auto accept = weak.lock()) (*accept)(stream);
    });
    return call.get();
  }

  boost::asio::io_context& io_;
  const std::chrono::milliseconds dial_timeout_;
  const std::shared_ptr<Gate> dialled_gate_ = std::make_shared<Gate>();
  const std::shared_ptr<Gate> accepted_gate_ = std::make_shared<Gate>();
  std::shared_ptr<grpc::ServerCredentials> server_credentials_ = grpc::InsecureServerCredentials();
  std::shared_ptr<grpc::ChannelCredentials> client_credentials_ = grpc::InsecureChannelCredentials();
  std::string server_name_;
  std::shared_ptr<Accept> accept_;
  std::vector<std::weak_ptr<DialledCall>> dialled_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

Result<std::unique_ptr<PeerWire>> make_grpc_wire(boost::asio::io_context& io, const TlsFiles& tls,
                                                 std::chrono::milliseconds dial_timeout) {
  auto wire = std::make_unique<GrpcWire>(io, dial_timeout);
  MK_RETURN_IF_ERROR(wire->load(tls));
  return std::unique_ptr<PeerWire>(std::move(wire));
}

}  // namespace mkernel::rpc
