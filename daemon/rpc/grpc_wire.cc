#include "daemon/rpc/grpc_wire.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <boost/asio/post.hpp>
#include <utility>

#include "daemon/base/aside.h"
#include "daemon/base/port_holder.h"
#include "daemon/cluster/local_end.h"
#include "daemon/cluster/peer_acceptor.h"
#include "daemon/config/rules.h"
#include "daemon/rpc/grpc_call.h"
#include "daemon/rpc/grpc_status.h"
#include "daemon/transport/transport.h"

namespace mkernel::rpc {
namespace {

/// The largest message is a contribution of half a KiB; a status text and a name are not much more.
constexpr int kMaxMessageBytes = 64 * 1024;
static_assert(transport::kMaxMessageBytes + 1024 <= kMaxMessageBytes, "a transport's message and its frame");
constexpr std::chrono::milliseconds kFarewell{500};
/// Of a connection on which nobody says anything: for TLS and HTTP/2 to begin, and without a call.
constexpr std::chrono::milliseconds kSilence{5000};
/// For a file or a name of the configuration, at the start.
constexpr std::chrono::seconds kLookUpWithin{30};

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

std::uint16_t port_of(const std::string& address) {
  return static_cast<std::uint16_t>(std::strtoul(address.c_str() + address.rfind(':') + 1, nullptr, 10));
}

/// Any thread but the control thread: may look into the kernel's tables. `peer` is gRPC's name of the other
/// end.
cluster::RemoteEnd remote_end(const std::string& peer, const grpc::AuthContext* context, bool tls,
                              std::uint16_t own_port, cluster::Side side) {
  cluster::RemoteEnd end;
  end.host = host_of(peer);
  end.certified = tls;
  if (tls && context != nullptr) end.names = certified_names(*context);
  if (!tls) end.trust = cluster::check_local_end(end.host, port_of(peer), own_port, side);
  return end;
}

using Endpoints = cluster::PeerAcceptor::Endpoints;
using ClientBase = grpc::ClientBidiReactor<v1::PeerMessage, v1::PeerMessage>;
using ServerBase = grpc::ServerBidiReactor<v1::PeerMessage, v1::PeerMessage>;

/// The hold keeps gRPC from ending the call while the control thread may still write.
class DialledCall final : public Call<ClientBase> {
 public:
  DialledCall(std::shared_ptr<Outlet> outlet, std::shared_ptr<Gate> gate,
              std::shared_ptr<grpc::Channel> channel, bool tls)
      : Call(std::move(outlet), std::move(gate)),
        tls_(tls),
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
  void before_first() override {
    const auto context = tls_ ? context_.auth_context() : nullptr;
    outlet_->set_remote(remote_end(context_.peer(), context.get(), tls_, 0, cluster::Side::kDialled));
  }

  const bool tls_;
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
class GrpcStream final : public cluster::PeerStream {
 public:
  GrpcStream(std::shared_ptr<Outlet> outlet, std::shared_ptr<CallType> call)
      : outlet_(std::move(outlet)), call_(std::move(call)) {}
  ~GrpcStream() override { close({StatusCode::kUnavailable, "the stream was given up"}); }

  void start(cluster::StreamHandler handler) override { outlet_->set_handler(std::move(handler)); }
  void send(v1::PeerMessage message) override { call_->send(std::move(message)); }
  bool full() override { return call_->full(); }
  void read(std::size_t ahead) override {
    Outlet::want(outlet_);
    call_->read(ahead);
  }
  void close(const Status& why) override {
    finish(why);
    call_->cancel();
  }
  void finish(const Status& why) override {
    outlet_->clear_handler();
    call_->end(why);
  }
  cluster::RemoteEnd remote() const override { return outlet_->remote(); }

 private:
  const std::shared_ptr<Outlet> outlet_;
  const std::shared_ptr<CallType> call_;
};

class GrpcWire final : public cluster::PeerWire, private v1::Peer::CallbackService {
 public:
  GrpcWire(boost::asio::io_context& io, const TlsFiles& tls, Credentials credentials,
           std::chrono::milliseconds dial_timeout, Result<Endpoints> endpoints)
      : io_(io),
        tls_(tls.enabled()),
        server_name_(tls.server_name),
        dial_timeout_(dial_timeout),
        credentials_(std::move(credentials)),
        endpoints_(std::move(endpoints)) {}

  ~GrpcWire() override {
    if (!dialled_gate_->wait_empty(kFarewell)) {
      for (const auto& weak : dialled_) {
        if (const auto call = weak.lock()) call->cancel();
      }
    }
    acceptor_.reset();
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    for (Gate* gate : {dialled_gate_.get(), accepted_gate_.get()}) gate->wait_empty(std::chrono::hours(1));
  }

  Result<std::string> listen(const std::string& address, Accept accept) override {
    const auto colon = address.rfind(':');
    if (colon == std::string::npos)
      return Status(StatusCode::kInvalidArgument, address + " is not host:port");
    cluster::AcceptorLimits limits;
    limits.patience = kSilence;
    auto acceptor = endpoints_.ok() ? cluster::PeerAcceptor::bind(io_, endpoints_.value(), tls_, limits)
                                    : Result<std::unique_ptr<cluster::PeerAcceptor>>(endpoints_.status());
    if (!acceptor.ok()) {
      const std::uint16_t wanted = port_of(address);
      const std::string holder = wanted == 0 ? "" : base::port_holder(wanted);
      if (!holder.empty()) {
        return Status(StatusCode::kAlreadyExists, "cannot listen for peers on " + address + holder);
      }
      return Status(StatusCode::kUnavailable,
                    "cannot listen for peers on " + address + ": " + acceptor.status().text());
    }
    if (server_ == nullptr) MK_RETURN_IF_ERROR(start_server(std::move(accept)));
    acceptor_ = std::move(acceptor).value();
    port_ = acceptor_->port();
    acceptor_->start([this](ipc::UniqueFd connection) {
      grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters taken;
      taken.fd = connection.release();
      door_->HandleNewConnection(&taken);
    });
    return address.substr(0, colon + 1) + std::to_string(port_);
  }

  void stop_listening() override { acceptor_.reset(); }

  std::shared_ptr<cluster::PeerStream> dial(const std::string& address) override {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // each dial is a fresh attempt
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, static_cast<int>(dial_timeout_.count()));
    arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
    if (!server_name_.empty()) arguments.SetSslTargetNameOverride(server_name_);
    const auto outlet = std::make_shared<Outlet>(io_);
    const auto call = std::make_shared<DialledCall>(
        outlet, dialled_gate_,
        grpc::CreateCustomChannel(config::pinned(address), credentials_.client, arguments), tls_);
    std::erase_if(dialled_, [](const auto& weak) { return weak.expired(); });
    dialled_.push_back(call);
    call->begin(call);
    return std::make_shared<GrpcStream<DialledCall>>(outlet, call);
  }

 private:
  /// gRPC's server, which does not listen: it gets connections from the acceptor.
  Status start_server(Accept accept) {
    using Kind = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
    accept_ = std::make_shared<Accept>(std::move(accept));
    grpc::ServerBuilder builder;
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, static_cast<int>(kSilence.count()));
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, static_cast<int>(kSilence.count()));
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 2);  // a peer has one call on a connection
    builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
    door_ = builder.experimental().AddExternalConnectionAcceptor(Kind::FROM_FD, credentials_.server);
    builder.RegisterService(static_cast<v1::Peer::CallbackService*>(this));
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return {StatusCode::kUnavailable, "gRPC's server did not start"};
    return {};
  }

  ServerBase* Link(grpc::CallbackServerContext* context) override {
    const auto outlet = std::make_shared<Outlet>(io_);
    const auto call = std::make_shared<AcceptedCall>(outlet, accepted_gate_);
    call->begin(call);
    const auto certificate = tls_ ? context->auth_context() : nullptr;
    outlet->set_remote(remote_end(context->peer(), certificate.get(), tls_, port_, cluster::Side::kAccepted));
    auto stream = std::make_shared<GrpcStream<AcceptedCall>>(outlet, call);
    boost::asio::post(io_, [weak = std::weak_ptr(accept_), stream] {
      if (const auto accept = weak.lock()) (*accept)(stream);
    });
    return call.get();
  }

  boost::asio::io_context& io_;
  const bool tls_;
  const std::string server_name_;
  const std::chrono::milliseconds dial_timeout_;
  const Credentials credentials_;
  const Result<Endpoints> endpoints_;   ///< to listen at
  std::atomic<std::uint16_t> port_{0};  ///< that is listened on; 0 for calls that come before it is known
  const std::shared_ptr<Gate> dialled_gate_ = std::make_shared<Gate>();
  const std::shared_ptr<Gate> accepted_gate_ = std::make_shared<Gate>();
  std::shared_ptr<Accept> accept_;
  std::vector<std::weak_ptr<DialledCall>> dialled_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> door_;  ///< into the server
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<cluster::PeerAcceptor> acceptor_;
};

}  // namespace

Result<std::unique_ptr<cluster::PeerWire>> make_grpc_wire(boost::asio::io_context& io, const TlsFiles& tls,
                                                          std::chrono::milliseconds dial_timeout,
                                                          const std::string& listen) {
  auto credentials = base::wait_aside_for<Credentials>(kLookUpWithin, "reading the files of peers.tls",
                                                       [tls] { return make_credentials(tls); });
  if (!credentials.ok()) return credentials.status();
  auto endpoints = base::wait_aside_for<Endpoints>(
      kLookUpWithin, "looking up " + listen, [listen] { return cluster::PeerAcceptor::look_up(listen); });
  return std::unique_ptr<cluster::PeerWire>(std::make_unique<GrpcWire>(
      io, tls, std::move(credentials).value(), dial_timeout, std::move(endpoints)));
}

}  // namespace mkernel::rpc
