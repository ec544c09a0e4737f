// What a post checks before it takes a request.
#include <cerrno>
#include <cstring>

#include "tests/support/fake_nic/objects.h"

namespace mkernel::test::nic {
namespace {

bool known(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM || opcode == IBV_WR_SEND ||
         opcode == IBV_WR_SEND_WITH_IMM;
}

std::uint64_t total(const ibv_sge* parts, int count) {
  std::uint64_t bytes = 0;
  for (int i = 0; i < count; ++i) bytes += parts[i].length;
  return bytes;
}

int check(const Qp& qp, const ibv_send_wr& request) {
  if (qp.device->dead) return EIO;
  const ibv_qp_state state = qp.attributes.qp_state;
  if (state != IBV_QPS_RTS && state != IBV_QPS_ERR) return EINVAL;
  if (qp.srd || !known(request.opcode)) return EINVAL;
  if (request.num_sge < 0 || static_cast<std::uint32_t>(request.num_sge) > qp.cap.max_send_sge) return EINVAL;
  if (qp.posted - qp.retired >= qp.cap.max_send_wr) return ENOMEM;
  const bool inlined = (request.send_flags & IBV_SEND_INLINE) != 0;
  if (inlined && total(request.sg_list, request.num_sge) > qp.cap.max_inline_data) return EINVAL;
  return 0;
}

std::shared_ptr<Message> message_of(Qp& qp, const ibv_send_wr& request) {
  auto message = std::make_shared<Message>();
  message->number = ++qp.posted;
  message->wr_id = request.wr_id;
  message->opcode = request.opcode;
  message->signalled = qp.signal_all || (request.send_flags & IBV_SEND_SIGNALED) != 0;
  message->solicited = (request.send_flags & IBV_SEND_SOLICITED) != 0;
  message->inlined = (request.send_flags & IBV_SEND_INLINE) != 0;
  message->parts.assign(request.sg_list, request.sg_list + request.num_sge);
  message->length = total(request.sg_list, request.num_sge);
  message->immediate = request.imm_data;
  message->remote = request.wr.rdma.remote_addr;
  message->rkey = request.wr.rdma.rkey;
  if (message->inlined) {  // the caller may overwrite it as soon as we return
    for (const ibv_sge& part : message->parts) {
      const auto* const bytes = reinterpret_cast<const std::byte*>(part.addr);
      message->inline_data.insert(message->inline_data.end(), bytes, bytes + part.length);
    }
  }
  return message;
}

}  // namespace

int post_send(ibv_qp* verbs, ibv_send_wr* requests, ibv_send_wr** bad) {
  Qp& qp = *of(verbs);
  const std::lock_guard held(qp.device->fabric->lock);
  qp.device->fabric->timeline.run();
  for (ibv_send_wr* request = requests; request != nullptr; request = request->next) {
    if (const int error = check(qp, *request)) {
      *bad = request;
      return error;
    }
    send_rc(qp, message_of(qp, *request));
  }
  return 0;
}

int post_recv(ibv_qp* verbs, ibv_recv_wr* requests, ibv_recv_wr** bad) {
  Qp& qp = *of(verbs);
  const std::lock_guard held(qp.device->fabric->lock);
  for (ibv_recv_wr* request = requests; request != nullptr; request = request->next) {
    const ibv_qp_state state = qp.attributes.qp_state;
    int error = 0;
    if (qp.device->dead) {
      error = EIO;
    } else if (state == IBV_QPS_RESET || (qp.srd && state == IBV_QPS_ERR) || request->num_sge < 0 ||
               static_cast<std::uint32_t>(request->num_sge) > qp.cap.max_recv_sge) {
      error = EINVAL;
    } else if (qp.receives_held >= qp.cap.max_recv_wr) {
      error = ENOMEM;
    }
    if (error != 0) {
      *bad = request;
      return error;
    }
    ++qp.receives_held;
    Receive receive{request->wr_id, {request->sg_list, request->sg_list + request->num_sge}};
    if (state == IBV_QPS_ERR) {
      ibv_wc wc{};
      wc.status = IBV_WC_WR_FLUSH_ERR;
      complete_receive(qp, receive, wc, false);
    } else {
      qp.receives.push_back(std::move(receive));
    }
  }
  return 0;
}

}  // namespace mkernel::test::nic
