#include "daemon/rpc/control_service.h"

#include <grpcpp/grpcpp.h>
#include <pwd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <future>
#include <utility>

#include "daemon/rpc/control_rows.h"
#include "daemon/rpc/grpc_status.h"
#include "daemon/rpc/topology_message.h"
#include "daemon/topology/placement.h"
#include "mkernel/v1/control.grpc.pb.h"
#include "proto/abi/version.h"

namespace mkernel::rpc {
namespace {

constexpr std::chrono::seconds kAnswerWithin{5};
/// A reading that is under way, and the one that begins after it.
constexpr std::chrono::seconds kReloadWithin{12};
constexpr std::chrono::milliseconds kLook{20};

void fill_status(ControlBackend& backend, v1::Status& status) {
  const DaemonSnapshot daemon = backend.daemon();
  const auto peers = backend.peers();
  status.set_abi(abi::kVersion);
  status.set_uptime_seconds(daemon.uptime_seconds);
  for (const std::string& transport : daemon.transports) status.add_transports(transport);
  status.set_proxies(daemon.proxies);
  const session::Counts counts = backend.inspector().counts();
  status.set_sessions(static_cast<std::uint32_t>(counts.sessions));
  status.set_groups(static_cast<std::uint32_t>(counts.groups));
  const auto alive =
      std::count_if(peers.begin(), peers.end(), [](const auto& p) { return p.state == "alive"; });
  status.set_peers(static_cast<std::uint32_t>(peers.size()));
  status.set_peers_alive(static_cast<std::uint32_t>(alive));
  status.set_healthy(daemon.problems.empty());
  for (const std::string& problem : daemon.problems) status.add_reasons(problem);
  status.set_log_lines_dropped_total(daemon.log_lines_dropped_total);
  status.set_log_lines_left_out_total(daemon.log_lines_left_out_total);
  for (const auto& [thread, times] : daemon.slices) {
    status.add_slices()->set_thread(thread);
    fill(times, *status.mutable_slices(status.slices_size() - 1));
  }
  fill_worst(status);
}

LinkChange to_change(const v1::LinkRequest& request) {
  LinkChange change;
  if (request.has_bandwidth_gbytes()) change.bandwidth_gbytes = request.bandwidth_gbytes();
  if (request.has_latency_us()) change.latency = std::chrono::microseconds(request.latency_us());
  if (request.has_drop()) change.drop = request.drop();
  if (request.has_duplicate()) change.duplicate = request.duplicate();
  if (request.has_reorder()) change.reorder = request.reorder();
  if (request.has_down()) change.down = request.down();
  if (request.has_rail()) change.rail = request.rail();
  return change;
}

std::string user_name(std::uint32_t uid) {
  std::vector<char> storage(1 << 16);
  passwd entry{};
  passwd* found = nullptr;
  ::getpwuid_r(uid, &entry, storage.data(), storage.size(), &found);
  return found == nullptr ? "" : found->pw_name;
}

}  // namespace

class ControlService::Impl final : public v1::Control::Service {
 public:
  Impl(boost::asio::io_context& io, ControlBackend& backend) : io_(io), backend_(backend) {}

  ~Impl() override {
    listener_.reset();
    if (server_ == nullptr) return;
    // Requests that wait for the control thread (which may be the one that runs this) are cut short.
    server_->Shutdown(std::chrono::system_clock::now());
  }

  Status serve(ControlListener::Bound bound) {
    grpc::ServerBuilder builder;
    door_ = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
        grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
    builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MAX_POLLERS, 1);
    builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::CQ_TIMEOUT_MSEC, 60000);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return {StatusCode::kUnavailable, "gRPC's server for mkctl did not start"};
    return listen(std::move(bound));
  }

  Status listen(ControlListener::Bound bound) {
    auto listener = ControlListener::start(std::move(bound), [this](ipc::UniqueFd client) {
      grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters taken;
      taken.fd = client.release();
      door_->HandleNewConnection(&taken);
    });
    if (!listener.ok()) return listener.status();
    listener_ = std::move(listener).value();
    return {};
  }

  base::SocketFile file() const { return listener_->file(); }

  grpc::Status GetStatus(grpc::ServerContext* context, const v1::StatusRequest*,
                         v1::StatusReply* reply) override {
    return answer(context, reply, [](ControlBackend& backend, v1::StatusReply& r) {
      fill_status(backend, *r.mutable_status());
    });
  }
  grpc::Status ListSessions(grpc::ServerContext* context, const v1::SessionsRequest*,
                            grpc::ServerWriter<v1::SessionsReply>* parts) override {
    return list(context, parts, [](ControlBackend& backend, session::ListCursor& at, v1::SessionsReply& r) {
      auto sessions = backend.inspector().sessions(at);
      backend.add_rates(sessions);
      fill_all(sessions, r.mutable_sessions());
      if (backend.counts_arrived_bytes()) return;
      for (v1::Session& row : *r.mutable_sessions()) {
        row.clear_arrived_bytes_total();
        row.clear_arrived_bytes_per_second();
      }
    });
  }
  grpc::Status ListUsers(grpc::ServerContext* context, const v1::UsersRequest*,
                         v1::UsersReply* reply) override {
    const grpc::Status status = answer(context, reply, [](ControlBackend& backend, v1::UsersReply& r) {
      fill_all(backend.inspector().users(), r.mutable_users());
      const session::NodeUse use = backend.inspector().node_use();
      r.mutable_node()->set_fds(use.fds);
      r.mutable_node()->set_fds_limit(use.fds_limit);
      r.mutable_node()->set_mappings(use.mappings);
      r.mutable_node()->set_mappings_limit(use.mappings_limit);
      r.mutable_node()->set_user_fds(use.user_fds);
      r.mutable_node()->set_user_regions(use.user_regions);
    });
    // On gRPC's thread: the user database may be on a server that is slow.
    for (v1::User& row : *reply->mutable_users()) row.set_name(user_name(row.uid()));
    return status;
  }
  grpc::Status ListPeers(grpc::ServerContext* context, const v1::PeersRequest*,
                         v1::PeersReply* reply) override {
    return answer(context, reply, [](ControlBackend& backend, v1::PeersReply& r) {
      fill_all(backend.peers(), r.mutable_peers());
      const DaemonSnapshot here = backend.daemon();
      r.set_transport(
          cluster::rails_text(here.proxies, here.transports.empty() ? "none" : here.transports.front()));
      r.mutable_ports()->Add(here.ports.begin(), here.ports.end());
    });
  }
  grpc::Status ListGroups(grpc::ServerContext* context, const v1::GroupsRequest*,
                          grpc::ServerWriter<v1::GroupsReply>* parts) override {
    return list(context, parts, [](ControlBackend& backend, session::ListCursor& at, v1::GroupsReply& r) {
      fill_all(backend.inspector().groups(at), r.mutable_groups());
    });
  }
  grpc::Status ListRegions(grpc::ServerContext* context, const v1::RegionsRequest*,
                           grpc::ServerWriter<v1::RegionsReply>* parts) override {
    return list(context, parts, [](ControlBackend& backend, session::ListCursor& at, v1::RegionsReply& r) {
      fill_all(backend.inspector().regions(at), r.mutable_regions());
    });
  }
  grpc::Status ListChannels(grpc::ServerContext* context, const v1::ChannelsRequest* request,
                            grpc::ServerWriter<v1::ChannelsReply>* parts) override {
    const auto next = [all = request->all(), node = std::string()](
                          ControlBackend& backend, session::ListCursor& at, v1::ChannelsReply& r) mutable {
      if (r.has_daemon()) node = r.daemon().node();
      fill_all(backend.inspector().channels(all, at), r.mutable_channels());
      if (backend.counts_arrived_bytes()) return;
      for (v1::Channel& row : *r.mutable_channels()) {
        if (row.peer_node() != node) row.clear_arrived_bytes_total();
      }
    };
    return list(context, parts, next);
  }
  grpc::Status ListDevices(grpc::ServerContext* context, const v1::DevicesRequest*,
                           v1::DevicesReply* reply) override {
    return answer(context, reply, [devices = backend_.devices()](ControlBackend&, v1::DevicesReply& r) {
      fill_ports(devices, r);
    });
  }
  grpc::Status GetTopology(grpc::ServerContext* context, const v1::TopologyRequest*,
                           v1::TopologyReply* reply) override {
    auto machine = backend_.machine();
    if (!machine.ok()) return to_grpc(machine.status());
    return answer(
        context, reply,
        [machine = std::move(machine).value(), devices = backend_.devices()](ControlBackend& backend,
                                                                             v1::TopologyReply& r) {
          const topology::Node node = topology::make_node(machine, devices, backend.chosen_ports());
          fill(node, topology::place(node), *r.mutable_topology());
          r.mutable_topology()->set_rails(static_cast<std::uint32_t>(backend.daemon().ports.size()));
        });
  }
  grpc::Status GetConfig(grpc::ServerContext* context, const v1::ConfigRequest*,
                         v1::ConfigReply* reply) override {
    return answer(context, reply,
                  [](ControlBackend& backend, v1::ConfigReply& r) { r.set_config(backend.config_text()); });
  }

  grpc::Status SetLink(grpc::ServerContext* context, const v1::LinkRequest* request,
                       v1::LinkReply* reply) override {
    auto done = std::make_shared<std::promise<Result<transport::LinkShape>>>();
    auto outcome = done->get_future();
    const auto ask = [done, peer = request->peer(), change = to_change(*request)](ControlBackend& backend,
                                                                                  auto&) {
      backend.set_link(peer, change,
                       [done](Result<transport::LinkShape> shape) { done->set_value(std::move(shape)); });
    };
    if (const grpc::Status asked = answer(context, reply, ask); !asked.ok()) return asked;
    if (outcome.wait_for(kAnswerWithin) != std::future_status::ready) {
      return {grpc::StatusCode::DEADLINE_EXCEEDED, "the proxies did not answer within 5 s"};
    }
    const Result<transport::LinkShape> shape = outcome.get();
    if (!shape.ok()) return to_grpc(shape.status());
    reply->mutable_link()->set_peer(request->peer());
    fill(shape.value(), *reply->mutable_link());
    return grpc::Status::OK;
  }

  grpc::Status Reload(grpc::ServerContext* context, const v1::ReloadRequest*,
                      v1::ReloadReply* reply) override {
    auto done = std::make_shared<std::promise<Result<ReloadSnapshot>>>();
    auto outcome = done->get_future();
    const auto ask = [done](ControlBackend& backend, auto&) {
      backend.reload([done](Result<ReloadSnapshot> reloaded) { done->set_value(std::move(reloaded)); });
    };
    if (const grpc::Status asked = answer(context, reply, ask); !asked.ok()) return asked;
    const auto end = std::chrono::steady_clock::now() + kReloadWithin;
    while (outcome.wait_for(kLook) != std::future_status::ready) {
      if (context->IsCancelled()) return {grpc::StatusCode::CANCELLED, "the caller went away"};
      if (std::chrono::steady_clock::now() > end) {
        return {grpc::StatusCode::DEADLINE_EXCEEDED, "the configuration file was not read in time"};
      }
    }
    const Result<ReloadSnapshot> reloaded = outcome.get();
    if (!reloaded.ok()) return to_grpc(reloaded.status());
    for (const auto& line : reloaded.value().applied) reply->add_applied(line);
    for (const auto& line : reloaded.value().needs_restart) reply->add_needs_restart(line);
    for (const auto& line : reloaded.value().notes) reply->add_notes(line);
    return grpc::Status::OK;
  }

 private:
  /// Runs `fill_in(backend, reply)` on the control thread, behind the daemon's own lines, and waits for it.
  template <typename Reply, typename FillIn>
  grpc::Status answer(grpc::ServerContext* context, Reply* reply, FillIn fill_in) {
    return ask(context, reply, [fill_in = std::move(fill_in)](ControlBackend& backend, Reply& r) mutable {
      fill(backend.daemon(), *r.mutable_daemon());
      fill_in(backend, r);
    });
  }

  /// Writes a list in parts, each of which `next(backend, cursor, reply)` fills on the control thread.
  template <typename Reply, typename Next>
  grpc::Status list(grpc::ServerContext* context, grpc::ServerWriter<Reply>* parts, Next next) {
    struct List {
      Next next;
      session::ListCursor at;
      bool begun = false;
    };
    const auto list = std::make_shared<List>(List{std::move(next), {}, false});
    while (!list->at.end) {
      Reply part;
      const grpc::Status status = ask(context, &part, [list](ControlBackend& backend, Reply& r) {
        if (!std::exchange(list->begun, true)) fill(backend.daemon(), *r.mutable_daemon());
        list->next(backend, list->at, r);
      });
      if (!status.ok()) return status;
      if (!parts->Write(part)) return {grpc::StatusCode::CANCELLED, "the caller went away"};
    }
    return grpc::Status::OK;
  }

  /// Runs `fill_in(backend, reply)` on the control thread and waits for it. The reply is filled in a copy
  /// that the posted work owns, so an answer that comes too late touches nothing of the request.
  template <typename Reply, typename FillIn>
  grpc::Status ask(grpc::ServerContext* context, Reply* reply, FillIn fill_in) {
    auto promise = std::make_shared<std::promise<Reply>>();
    auto result = promise->get_future();
    boost::asio::post(
        io_, [this, life = std::weak_ptr(life_), promise, fill_in = std::move(fill_in)]() mutable {
          Reply filled;
          if (life.expired())
            return promise->set_value(std::move(filled));  // the service is gone, and `this` with it
          fill_in(backend_, filled);
          promise->set_value(std::move(filled));
        });
    const auto end = std::chrono::steady_clock::now() + kAnswerWithin;
    while (result.wait_for(kLook) != std::future_status::ready) {
      if (context->IsCancelled()) return {grpc::StatusCode::CANCELLED, "the caller went away"};
      if (std::chrono::steady_clock::now() > end) {
        return {grpc::StatusCode::DEADLINE_EXCEEDED, "the daemon's control thread did not answer within 5 s"};
      }
    }
    *reply = result.get();
    return grpc::Status::OK;
  }

  boost::asio::io_context& io_;
  ControlBackend& backend_;
  const std::shared_ptr<int> life_ = std::make_shared<int>();  ///< dies with this, on the control thread
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> door_;  ///< into the server
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<ControlListener> listener_;
};

ControlService::ControlService(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ControlService::~ControlService() = default;

Result<std::unique_ptr<ControlService>> ControlService::start(boost::asio::io_context& io,
                                                              ControlBackend& backend,
                                                              const std::string& path) {
  auto bound = ControlListener::bind(path);
  if (!bound.ok()) return bound.status();
  auto impl = std::make_unique<Impl>(io, backend);
  MK_RETURN_IF_ERROR(impl->serve(std::move(bound).value()));
  return std::unique_ptr<ControlService>(new ControlService(std::move(impl)));
}

base::SocketFile ControlService::file() const {
  return impl_->file();
}

Status ControlService::listen_again(ControlListener::Bound bound) {
  return impl_->listen(std::move(bound));
}

}  // namespace mkernel::rpc
