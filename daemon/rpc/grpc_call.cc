#include "daemon/rpc/grpc_call.h"

#include <boost/asio/post.hpp>

namespace mkernel::rpc {
namespace {

/// Messages that are handed on before others of the control thread have their turn.
constexpr int kDelivered = 64;

}  // namespace

void Outlet::set_handler(cluster::StreamHandler handler) {
  handler_ = std::make_shared<cluster::StreamHandler>(std::move(handler));
}

void Outlet::want(const std::shared_ptr<Outlet>& self) {
  self->wanted_ = true;
  if (self->waiting() != 0) post_delivery(self);
}

std::size_t Outlet::waiting() {
  const MutexLock lock(mutex_);
  return inbox_.size();
}

void Outlet::push(const std::shared_ptr<Outlet>& self, v1::PeerMessage message) {
  {
    const MutexLock lock(self->mutex_);
    self->inbox_.push_back(std::move(message));
  }
  post_delivery(self);
}

void Outlet::drained(const std::shared_ptr<Outlet>& self) {
  boost::asio::post(self->io_, [self] {
    const auto handler = self->handler_;
    if (handler != nullptr && handler->drained) handler->drained();
  });
}

void Outlet::closed(std::shared_ptr<Outlet> self, Status why, std::shared_ptr<void> call) {
  auto& io = self->io_;
  boost::asio::post(io, [self = std::move(self), why = std::move(why), call = std::move(call)] {
    self->deliver();
    const auto last = std::exchange(self->handler_, nullptr);
    if (last != nullptr && last->closed) last->closed(why);
  });
}

void Outlet::post_delivery(const std::shared_ptr<Outlet>& self) {
  {
    const MutexLock lock(self->mutex_);
    if (std::exchange(self->posted_, true)) return;
  }
  boost::asio::post(self->io_, [self] {
    {
      const MutexLock lock(self->mutex_);
      self->posted_ = false;
    }
    self->deliver();
    if (self->wanted_ && self->handler_ != nullptr && self->waiting() != 0) post_delivery(self);
  });
}

/// Whoever handles a message asks for the next one, or does not, and may close the stream.
void Outlet::deliver() {
  for (int n = 0; n < kDelivered && wanted_; ++n) {
    const auto handler = handler_;
    if (handler == nullptr || !handler->message) return;
    v1::PeerMessage message;
    {
      const MutexLock lock(mutex_);
      if (inbox_.empty()) return;
      message = std::move(inbox_.front());
      inbox_.pop_front();
    }
    wanted_ = false;
    handler->message(std::move(message));
  }
}

}  // namespace mkernel::rpc
