// Queue pairs that complete at once and move nothing, for timing what is above them. They keep the rules that
// cost the caller something: the depth in requests, unsignalled ones included, and the batch order.
#include <cerrno>

#include "tests/support/fake_nic/objects.h"

namespace mkernel::test::nic {
namespace {

bool report(Cq& cq, const Cq::Signalled& what) {
  if (cq.signalled - cq.polled >= cq.ring.size()) return false;
  cq.ring[cq.signalled++ % cq.ring.size()] = what;
  return true;
}

int complete(ibv_qp_ex* verbs) {
  Qp& qp = of_request(verbs);
  if (qp.null_posted - qp.null_retired + qp.null_building.size() > qp.cap.max_send_wr) return ENOMEM;
  for (const Qp::NullWrite& write : qp.null_building) {
    const auto target = write.to->queues.find(write.target_qp);
    if (target == write.to->queues.end()) return EINVAL;
    const bool told = report(*of(target->second->qp_base.recv_cq), {target->second, 0, 0, write.immediate}) &&
                      report(*of(qp.qp_base.send_cq), {&qp, write.wr_id, ++qp.null_posted, 0});
    if (!told) return EIO;  // an overrun: the benchmark's bug
  }
  return 0;
}

}  // namespace

void fill_null_requests(Qp& qp) {
  qp.null_building.reserve(qp.cap.max_send_wr);
  qp.wr_start = [](ibv_qp_ex* verbs) { of_request(verbs).null_building.clear(); };
  qp.wr_rdma_write_imm = [](ibv_qp_ex* verbs, std::uint32_t, std::uint64_t, __be32 immediate) {
    of_request(verbs).null_building.push_back({of_request(verbs).wr_id, immediate, 0, nullptr});
  };
  qp.wr_set_sge = [](ibv_qp_ex*, std::uint32_t, std::uint64_t, std::uint32_t) {};
  qp.wr_set_inline_data = [](ibv_qp_ex*, void*, std::size_t) {};
  qp.wr_set_ud_addr = [](ibv_qp_ex* verbs, ibv_ah* address, std::uint32_t target, std::uint32_t) {
    Qp::NullWrite& write = of_request(verbs).null_building.back();
    write.target_qp = target;
    write.to = of(address)->to;
  };
  qp.wr_complete = complete;
}

int null_post_send(ibv_qp* verbs, ibv_send_wr* requests, ibv_send_wr** bad) {
  Qp& qp = *of(verbs);
  Cq& cq = *of(verbs->send_cq);
  for (ibv_send_wr* request = requests; request != nullptr; request = request->next) {
    if (qp.null_posted - qp.null_retired >= qp.cap.max_send_wr) {
      *bad = request;
      return ENOMEM;
    }
    ++qp.null_posted;
    if (!qp.signal_all && (request->send_flags & IBV_SEND_SIGNALED) == 0) continue;
    if (cq.signalled - cq.polled >= cq.ring.size()) return EIO;  // an overrun: the benchmark's bug
    cq.ring[cq.signalled++ % cq.ring.size()] = {&qp, request->wr_id, qp.null_posted, 0};
  }
  return 0;
}

int null_poll_cq(ibv_cq* verbs, int count, ibv_wc* out) {
  Cq& cq = *of(verbs);
  int polled = 0;
  for (; polled < count && cq.polled != cq.signalled; ++polled) {
    const Cq::Signalled& signalled = cq.ring[cq.polled++ % cq.ring.size()];
    const bool arrival = signalled.number == 0;
    if (!arrival) signalled.qp->null_retired = signalled.number;
    ibv_wc& wc = out[polled];
    wc.wr_id = signalled.wr_id;
    wc.status = IBV_WC_SUCCESS;
    wc.opcode = arrival ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RDMA_WRITE;
    wc.qp_num = signalled.qp->qp_base.qp_num;
    wc.wc_flags = arrival ? IBV_WC_WITH_IMM : 0;
    wc.imm_data = signalled.immediate;
  }
  return polled;
}

}  // namespace mkernel::test::nic
