#include "daemon/session/session_server.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <bit>
#include <boost/asio/post.hpp>
#include <boost/system/system_error.hpp>
#include <utility>

#include "daemon/base/aside.h"
#include "daemon/session/gather.h"

namespace mkernel::session {
namespace {

constexpr std::chrono::milliseconds kAcceptPause{100};  ///< when no fd is left
constexpr std::chrono::milliseconds kDrainLook{5};  ///< between looks at the sessions' operations in flight
/// Connections above limits.max_sessions that may wait for the answer to their hello.
constexpr std::size_t kWaitingRoom = 64;
/// For the session socket, and the name service that knows its group.
constexpr std::chrono::seconds kOpenWithin{30};
/// Users that one look names of those whose lines were left out.
constexpr std::size_t kNamedUsers = 8;

}  // namespace

SessionServer::SessionServer(boost::asio::io_context& io, const ServerOptions& options,
                             std::vector<dataplane::Proxy*> proxies)
    : listener_options_(options.listener),
      services_{
          io,
          options.node_name,
          options.boot_id,
          static_cast<std::uint32_t>(std::countr_zero(options.ring_slots)),
          options.limits,
          std::move(proxies),
          Accounts(options.node_name, options.limits, options.users, options.budget.value_or(NodeBudget{}))},
      measure_budget_(!options.budget),
      acceptor_(io),
      timer_(io) {
  services_.gpu_major = options.gpu_major;
  services_.rails_near = options.rails_near;
  services_.session_count = [this] { return introduced_count(); };
  services_.find_session = [this](dataplane::SessionId id) { return find(id); };
  services_.uid_of = [this](dataplane::SessionId id) -> std::optional<std::uint32_t> {
    const Session* session = find(id);
    if (session == nullptr) return std::nullopt;
    return session->uid();
  };
  services_.session_done = [this](dataplane::SessionId id) { reap(id); };
  services_.group_closed = [] {};
}

SessionServer::~SessionServer() {
  services_.opener.reset();
  services_.door->close();
  acceptor_.close();
  services_.undertaker->close_any(listener_.release());
}

Status SessionServer::start(GroupCoordinator& coordinator) {
  services_.coordinator = &coordinator;
  auto listener =
      base::wait_aside_for<Listener>(kOpenWithin, "opening " + listener_options_.path,
                                     [options = listener_options_] { return open_listener(options); });
  if (!listener.ok()) return listener.status();
  listener_ = std::move(listener).value();
  acceptor_.assign(ipc::UniqueFd(::dup(listener_.fd())).release());
  if (measure_budget_) services_.accounts.set_budget(NodeBudget::of_this_process());
  wait_for_clients();
  return {};
}

// ---- clients come

void SessionServer::wait_for_clients() {
  if (std::exchange(waits_for_clients_, true)) return;
  acceptor_.async_wait(boost::asio::posix::descriptor_base::wait_read,
                       [this, alive = std::weak_ptr(self_)](const boost::system::error_code& error) {
                         if (alive.expired()) return;
                         waits_for_clients_ = false;
                         if (!error) return take_clients();
                         if (acceptor_.is_open()) wait_for_clients();  // of listen_again()
                       });
}

void SessionServer::listen_again(Listener listener) {
  if (!acceptor_.is_open()) return;
  // Who has connected while the file was there is let in.
  for (auto client = accept_client(listener_.fd()); client.ok(); client = accept_client(listener_.fd())) {
    accept(std::move(client).value());
  }
  listener_ = std::move(listener);
  acceptor_.close();
  acceptor_.assign(ipc::UniqueFd(::dup(listener_.fd())).release());
  wait_for_clients();
}

// Some at a time: whoever floods the socket must not keep the others waiting.
void SessionServer::take_clients() {
  constexpr int kAtOnce = 32;
  const std::weak_ptr alive(self_);
  for (int i = 0; i < kAtOnce; ++i) {
    auto client = accept_client(listener_.fd());
    if (client.ok()) {
      accept(std::move(client).value());
      continue;
    }
    if (client.status().code() == StatusCode::kNotFound) return wait_for_clients();
    if (services_.lines->admit(Undertaker::kNobody)) spdlog::error("{}", client.status().text());
    timer_.expires_after(kAcceptPause);
    return timer_.async_wait([this, alive](const boost::system::error_code& stopped) {
      if (!stopped && !alive.expired()) wait_for_clients();
    });
  }
  boost::asio::post(services_.io, [this, alive] {
    if (!alive.expired() && acceptor_.is_open()) take_clients();
  });
}

void SessionServer::accept(ipc::UniqueFd client) {
  auto identity = identify(client.get());
  if (!identity.ok()) {
    turn_away(client.get(), Undertaker::kNobody, identity.status());
    return services_.undertaker->close_any(std::move(client));
  }
  Account account = services_.accounts.open(identity->uid, identity->gids);
  auto charge = admit(account);
  if (charge.ok()) {
    if (Status full = make_room(account); !full.ok()) charge = std::move(full);
  }
  if (!charge.ok()) {
    turn_away(client.get(), identity->uid, charge.status());
    return services_.undertaker->close_connection(account, std::move(client));
  }
  const dataplane::SessionId id = ++last_session_id_;
  const std::uint32_t uid = identity->uid;
  try {
    auto session = std::make_shared<Session>(services_, id, std::move(client), std::move(identity).value(),
                                             std::move(account), std::move(charge).value());
    sessions_[id] = session;
    session->start();
  } catch (const boost::system::system_error& error) {
    // The reactor takes no more descriptors; the client sees its socket closed.
    sessions_.erase(id);
    if (services_.lines->admit(uid)) spdlog::error("session {} could not start: {}", id, error.what());
  }
}

Result<Charge> SessionServer::admit(const Account& account) {
  const std::string who = "user " + std::to_string(account.user().uid);
  if (!account.rights().limits.may_connect) {
    ++account.user().refusals_total;
    return Status(StatusCode::kPermissionDenied, who + " may not use mkernel on node " + services_.node_name +
                                                     ": " + account.rights().key("may_connect") + " = false");
  }
  if (const Status wrong = Accounts::check_unclosed(account.user()); !wrong.ok()) {
    ++account.user().refusals_total;
    return wrong;
  }
  // The socket and the pidfd.
  auto charge = services_.accounts.take(account, {{Resource::kConnections, 1}, {Resource::kFds, 2}});
  if (charge.ok()) return charge;
  return charge.status().with_context("a connection of " + who);
}

// A hello above limits.max_sessions is refused by its reply; this is for connections that never say one.
Status SessionServer::make_room(const Account& account) {
  const std::size_t room = services_.limits.max_sessions + kWaitingRoom;
  const std::uint64_t held = account.user().ledger.held(Resource::kConnections);
  const Status full =
      services_.accounts.check_shared(account, Resource::kConnections, held - 1, sessions_.size(), room);
  if (full.ok()) return {};
  const std::shared_ptr<Session> silent = sessions_.size() < room ? nullptr : oldest_silent(held);
  if (silent == nullptr) {
    ++account.user().refusals_total;
    return full;
  }
  silent->end({StatusCode::kResourceExhausted,
               silent->describe() + " said no hello, its user has the most connections, and " + full.text()});
  return {};
}

std::shared_ptr<Session> SessionServer::oldest_silent(std::uint64_t held) const {
  std::shared_ptr<Session> oldest;  // ids grow, and the map goes by them
  for (const auto& [id, session] : sessions_) {
    const std::uint64_t of_user = session->user().ledger.held(Resource::kConnections);
    if (session->introduced() || session->ending() || of_user <= held) continue;
    oldest = session;
    held = of_user;
  }
  return oldest;
}

void SessionServer::turn_away(int client, std::uint64_t user, const Status& why) {
  if (services_.lines->admit(user)) spdlog::warn("a client was turned away: {}", why.text());
  Session::say_farewell(client, why);
}

void SessionServer::set_limits(const config::Limits& limits, const config::Users& users) {
  services_.limits = limits;
  services_.accounts.configure(limits, users);
  for (const auto& [id, session] : sessions_) session->refresh_rights();
}

// ---- and go

void SessionServer::reap(dataplane::SessionId session) {
  // Posted: the session is destroyed when none of its own functions is running.
  boost::asio::post(services_.io, [this, alive = std::weak_ptr(self_), session] {
    if (alive.expired()) return;
    sessions_.erase(session);
    services_.group_closed();
    spdlog::debug("session {} has let go of everything, {} left", session, sessions_.size());
    if (stop_ != nullptr && sessions_.empty()) std::exchange(stop_, nullptr)->done();
  });
}

void SessionServer::end_all(const Status& why) {
  for (const auto& [id, session] : sessions_) session->end(why);
}

void SessionServer::stop(std::chrono::milliseconds limit, const Status& why, std::function<void()> done) {
  acceptor_.close();
  services_.undertaker->close_any(listener_.release());
  stop_ = std::make_unique<Stop>(Stop{std::chrono::steady_clock::now() + limit, why, std::move(done)});
  drain();
}

void SessionServer::drain() {
  if (stop_ == nullptr) return;
  if (sessions_.empty()) {
    return boost::asio::post(services_.io,
                             [stop = std::shared_ptr<Stop>(std::move(stop_))] { stop->done(); });
  }
  const auto now = std::chrono::steady_clock::now();
  bool busy = false;
  for (const auto& [id, session] : sessions_) busy = busy || session->active() != 0;
  if (busy && now < stop_->deadline) {
    timer_.expires_after(kDrainLook);
    timer_.async_wait([this, alive = std::weak_ptr(self_)](const boost::system::error_code& error) {
      if (!error && !alive.expired()) drain();
    });
    return;
  }
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(stop_->deadline - now);
  services_.limits.drain = std::max(left, std::chrono::milliseconds(0));
  end_all(stop_->why);
}

// ---- news

std::size_t SessionServer::introduced_count() const {
  return static_cast<std::size_t>(std::count_if(
      sessions_.begin(), sessions_.end(), [](const auto& entry) { return entry.second->introduced(); }));
}

Session* SessionServer::find(dataplane::SessionId session) const {
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? nullptr : found->second.get();
}

std::shared_ptr<SessionGroup> SessionServer::find(const dataplane::GroupKey& key) const {
  const Session* session = find(key.session);
  return session == nullptr ? nullptr : session->find_group(key.handle);
}

void SessionServer::session_failed(dataplane::SessionId session, const Status& why) {
  if (Session* found = find(session)) found->end(why.with_context(found->describe()));
}

void SessionServer::channel_failed(const dataplane::GroupKey& key, std::int32_t culprit, const Status& why) {
  const auto group = find(key);
  if (group == nullptr || group->aborted()) return;
  group->fail(culprit, services_.node_name, why);
  services_.coordinator->fail(key, culprit, why);
}

// Proxies first, and not only told: who sees a new entry in the map may write to it at once, and a proxy may
// read its ring before it comes to the commands of its mailbox. One question to each proxy is enough for all
// ranks.
void SessionServer::region_changed(const std::vector<dataplane::GroupKey>& ranks, std::uint32_t rank,
                                   std::uint32_t index, const abi::RegionEntry& entry) {
  std::vector<std::weak_ptr<SessionGroup>> groups;
  for (const dataplane::GroupKey& key : ranks) {
    const auto group = find(key);
    if (group != nullptr && group->region_changes(rank, index, entry)) groups.push_back(group);
  }
  if (groups.empty()) return;
  const auto on_all = gather(services_.io, services_.rails(),
                             [groups = std::move(groups), rank, index, entry](const Status&) {
                               for (const auto& weak : groups) {
                                 if (const auto group = weak.lock())
                                   group->region_changed(rank, index, entry);
                               }
                             });
  for (dataplane::Proxy* proxy : services_.proxies) {
    proxy->settle([on_all] { on_all(Status()); });
  }
}

void SessionServer::group_failed(const dataplane::GroupKey& key, std::int32_t culprit,
                                 const std::string& node, const Status& why) {
  const auto group = find(key);
  if (group == nullptr) return;
  if (services_.lines->admit(find(key.session)->uid())) {
    spdlog::warn("group \"{}\" (rank {}, session {}) failed: {}", group->request().name,
                 group->request().rank, key.session, why.to_string());
  }
  group->fail(culprit, node, why);
}

void SessionServer::rank_gone(const dataplane::GroupKey& key, std::uint32_t rank, const std::string& node,
                              const Status& why) {
  const auto group = find(key);
  if (group == nullptr) return;
  if (!why.ok() && services_.lines->admit(find(key.session)->uid())) {
    spdlog::warn("group \"{}\" (rank {}, session {}) has lost a rank: {}", group->request().name,
                 group->request().rank, key.session, why.to_string());
  }
  group->rank_gone(rank, node, why);
}

Status SessionServer::launch_rejected(const dataplane::GroupKey& key, std::uint32_t rank,
                                      std::uint64_t launch, const Status& why) {
  const auto group = find(key);
  return group == nullptr ? Status() : group->launch_rejected(rank, launch, why);
}

abi::RankState SessionServer::state_of(const dataplane::GroupKey& key) const {
  const auto group = find(key);
  return group == nullptr ? abi::RankState{} : group->state_of_rank();
}

void SessionServer::states_known(const dataplane::GroupKey& key, const std::vector<RankReport>& states) {
  if (const auto group = find(key)) group->states_known(states);
}

bool SessionServer::uses_peer(transport::PeerId peer) const {
  for (const auto& [id, session] : sessions_) {
    for (const auto& [handle, group] : session->groups()) {
      if (group->uses_peer(peer)) return true;
    }
  }
  return false;
}

void SessionServer::log_left_out() {
  std::size_t users = 0;
  std::uint64_t of_others = 0;
  for (const base::LineLimit::LeftOut& missing : services_.lines->take_left_out()) {
    if (users++ < kNamedUsers && missing.source != Undertaker::kNobody) {
      spdlog::warn("user {}: {} more lines about the sessions of this user were left out", missing.source,
                   missing.lines);
    } else {
      of_others += missing.lines;
    }
  }
  if (of_others != 0) spdlog::warn("{} more lines about sessions of other users were left out", of_others);
}

// ---- mkctl

std::vector<UserSnapshot> SessionServer::users() const {
  std::map<std::uint32_t, UserSnapshot> seen;
  for (const auto& [id, session] : sessions_) session->settle_in_flight();
  for (const auto& [uid, user] : services_.accounts.users()) seen[uid] = session::snapshot(*user);
  for (const auto& [id, session] : sessions_) {
    UserSnapshot& user = seen[session->uid()];
    user.groups += session->groups().size();
    user.waiting += session->waiting() ? 1 : 0;
    if (session->introduced()) user.counters += session->snapshot().counters;
  }
  std::vector<UserSnapshot> rows;
  for (auto& [uid, user] : seen) rows.push_back(std::move(user));
  return rows;
}

NodeUse SessionServer::node_use() const {
  const Ledger& held = services_.accounts.node();
  const NodeBudget& budget = services_.accounts.budget();
  const config::UserLimits& standard = services_.accounts.standard();
  return {held.held(Resource::kFds), budget.fds,       held.held(Resource::kMappings),
          budget.mappings,           standard.max_fds, standard.max_regions};
}

}  // namespace mkernel::session
