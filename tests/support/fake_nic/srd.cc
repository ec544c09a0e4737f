// Scalable reliable datagrams: every message arrives once, whenever it likes; nothing is ordered, and a
// message that fails takes no other with it.
#include <algorithm>
#include <utility>

#include "tests/support/fake_nic/objects.h"

namespace mkernel::test::nic {
namespace {

/// Numbers of the EFA device, which a completion carries as its vendor error.
enum Status : std::uint32_t {
  kOk = 0,
  kInvalidKey = 5,
  kBadLength = 6,
  kBadAddress = 7,
  kBadTarget = 9,
  kNotReady = 10,
  kBadRemoteLength = 11,
  kUnresponsive = 13,
  kUnknownPeer = 14,
  kUnreachable = 15,
  kFeatureMismatch = 18,
};

/// As libefa translates them.
ibv_wc_status translated(std::uint32_t status) {
  switch (status) {
    case kOk: return IBV_WC_SUCCESS;
    case kInvalidKey: return IBV_WC_LOC_PROT_ERR;
    case kBadLength: return IBV_WC_LOC_LEN_ERR;
    case kBadAddress: return IBV_WC_REM_ACCESS_ERR;
    case kBadTarget: return IBV_WC_REM_INV_RD_REQ_ERR;
    case kNotReady: return IBV_WC_RNR_RETRY_EXC_ERR;
    case kUnresponsive:
    case kUnreachable: return IBV_WC_RESP_TIMEOUT_ERR;
    case kUnknownPeer: return IBV_WC_REM_OP_ERR;
    case kBadRemoteLength:
    case kFeatureMismatch: return IBV_WC_REM_INV_REQ_ERR;
    default: return IBV_WC_GENERAL_ERR;
  }
}

constexpr std::chrono::microseconds kAgain{500};

void finish(Qp& qp, const std::shared_ptr<Message>& message) {
  const auto found = std::find(qp.sends.begin(), qp.sends.end(), message);
  if (found == qp.sends.end()) return;
  qp.sends.erase(found);
  complete_send(qp, *message, translated(message->vendor), message->vendor);
}

using Step = void (*)(Qp&, const std::shared_ptr<Message>&);

/// The step, if the queue pair and the message still are by then.
void later(Qp& qp, const std::shared_ptr<Message>& message, Time due, Step step) {
  if (due <= Clock::now()) {
    step(qp, message);
    return;
  }
  Device* const device = qp.device;
  device->fabric->timeline.at(due, [device, number = qp.qp_base.qp_num, message, step] {
    const auto found = device->queues.find(number);
    if (found == device->queues.end() || device->dead) return;
    const auto& sends = found->second->sends;
    if (std::find(sends.begin(), sends.end(), message) != sends.end()) step(*found->second, message);
  });
}

void arrive(Qp& qp, const std::shared_ptr<Message>& message);

/// Nobody answered. Sent again until the device's patience ends.
void lost(Qp& qp, const std::shared_ptr<Message>& message, const Place& place) {
  const Time now = Clock::now();
  if (message->gives_up == Time::max()) message->gives_up = now + qp.device->settings.efa->patience;
  if (now < message->gives_up) {
    later(qp, message, now + kAgain, arrive);
    return;
  }
  message->vendor = qp.device->heard.count(place.device) > 0 ? kUnresponsive : kUnreachable;
  finish(qp, message);
}

void answered(Qp& qp, const std::shared_ptr<Message>& message) {
  const Place place = destination(*qp.device, qp.attributes.port_num, message->address);
  if (!carries(*qp.device, qp.attributes.port_num, place) ||
      qp.device->fabric->path(place.device, qp.device).down) {
    lost(qp, message, place);
    return;
  }
  qp.device->heard.insert(place.device);
  finish(qp, message);
}

Qp* target_of(const Message& message, const Place& place) {
  const auto found = place.device->queues.find(message.target_qp);
  if (found == place.device->queues.end()) return nullptr;
  Qp& target = *found->second;
  const ibv_qp_state state = target.attributes.qp_state;
  if (!target.srd || (state != IBV_QPS_RTR && state != IBV_QPS_RTS)) return nullptr;
  return target.attributes.qkey == message.qkey ? &target : nullptr;
}

/// Some of the packets got there before the path was cut.
void tear_bytes(Qp& qp, Message& message, const Place& place) {
  const bool launched = std::exchange(message.launched, false);
  Qp* const target = launched && place.device != nullptr ? target_of(message, place) : nullptr;
  std::vector<std::byte> data;
  if (target == nullptr || !writes(message) || !gather(qp, message, data) || data.empty()) return;
  std::byte* const to = reach(*place.device, message.rkey, target->qp_base.pd, message.remote, data.size(),
                              IBV_ACCESS_REMOTE_WRITE);
  if (to != nullptr) store(to, data.data(), qp.device->fabric->random() % data.size());
}

void receive(Qp& qp, const Message& message, Qp& target, const std::vector<std::byte>& data) {
  if (writes(message) && (target.efa_flags & transport::rdma::kEfaQpUnsolicitedWriteRecv) != 0) {
    ibv_wc wc = inbound(qp, message);
    wc.qp_num = target.qp_base.qp_num;
    complete(*of(target.qp_base.recv_cq), Entry{wc, 0, 0}, message.solicited);
    return;
  }
  const Receive slot = std::move(target.receives.front());
  target.receives.pop_front();
  if (!writes(message)) scatter(target, slot, data);
  complete_receive(target, slot, inbound(qp, message), message.solicited);
}

/// What the receiver makes of it; kNotReady: not yet.
std::uint32_t execute(Qp& qp, const Message& message, const Place& place) {
  if (place.device->known.count(qp.device) == 0) return kUnknownPeer;
  Qp* const target = target_of(message, place);
  if (target == nullptr) return kBadTarget;
  const bool write = writes(message);
  if (write && (place.device->settings.efa->capabilities & transport::rdma::kEfaRdmaWrite) == 0) {
    return kFeatureMismatch;
  }
  const bool unsolicited = write && (target->efa_flags & transport::rdma::kEfaQpUnsolicitedWriteRecv) != 0;
  if (needs_receive(message) && !unsolicited && target->receives.empty()) return kNotReady;
  std::vector<std::byte> data;
  if (!gather(qp, message, data)) return kInvalidKey;
  if (write && !data.empty()) {
    std::byte* const to = reach(*place.device, message.rkey, target->qp_base.pd, message.remote, data.size(),
                                IBV_ACCESS_REMOTE_WRITE);
    if (to == nullptr) return kBadAddress;
    store(to, data.data(), data.size());
  }
  ++place.device->received;
  if (needs_receive(message)) receive(qp, message, *target, data);
  return kOk;
}

void arrive(Qp& qp, const std::shared_ptr<Message>& message) {
  const Place place = destination(*qp.device, qp.attributes.port_num, message->address);
  if (!carries(*qp.device, qp.attributes.port_num, place)) {
    if (!message->executed) tear_bytes(qp, *message, place);
    lost(qp, message, place);
    return;
  }
  if (!message->executed) {
    message->vendor = execute(qp, *message, place);
    const bool again = message->vendor == kNotReady &&
                       (qp.attributes.rnr_retry == 7 || message->refused++ < qp.attributes.rnr_retry);
    if (again) {
      later(qp, message, Clock::now() + kAgain, arrive);
      return;
    }
    message->executed = true;
  }
  later(qp, message, qp.device->fabric->travel(place.device, qp.device), answered);
}

}  // namespace

void send_srd(Qp& qp, std::shared_ptr<Message> message) {
  qp.sends.push_back(message);
  const EfaSettings& efa = *qp.device->settings.efa;
  const std::uint64_t packet = std::uint64_t{128} << qp.device->settings.ports.front().mtu;
  if (message->length > (writes(*message) ? efa.max_rdma_bytes : packet)) {
    message->vendor = kBadLength;
    finish(qp, message);
    return;
  }
  const Place place = destination(*qp.device, qp.attributes.port_num, message->address);
  message->launched = carries(*qp.device, qp.attributes.port_num, place);
  later(qp, message, qp.device->fabric->travel(qp.device, place.device), arrive);
}

}  // namespace mkernel::test::nic
