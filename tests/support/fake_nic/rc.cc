// Reliable connections: one message after the other, carried out at the receiver once, completed when the
// acknowledgement is back. What is lost on the way is sent again until the queue pair gives up; then the
// sender cannot know whether the receiver has it.
#include <algorithm>
#include <utility>

#include "tests/support/fake_nic/objects.h"

namespace mkernel::test::nic {
namespace {

enum class Outcome { kExecuted, kLost, kNotReady };

constexpr std::chrono::microseconds kNotReadyDelay{200};
constexpr std::uint32_t kPsnMask = (1U << 24) - 1;

std::uint64_t bytes_of(ibv_mtu mtu) {
  return std::uint64_t{128} << mtu;
}

/// Between two attempts: 4.096 us x 2^timeout; 0 means for ever, but somebody must look now and then.
std::chrono::microseconds interval(const Qp& qp) {
  const std::uint8_t timeout = qp.attributes.timeout;
  if (timeout == 0) return std::chrono::milliseconds(10);
  return std::chrono::microseconds(std::max<std::uint64_t>(100, (std::uint64_t{4096} << timeout) / 1000));
}

/// The other end, if it is connected to this one and takes what comes.
Qp* target_of(const Qp& qp, const Place& place) {
  const auto found = place.device->queues.find(qp.attributes.dest_qp_num);
  if (found == place.device->queues.end()) return nullptr;
  Qp& target = *found->second;
  const ibv_qp_state state = target.attributes.qp_state;
  if (target.srd || (state != IBV_QPS_RTR && state != IBV_QPS_RTS)) return nullptr;
  if (target.attributes.dest_qp_num != qp.qp_base.qp_num || target.attributes.port_num != place.port) {
    return nullptr;
  }
  const Place back = destination(*target.device, target.attributes.port_num, target.attributes.ah_attr);
  return back.device == qp.device && back.port == qp.attributes.port_num ? &target : nullptr;
}

std::byte* writable(Qp& target, const Message& message, std::uint64_t bytes) {
  if ((target.attributes.qp_access_flags & IBV_ACCESS_REMOTE_WRITE) == 0) return nullptr;
  return reach(*target.device, message.rkey, target.qp_base.pd, message.remote, bytes,
               IBV_ACCESS_REMOTE_WRITE);
}

/// Some of the packets got there before the path was cut.
void tear_packets(Qp& qp, Message& message, const Place& place) {
  const bool launched = std::exchange(message.launched, false);
  Qp* const target = launched && place.device != nullptr ? target_of(qp, place) : nullptr;
  std::vector<std::byte> data;
  if (target == nullptr || !writes(message) || target->expected_psn != message.psn ||
      !gather(qp, message, data)) {
    return;
  }
  std::byte* const to = writable(*target, message, data.size());
  const std::uint64_t packets = qp.device->fabric->random() % message.packets;
  if (to != nullptr) store(to, data.data(), packets * bytes_of(qp.attributes.path_mtu));
}

/// Both ends break: the receiver now, the sender when it hears of it.
void refuse(Message& message, Qp& target, ibv_wc_status status) {
  message.status = status;
  raise_qp(target, status == IBV_WC_REM_ACCESS_ERR ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_REQ_ERR);
  break_queue(target);
}

void receive(Qp& qp, Message& message, Qp& target, const std::vector<std::byte>& data) {
  const Receive slot = std::move(target.receives.front());
  target.receives.pop_front();
  ibv_wc wc = inbound(qp, message);
  if (!writes(message) && !scatter(target, slot, data)) {
    wc.status = IBV_WC_LOC_LEN_ERR;
    complete_receive(target, slot, wc, true);
    refuse(message, target, IBV_WC_REM_INV_REQ_ERR);
    return;
  }
  complete_receive(target, slot, wc, message.solicited);
}

Outcome execute(Qp& qp, Message& message) {
  const Place place = destination(*qp.device, qp.attributes.port_num, qp.attributes.ah_attr);
  if (!carries(*qp.device, qp.attributes.port_num, place)) {
    tear_packets(qp, message, place);
    return Outcome::kLost;
  }
  Qp* const target = target_of(qp, place);
  if (target == nullptr || target->expected_psn != message.psn) return Outcome::kLost;
  if (needs_receive(message) && target->receives.empty()) return Outcome::kNotReady;
  std::vector<std::byte> data;
  if (!gather(qp, message, data)) {
    message.status = IBV_WC_LOC_PROT_ERR;
    return Outcome::kExecuted;
  }
  if (message.packets > 1 && target->attributes.path_mtu != qp.attributes.path_mtu) {
    refuse(message, *target, IBV_WC_REM_INV_REQ_ERR);
    return Outcome::kExecuted;
  }
  if (writes(message) && message.length > 0) {
    std::byte* const to = writable(*target, message, message.length);
    if (to == nullptr) {
      refuse(message, *target, IBV_WC_REM_ACCESS_ERR);
      return Outcome::kExecuted;
    }
    store(to, data.data(), data.size());
  }
  target->expected_psn = (target->expected_psn + message.packets) & kPsnMask;
  ++place.device->received;
  if (needs_receive(message)) receive(qp, message, *target, data);
  return Outcome::kExecuted;
}

/// One wake-up for a queue pair, whatever became of it until then.
void progress_at(Qp& qp, Time due) {
  Device* const device = qp.device;
  const std::uint32_t number = qp.qp_base.qp_num;
  device->fabric->timeline.at(due, [device, number] {
    const auto found = device->queues.find(number);
    if (found == device->queues.end()) return;
    found->second->retrying = false;
    progress_rc(*found->second);
  });
}

/// The oldest message fails, the others with it.
void give_up(Qp& qp, ibv_wc_status status) {
  const auto message = qp.sends.front();
  qp.sends.pop_front();
  complete_send(qp, *message, status, 0x81);
  break_queue(qp);
}

/// Nothing moves until the next attempt. False when the queue pair has given up.
bool wait(Qp& qp) {
  Message& oldest = *qp.sends.front();
  const Time now = Clock::now();
  if (oldest.gives_up == Time::max() && qp.attributes.timeout != 0) {
    oldest.gives_up = now + interval(qp) * (qp.attributes.retry_cnt + 1);
  }
  if (now >= oldest.gives_up) {
    give_up(qp, IBV_WC_RETRY_EXC_ERR);
    return false;
  }
  if (!std::exchange(qp.retrying, true)) progress_at(qp, std::min(now + interval(qp), oldest.gives_up));
  return true;
}

/// For want of a receive. The sender's own patience counts.
void not_ready(Qp& qp, Message& message, Time last) {
  if (qp.attributes.rnr_retry != 7 && message.refused++ >= qp.attributes.rnr_retry) {
    message.executed = true;
    message.status = IBV_WC_RNR_RETRY_EXC_ERR;
    message.acknowledged = last;
    return;
  }
  if (!std::exchange(qp.retrying, true)) progress_at(qp, Clock::now() + kNotReadyDelay);
}

/// Carries out what has arrived, in order. False when the queue pair broke over it.
bool deliver(Qp& qp) {
  Time last{};  // acknowledgements come in order
  for (std::size_t i = 0; i < qp.sends.size() && qp.sends[i]->status == IBV_WC_SUCCESS; ++i) {
    if (qp.sends[i]->executed) {
      last = qp.sends[i]->acknowledged;
      continue;
    }
    const auto message = qp.sends[i];
    if (message->arrives > Clock::now()) return true;
    const Outcome outcome = execute(qp, *message);
    if (qp.attributes.qp_state != IBV_QPS_RTS) return false;
    if (outcome == Outcome::kLost) return wait(qp);
    if (outcome == Outcome::kNotReady) {
      not_ready(qp, *message, last);
      return true;
    }
    message->executed = true;
    const Place place = destination(*qp.device, qp.attributes.port_num, qp.attributes.ah_attr);
    last = message->acknowledged = std::max(last, qp.device->fabric->travel(place.device, qp.device));
    if (last > Clock::now()) progress_at(qp, last);
  }
  return true;
}

bool answered(const Qp& qp) {
  const Place place = destination(*qp.device, qp.attributes.port_num, qp.attributes.ah_attr);
  return carries(*qp.device, qp.attributes.port_num, place) &&
         !qp.device->fabric->path(place.device, qp.device).down;
}

}  // namespace

void send_rc(Qp& qp, std::shared_ptr<Message> message) {
  if (qp.attributes.qp_state == IBV_QPS_ERR) {
    complete_send(qp, *message, IBV_WC_WR_FLUSH_ERR, 0);
    return;
  }
  const std::uint64_t packet = bytes_of(qp.attributes.path_mtu);
  message->packets =
      static_cast<std::uint32_t>(std::max<std::uint64_t>(1, (message->length + packet - 1) / packet));
  message->psn = qp.next_psn;
  qp.next_psn = (qp.next_psn + message->packets) & kPsnMask;
  const Place place = destination(*qp.device, qp.attributes.port_num, qp.attributes.ah_attr);
  message->launched = carries(*qp.device, qp.attributes.port_num, place);
  message->arrives = qp.device->fabric->travel(qp.device, place.device);
  if (!qp.sends.empty()) message->arrives = std::max(message->arrives, qp.sends.back()->arrives);
  const Time arrives = message->arrives;
  qp.sends.push_back(std::move(message));
  if (arrives <= Clock::now()) {
    progress_rc(qp);
  } else {
    progress_at(qp, arrives);
  }
}

void progress_rc(Qp& qp) {
  if (qp.device->dead || qp.attributes.qp_state != IBV_QPS_RTS || !deliver(qp)) return;
  while (!qp.sends.empty()) {
    const auto message = qp.sends.front();
    if (!message->executed || message->acknowledged > Clock::now()) return;
    const bool local = message->status == IBV_WC_LOC_PROT_ERR || message->status == IBV_WC_RNR_RETRY_EXC_ERR;
    if (!local && !answered(qp)) {
      wait(qp);
      return;
    }
    if (message->status != IBV_WC_SUCCESS) {
      give_up(qp, message->status);
      return;
    }
    qp.sends.pop_front();
    complete_send(qp, *message, IBV_WC_SUCCESS, 0);
  }
}

}  // namespace mkernel::test::nic
