// Queue pairs that complete at once and move nothing, for timing what is above them. They keep the rules that
// cost the caller something: the depth in requests, unsignalled ones included, and the batch order.
#include <cerrno>

#include "tests/support/fake_nic/objects.h"

namespace mkernel::test::nic {

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
    cq.ring[cq.signalled++ % cq.ring.size()] = {&qp, request->wr_id, qp.null_posted};
  }
  return 0;
}

int null_poll_cq(ibv_cq* verbs, int count, ibv_wc* out) {
  Cq& cq = *of(verbs);
  int polled = 0;
  for (; polled < count && cq.polled != cq.signalled; ++polled) {
    const Cq::Signalled& signalled = cq.ring[cq.polled++ % cq.ring.size()];
    signalled.qp->null_retired = signalled.number;
    ibv_wc& wc = out[polled];
    wc.wr_id = signalled.wr_id;
    wc.status = IBV_WC_SUCCESS;
    wc.opcode = IBV_WC_RDMA_WRITE;
    wc.qp_num = signalled.qp->qp_base.qp_num;
    wc.wc_flags = 0;
  }
  return polled;
}

}  // namespace mkernel::test::nic
