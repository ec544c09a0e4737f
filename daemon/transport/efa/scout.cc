#include "daemon/transport/efa/scout.h"

#include <utility>

#include "daemon/transport/efa/status.h"

namespace mkernel::transport::efa {

Scout::Scout(Context& context, PeerId peer, std::uint64_t remote_boot_id)
    : context_(context), peer_(peer), remote_boot_id_(remote_boot_id) {}

Status Scout::make_queue() {
  constexpr std::uint32_t kCredit = 1;  // nothing arrives but the one write
  queue_.reset();
  Device& device = *context_.paths[route_.local];
  auto made = Queue::make(device, device.pd(),
                          {.peer = peer_,
                           .credit = kCredit,
                           .service_level = context_.options.service_level,
                           .qkey = rdma::random_bits()});
  if (!made.ok()) return made.status();
  queue_ = std::move(*made);
  return {};
}

Hello Scout::hello(MessageType type) const {
  return queue_->hello(head(type), context_.options.base.identity.boot_id, remote_boot_id_, route_.remote);
}

void Scout::send(Route route, Time now) {
  ++number_;
  route_ = route;
  out_ = true;
  due_ = now + context_.patience();
  lost_ = make_queue();
  if (lost_.ok()) context_.say(peer_, hello(MessageType::kTry));
}

void Scout::on_try(const Hello& message) {
  number_ = message.head.epoch;
  route_ = {message.path, 0};
  Status status = context_.paths[route_.local]->state();
  if (status.ok()) status = make_queue();
  if (status.ok()) status = queue_->meet(message);
  if (status.ok()) return context_.say(peer_, hello(MessageType::kTried));
  queue_.reset();
  context_.say(peer_, refusal(head(MessageType::kTryLost), status));
}

void Scout::on_tried(const Hello& message) {
  if (!out_ || message.head.epoch != number_ || queue_ == nullptr || queue_->met()) return;
  lost_ = queue_->meet(message);
  if (!lost_.ok()) return;
  const Request request{.immediate = {.channel = kProbe}};
  lost_ = queue_->post(std::span(&request, 1)).status();
}

Result<bool> Scout::poll(Time now) {
  if (!lost_.ok()) return lost_;
  if (now >= due_) return Status(StatusCode::kUnavailable, "a write of no bytes has not come back");
  ibv_wc completion{};
  const auto polled = queue_->poll(std::span(&completion, 1));
  if (!polled.ok()) return polled.status();
  if (polled.value() == 0) return false;
  if (completion.status == IBV_WC_SUCCESS) return true;
  return Status(StatusCode::kUnavailable, text_of(completion));
}

void Scout::on_over(const Message& message) {
  if (!out_ && message.epoch == number_) queue_.reset();
}

void Scout::on_lost(const Refusal& message) {
  if (message.head.epoch != number_ || queue_ == nullptr) return;
  if (out_) {
    lost_ = status_of(message);
  } else {
    queue_.reset();
  }
}

void Scout::end() {
  if (queue_ == nullptr && !out_) return;
  queue_.reset();
  if (std::exchange(out_, false)) {
    context_.say(peer_, head(MessageType::kTryOver));
  } else {
    const Status why(StatusCode::kUnavailable, "the connection or the device changed meanwhile");
    context_.say(peer_, refusal(head(MessageType::kTryLost), why));
  }
}

bool Scout::arm() {
  return !out_ || queue_ == nullptr || queue_->arm();
}

void Scout::close() {
  queue_.reset();
  out_ = false;
}

}  // namespace mkernel::transport::efa
