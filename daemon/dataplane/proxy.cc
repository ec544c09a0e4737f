// The door to a rail: every call becomes a command in the mailbox of the proxy thread.
#include "daemon/dataplane/proxy.h"

#include <string>
#include <thread>
#include <utility>

#include "daemon/base/mailbox.h"
#include "daemon/base/thread.h"
#include "daemon/dataplane/rail.h"

namespace mkernel::dataplane {

class Proxy::Impl {
 public:
  Impl(const ProxyOptions& options, std::unique_ptr<transport::Transport> transport, ControlSink& sink)
      : options_(options), transport_(std::move(transport)), rail_(options, *transport_, sink, mailbox_) {}

  void start() {
    thread_ = std::thread([this] {
      const std::string name = "mk-proxy-" + std::to_string(options_.index);
      base::name_this_thread(name);
      if (!options_.cpus.empty()) {
        const Status pinned = base::pin_this_thread(options_.cpus);
        if (!pinned.ok() && options_.not_pinned) options_.not_pinned(pinned);
      }
      if (options_.sleep_watch != nullptr) options_.sleep_watch->watch_this_thread(name);
      rail_.run();
      if (options_.sleep_watch != nullptr) options_.sleep_watch->unwatch_this_thread();
    });
  }

  void stop(std::chrono::milliseconds limit) {
    if (stopped_) return;
    mailbox_.post([this, limit] { rail_.stop(limit); });
    if (!thread_.joinable()) start();  // never started: the same way out, so that every `done` is called
    thread_.join();
    stopped_ = true;
    mailbox_.run();  // commands that were posted after the last round: all find their session gone
  }

  /// After stop() there is no proxy thread any more: commands then run at once, on empty tables.
  template <typename Command>
  void post(Command command) {
    mailbox_.post(std::move(command));
    if (stopped_) mailbox_.run();
  }

  const transport::Transport& transport() const { return *transport_; }
  Rail& rail() { return rail_; }

 private:
  const ProxyOptions options_;
  base::Mailbox mailbox_;
  std::unique_ptr<transport::Transport> transport_;
  Rail rail_;
  std::thread thread_;
  bool stopped_ = false;
};

Proxy::Proxy(const ProxyOptions& options, std::unique_ptr<transport::Transport> transport, ControlSink& sink)
    : impl_(std::make_unique<Impl>(options, std::move(transport), sink)) {}

Proxy::~Proxy() {
  stop(std::chrono::milliseconds(0));
}

void Proxy::start() {
  impl_->start();
}

void Proxy::stop(std::chrono::milliseconds limit) {
  impl_->stop(limit);
}

const transport::Capabilities& Proxy::capabilities() const {
  return impl_->transport().capabilities();
}

std::string Proxy::local_endpoint() const {
  return impl_->transport().local_endpoint();
}

void Proxy::attach_session(std::shared_ptr<SessionPort> session) {
  impl_->post([&rail = impl_->rail(), session = std::move(session)]() mutable {
    rail.attach_session(std::move(session));
  });
}

void Proxy::detach_session(SessionId session, std::chrono::milliseconds limit, Done drained, Done done) {
  impl_->post([&rail = impl_->rail(), session, limit, drained = std::move(drained),
               done = std::move(done)]() mutable {
    rail.detach_session(session, limit, std::move(drained), std::move(done));
  });
}

void Proxy::open_group(std::shared_ptr<GroupPort> group, std::function<void(Status)> done) {
  impl_->post([&rail = impl_->rail(), group = std::move(group), done = std::move(done)]() mutable {
    rail.open_group(std::move(group), std::move(done));
  });
}

void Proxy::close_group(const GroupKey& group, std::chrono::milliseconds limit, Done done) {
  impl_->post([&rail = impl_->rail(), group, limit, done = std::move(done)]() mutable {
    rail.close_group(group, limit, std::move(done));
  });
}

void Proxy::set_region(const GroupKey& group, std::uint32_t index,
                       std::shared_ptr<const memory::Region> region, Done done) {
  impl_->post(
      [&rail = impl_->rail(), group, index, region = std::move(region), done = std::move(done)]() mutable {
        rail.set_region(group, index, std::move(region));
        done();
      });
}

void Proxy::clear_region(const GroupKey& group, std::uint32_t index, std::chrono::milliseconds limit,
                         std::function<void(Status)> done) {
  impl_->post([&rail = impl_->rail(), group, index, limit, done = std::move(done)]() mutable {
    rail.clear_region(group, index, limit, std::move(done));
  });
}

void Proxy::set_remote_region(const GroupKey& group, std::uint32_t rank, std::uint32_t index,
                              std::uint64_t bytes) {
  impl_->post([&rail = impl_->rail(), group, rank, index, bytes] {
    rail.set_remote_region(group, rank, index, bytes);
  });
}

void Proxy::rank_left(const GroupKey& group, std::uint32_t rank) {
  impl_->post([&rail = impl_->rail(), group, rank] { rail.rank_left(group, rank); });
}

void Proxy::settle(Done done) {
  impl_->post([done = std::move(done)] { done(); });
}

void Proxy::connect_peer(transport::PeerId peer, transport::PeerAddress address) {
  impl_->post(
      [&rail = impl_->rail(), peer, address = std::move(address)] { rail.connect_peer(peer, address); });
}

void Proxy::disconnect_peer(transport::PeerId peer) {
  impl_->post([&rail = impl_->rail(), peer] { rail.disconnect_peer(peer); });
}

void Proxy::receive_from_peer(transport::PeerId peer, std::vector<std::byte> message) {
  impl_->post(
      [&rail = impl_->rail(), peer, message = std::move(message)] { rail.receive_from_peer(peer, message); });
}

void Proxy::set_link(transport::PeerId peer, const transport::LinkShape& shape,
                     std::function<void(Status)> done) {
  impl_->post(
      [&rail = impl_->rail(), peer, shape, done = std::move(done)] { done(rail.set_link(peer, shape)); });
}

base::SliceTimes Proxy::slices() const {
  return impl_->rail().slices();
}

}  // namespace mkernel::dataplane
