// Completion queues and the channels that wake whoever sleeps for them.
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "tests/support/fake_nic/objects.h"

namespace mkernel::test::nic {
namespace {

ibv_comp_channel* create_comp_channel(ibv_context* context) {
  Device& device = *of(context)->device;
  const std::lock_guard held(device.fabric->lock);
  if (device.dead) return fail(EIO);
  auto* const channel = new Channel();
  channel->context = context;
  channel->fd = ::eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
  of(context)->alive.insert(name_of("channel", static_cast<std::uint32_t>(channel->fd)));
  return channel;
}

int destroy_comp_channel(ibv_comp_channel* channel) {
  Device& device = device_of(channel);
  const std::lock_guard held(device.fabric->lock);
  if (of(channel)->users != 0) return EBUSY;
  of(channel->context)->alive.erase(name_of("channel", static_cast<std::uint32_t>(channel->fd)));
  ::close(channel->fd);
  delete of(channel);
  return 0;
}

ibv_cq* create_cq(ibv_context* context, int entries, void* user, ibv_comp_channel* channel, int vector) {
  Device& device = *of(context)->device;
  const std::lock_guard held(device.fabric->lock);
  if (device.dead) return fail(EIO);
  if (entries < 1 || static_cast<std::uint32_t>(entries) > device.settings.max_cqe || vector != 0) {
    return fail(EINVAL);
  }
  auto* const cq = new Cq();
  cq->context = context;
  cq->channel = channel;
  cq->cq_context = user;
  cq->handle = device.fabric->next_handle++;
  cq->cqe = entries;
  if (device.settings.null_queues) cq->ring.resize(static_cast<std::size_t>(entries));
  if (channel != nullptr) ++of(channel)->users;
  of(context)->alive.insert(name_of("cq", cq->handle));
  return cq;
}

/// Events that nobody fetched go with the queue.
void forget_events(Cq& cq) {
  if (cq.channel != nullptr) {
    Channel& channel = *of(cq.channel);
    std::uint64_t one = 0;
    for (auto gone = std::erase(channel.events, &cq); gone > 0; --gone) {
      if (::read(channel.fd, &one, sizeof(one)) != sizeof(one)) break;
    }
    --channel.users;
  }
}

int destroy_cq(ibv_cq* verbs) {
  Cq& cq = *of(verbs);
  Device& device = device_of(verbs);
  const std::lock_guard held(device.fabric->lock);
  if (cq.users != 0) return EBUSY;
  if (cq.reported != cq.comp_events_completed || cq.async_reported != cq.async_events_completed) {
    device.fabric->complaints.push_back(
        "a cq of " + device.settings.name +
        " was destroyed before its events were acknowledged: would wait for ever");
  }
  forget_events(cq);
  forget_async_events(*of(cq.context), [&cq](const ibv_async_event& event) {
    return event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == &cq;
  });
  of(cq.context)->alive.erase(name_of("cq", cq.handle));
  delete &cq;
  return 0;
}

int get_cq_event(ibv_comp_channel* verbs, ibv_cq** cq, void** user) {
  std::uint64_t one = 0;
  if (::read(verbs->fd, &one, sizeof(one)) != sizeof(one)) return -1;
  const std::lock_guard held(device_of(verbs).fabric->lock);
  Channel& channel = *of(verbs);
  if (channel.events.empty()) {  // it went between the read and the lock
    errno = EAGAIN;
    return -1;
  }
  *cq = channel.events.front();
  *user = (*cq)->cq_context;
  channel.events.pop_front();
  ++of(*cq)->reported;
  return 0;
}

void ack_cq_events(ibv_cq* cq, unsigned events) {
  const std::lock_guard held(device_of(cq).fabric->lock);
  cq->comp_events_completed += events;
}

/// The queue is lost, and every queue pair that completes into it.
void overrun(Cq& cq) {
  cq.overrun = true;
  Context& context = *of(cq.context);
  ibv_async_event event{};
  event.element.cq = &cq;
  event.event_type = IBV_EVENT_CQ_ERR;
  context.events.push_back(event);
  signal(context.context.async_fd);
  for (const auto& [number, qp] : context.device->queues) {
    if (qp->qp_base.send_cq != &cq && qp->qp_base.recv_cq != &cq) continue;
    raise_qp(*qp, IBV_EVENT_QP_FATAL);
    break_queue(*qp);
  }
}

/// Polled: the places that it held. An RC queue is freed up to there, an SRD queue request by request.
void give_back(Qp& qp, const Entry& entry) {
  if (entry.retires > 0) qp.retired = qp.srd ? qp.retired + 1 : std::max(qp.retired, entry.retires);
  qp.receives_held -= std::min(entry.receives, qp.receives_held);
}

}  // namespace

void complete(Cq& cq, const Entry& entry, bool solicited) {
  if (cq.overrun || device_of(&cq).dead) return;
  if (cq.entries.size() >= static_cast<std::size_t>(cq.cqe)) {
    overrun(cq);
    return;
  }
  cq.entries.push_back(entry);
  const bool wanted = cq.armed == Cq::Armed::kAny ||
                      (cq.armed == Cq::Armed::kSolicited && (solicited || entry.wc.status != IBV_WC_SUCCESS));
  if (!wanted || cq.channel == nullptr) return;
  cq.armed = Cq::Armed::kNo;
  of(cq.channel)->events.push_back(&cq);
  signal(cq.channel->fd);
}

int poll_cq(ibv_cq* verbs, int count, ibv_wc* out) {
  Cq& cq = *of(verbs);
  Device& device = device_of(verbs);
  const std::lock_guard held(device.fabric->lock);
  device.fabric->timeline.run();
  int polled = 0;
  for (; polled < count && !cq.entries.empty(); ++polled) {
    const Entry& entry = cq.entries.front();
    out[polled] = entry.wc;
    const auto qp = device.queues.find(entry.wc.qp_num);
    if (qp != device.queues.end()) {
      give_back(*qp->second, entry);
    }
    cq.entries.pop_front();
  }
  return polled;
}

int req_notify_cq(ibv_cq* verbs, int solicited_only) {
  const std::lock_guard held(device_of(verbs).fabric->lock);
  of(verbs)->armed = solicited_only != 0 ? Cq::Armed::kSolicited : Cq::Armed::kAny;
  return 0;
}

void forget_completions(Qp& qp) {
  for (ibv_cq* const cq : {qp.qp_base.send_cq, qp.qp_base.recv_cq}) {
    std::erase_if(of(cq)->entries,
                  [&qp](const Entry& entry) { return entry.wc.qp_num == qp.qp_base.qp_num; });
  }
}

void fill_completion_calls(transport::rdma::VerbsLibrary& verbs) {
  verbs.create_comp_channel = create_comp_channel;
  verbs.destroy_comp_channel = destroy_comp_channel;
  verbs.create_cq = create_cq;
  verbs.destroy_cq = destroy_cq;
  verbs.get_cq_event = get_cq_event;
  verbs.ack_cq_events = ack_cq_events;
}

}  // namespace mkernel::test::nic
