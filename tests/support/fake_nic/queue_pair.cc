// Queue pairs: made, moved through their states, broken, destroyed.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "tests/support/fake_nic/attributes.h"
#include "tests/support/fake_nic/objects.h"

namespace mkernel::test::nic {
namespace {

/// A completion without what its status leaves undefined: poisoned, so that nobody relies on it.
ibv_wc failed(std::uint64_t wr_id, ibv_wc_status status, std::uint32_t vendor) {
  ibv_wc wc{};
  wc.wr_id = wr_id;
  wc.status = status;
  wc.opcode = static_cast<ibv_wc_opcode>(0x5a);
  wc.byte_len = 0x5a5a5a5a;
  wc.imm_data = 0x5a5a5a5a;
  wc.vendor_err = vendor;
  return wc;
}

ibv_wc_opcode completed_as(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM ? IBV_WC_SEND : IBV_WC_RDMA_WRITE;
}

ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* init) {
  Device& device = device_of(pd);
  const std::lock_guard held(device.fabric->lock);
  if (init->qp_type != IBV_QPT_RC || device.settings.efa) return fail(EOPNOTSUPP);
  Qp* const qp = make_queue(pd, *init, false);
  if (qp == nullptr) return nullptr;
  init->cap = qp->cap;
  return base_of(qp);
}

/// The values that come with the change, against the device and the port.
int check_values(const Qp& qp, const ibv_qp_attr& values, int mask) {
  const auto& ports = qp.device->settings.ports;
  const auto asks = [mask](int bit) { return (mask & bit) != 0; };
  if (asks(IBV_QP_PORT) && (values.port_num < 1 || values.port_num > ports.size())) return EINVAL;
  if (asks(IBV_QP_PKEY_INDEX) && values.pkey_index != 0) return EINVAL;
  if ((asks(IBV_QP_RQ_PSN) && values.rq_psn >> 24 != 0) ||
      (asks(IBV_QP_SQ_PSN) && values.sq_psn >> 24 != 0 && !qp.srd)) {
    return EINVAL;
  }
  if ((asks(IBV_QP_TIMEOUT) && values.timeout > 31) || (asks(IBV_QP_RETRY_CNT) && values.retry_cnt > 7) ||
      (asks(IBV_QP_RNR_RETRY) && values.rnr_retry > 7) ||
      (asks(IBV_QP_MIN_RNR_TIMER) && values.min_rnr_timer > 31)) {
    return EINVAL;
  }
  if ((asks(IBV_QP_MAX_QP_RD_ATOMIC) && values.max_rd_atomic > 16) ||
      (asks(IBV_QP_MAX_DEST_RD_ATOMIC) && values.max_dest_rd_atomic > 16)) {
    return EINVAL;
  }
  if (!asks(IBV_QP_AV)) return 0;
  const PortSettings& port = ports[qp.attributes.port_num - 1U];
  if (asks(IBV_QP_PATH_MTU) && values.path_mtu > port.mtu) return EINVAL;
  const ibv_ah_attr& address = values.ah_attr;
  if (address.port_num != qp.attributes.port_num) return EINVAL;
  const bool ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET;
  if (ethernet && address.is_global == 0) return EINVAL;
  if (address.is_global != 0 && address.grh.sgid_index >= port.gids.size()) return EINVAL;
  // RoCE asks the network who has that address before it goes on.
  if (ethernet && destination(*qp.device, address.port_num, address).device == nullptr) return ETIMEDOUT;
  return 0;
}

void take(Qp& qp, const ibv_qp_attr& values, int mask) {
  ibv_qp_attr& own = qp.attributes;
  const auto copy = [mask](int bit, auto& to, const auto& from) {
    if ((mask & bit) != 0) to = from;
  };
  copy(IBV_QP_PKEY_INDEX, own.pkey_index, values.pkey_index);
  copy(IBV_QP_PORT, own.port_num, values.port_num);
  copy(IBV_QP_ACCESS_FLAGS, own.qp_access_flags, values.qp_access_flags);
  copy(IBV_QP_QKEY, own.qkey, values.qkey);
  copy(IBV_QP_AV, own.ah_attr, values.ah_attr);
  copy(IBV_QP_PATH_MTU, own.path_mtu, values.path_mtu);
  copy(IBV_QP_DEST_QPN, own.dest_qp_num, values.dest_qp_num);
  copy(IBV_QP_RQ_PSN, own.rq_psn, values.rq_psn);
  copy(IBV_QP_RQ_PSN, qp.expected_psn, values.rq_psn);
  copy(IBV_QP_SQ_PSN, own.sq_psn, values.sq_psn);
  copy(IBV_QP_SQ_PSN, qp.next_psn, values.sq_psn);
  copy(IBV_QP_TIMEOUT, own.timeout, values.timeout);
  copy(IBV_QP_RETRY_CNT, own.retry_cnt, values.retry_cnt);
  copy(IBV_QP_RNR_RETRY, own.rnr_retry, values.rnr_retry);
  copy(IBV_QP_MIN_RNR_TIMER, own.min_rnr_timer, values.min_rnr_timer);
  copy(IBV_QP_MAX_QP_RD_ATOMIC, own.max_rd_atomic, values.max_rd_atomic);
  copy(IBV_QP_MAX_DEST_RD_ATOMIC, own.max_dest_rd_atomic, values.max_dest_rd_atomic);
}

void reset(Qp& qp) {
  qp.sends.clear();
  qp.receives.clear();
  qp.receives_held = 0;
  qp.retired = qp.posted;
  qp.attributes = {};
  forget_completions(qp);
}

int modify_qp(ibv_qp* verbs, ibv_qp_attr* values, int mask) {
  Qp& qp = *of(verbs);
  const std::lock_guard held(qp.device->fabric->lock);
  if (qp.device->dead) return EIO;
  const ibv_qp_state from = qp.attributes.qp_state;
  const ibv_qp_state to = (mask & IBV_QP_STATE) != 0 ? values->qp_state : from;
  if ((mask & IBV_QP_CUR_STATE) != 0 && values->cur_qp_state != from) return EINVAL;
  if (const int error = check_attributes(qp.srd, from, to, mask)) return error;
  if (const int error = check_values(qp, *values, mask)) return error;
  take(qp, *values, mask);
  if (to == IBV_QPS_RESET) reset(qp);
  if (to == IBV_QPS_ERR) break_queue(qp);
  qp.attributes.qp_state = verbs->state = to;
  return 0;
}

int query_qp(ibv_qp* verbs, ibv_qp_attr* out, int, ibv_qp_init_attr* init) {
  const Qp& qp = *of(verbs);
  const std::lock_guard held(qp.device->fabric->lock);
  if (qp.device->dead) return EIO;
  *out = qp.attributes;
  out->cur_qp_state = qp.attributes.qp_state;
  out->sq_psn = qp.next_psn;
  out->rq_psn = qp.expected_psn;
  out->cap = qp.cap;
  *init = {};
  init->send_cq = verbs->send_cq;
  init->recv_cq = verbs->recv_cq;
  init->cap = qp.cap;
  init->qp_type = verbs->qp_type;
  return 0;
}

int destroy_qp(ibv_qp* verbs) {
  Qp* const qp = of(verbs);
  Device& device = *qp->device;
  const std::lock_guard held(device.fabric->lock);
  if (qp->reported != verbs->events_completed) {
    device.fabric->complaints.push_back(
        "a qp of " + device.settings.name +
        " was destroyed before its events were acknowledged: would wait for ever");
  }
  forget_async_events(*of(verbs->context), [verbs](const ibv_async_event& event) {
    return of_queue_pair(event) && event.element.qp == verbs;
  });
  device.queues.erase(verbs->qp_num);
  --of(verbs->send_cq)->users;
  --of(verbs->recv_cq)->users;
  --of(verbs->pd)->users;
  of(verbs->context)->alive.erase(name_of("qp", verbs->qp_num));
  delete qp;  // completions of it stay where they are
  return 0;
}

ibv_qp_ex* qp_to_qp_ex(ibv_qp* verbs) {
  return of(verbs)->wr_start != nullptr ? of(verbs) : nullptr;
}

ibv_ah* create_ah(ibv_pd* pd, ibv_ah_attr* attributes) {
  Device& device = device_of(pd);
  const std::lock_guard held(device.fabric->lock);
  if (device.dead) return fail(EIO);
  if (attributes->port_num < 1 || attributes->port_num > device.settings.ports.size()) return fail(EINVAL);
  if (device.settings.efa && attributes->is_global == 0) return fail(EINVAL);
  auto* const ah = new Ah();
  ah->context = pd->context;
  ah->pd = pd;
  ah->handle = device.fabric->next_handle++;
  ah->attributes = *attributes;
  ++of(pd)->users;
  ah->to = destination(device, attributes->port_num, *attributes).device;
  device.known.insert(ah->to);
  of(pd->context)->alive.insert(name_of("ah", ah->handle));
  return ah;
}

int destroy_ah(ibv_ah* ah) {
  Device& device = device_of(ah);
  const std::lock_guard held(device.fabric->lock);
  device.known.erase(device.known.find(of(ah)->to));
  --of(ah->pd)->users;
  of(ah->context)->alive.erase(name_of("ah", ah->handle));
  delete of(ah);
  return 0;
}

}  // namespace

Qp* make_queue(ibv_pd* pd, const ibv_qp_init_attr& init, bool srd) {
  Device& device = device_of(pd);
  if (device.dead) return fail(EIO);
  const DeviceSettings& limits = device.settings;
  const std::uint32_t max_inline = limits.efa ? limits.efa->inline_bytes : limits.max_inline;
  if (init.send_cq == nullptr || init.recv_cq == nullptr || init.srq != nullptr) return fail(EINVAL);
  if (init.cap.max_send_wr > limits.max_send_wr || init.cap.max_recv_wr > limits.max_recv_wr ||
      init.cap.max_send_sge > limits.max_sge || init.cap.max_recv_sge > limits.max_sge ||
      init.cap.max_inline_data > max_inline) {
    return fail(EINVAL);
  }
  auto* const qp = new Qp();
  ibv_qp& base = *base_of(qp);
  base.context = pd->context;
  base.pd = pd;
  base.qp_context = init.qp_context;
  base.send_cq = init.send_cq;
  base.recv_cq = init.recv_cq;
  base.qp_type = init.qp_type;
  base.state = IBV_QPS_RESET;
  ++device.queue_pairs;
  base.qp_num = device.fabric->next_qp;
  device.fabric->next_qp += 1 + static_cast<std::uint32_t>(device.fabric->random() % 7);
  qp->device = &device;
  qp->cap = init.cap;
  qp->cap.max_inline_data = std::min((init.cap.max_inline_data + 15) / 16 * 16, max_inline);  // as NICs round
  qp->signal_all = init.sq_sig_all != 0;
  qp->srd = srd;
  device.queues[base.qp_num] = qp;
  ++of(base.send_cq)->users;
  ++of(base.recv_cq)->users;
  ++of(pd)->users;
  of(pd->context)->alive.insert(name_of("qp", base.qp_num));
  return qp;
}

void complete_send(Qp& qp, const Message& message, ibv_wc_status status, std::uint32_t vendor) {
  if (status == IBV_WC_SUCCESS && !message.signalled) return;
  Entry entry;
  entry.wc = failed(message.wr_id, status, vendor);
  entry.wc.qp_num = qp.qp_base.qp_num;
  entry.retires = message.number;
  if (status == IBV_WC_SUCCESS) {
    entry.wc.opcode = completed_as(message.opcode);
    entry.wc.byte_len = static_cast<std::uint32_t>(message.length);
  }
  complete(*of(qp.qp_base.send_cq), entry, false);
}

void complete_receive(Qp& qp, const Receive& receive, ibv_wc wc, bool solicited) {
  wc.wr_id = receive.wr_id;
  wc.qp_num = qp.qp_base.qp_num;
  complete(*of(qp.qp_base.recv_cq), Entry{wc, 1, 0}, solicited);
}

void break_queue(Qp& qp) {
  if (qp.attributes.qp_state == IBV_QPS_ERR || qp.attributes.qp_state == IBV_QPS_RESET) return;
  qp.attributes.qp_state = IBV_QPS_ERR;
  const auto sends = std::exchange(qp.sends, {});
  const auto receives = std::exchange(qp.receives, {});
  const std::uint32_t vendor = qp.srd ? 1 : 0;
  for (const auto& message : sends) complete_send(qp, *message, IBV_WC_WR_FLUSH_ERR, vendor);
  for (const Receive& receive : receives) {
    complete_receive(qp, receive, failed(receive.wr_id, IBV_WC_WR_FLUSH_ERR, vendor), false);
  }
}

void fill_queue_calls(transport::rdma::VerbsLibrary& verbs) {
  verbs.create_qp = create_qp;
  verbs.modify_qp = modify_qp;
  verbs.query_qp = query_qp;
  verbs.destroy_qp = destroy_qp;
  verbs.qp_to_qp_ex = qp_to_qp_ex;
  verbs.create_ah = create_ah;
  verbs.destroy_ah = destroy_ah;
}

}  // namespace mkernel::test::nic
