// What lies behind the handles of verbs: every object derives from the C structure that callers hold. All of
// it is protected by State::lock, unless it says otherwise.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/fake_nic/fabric.h"
#include "tests/support/fake_nic/timeline.h"

namespace mkernel::test::nic {

struct Device;
struct Qp;

struct Context : verbs_context {
  Device* device = nullptr;
  std::deque<ibv_async_event> events;  ///< each also counted by the eventfd `async_fd`
  std::set<std::string> alive;         ///< objects made of it and not destroyed, "qp 17"
};

struct Pd : ibv_pd {
  std::uint32_t users = 0;
};

struct Mr : ibv_mr {
  std::uint64_t iova = 0;
  unsigned access = 0;
  std::byte* base = nullptr;  ///< where `iova` lies in this process
  void* mapped = nullptr;     ///< of a dma-buf: what to unmap
  std::size_t mapped_bytes = 0;
  std::uint64_t pinned_bytes = 0;  ///< counts against memlock
};

struct Channel : ibv_comp_channel {
  std::deque<ibv_cq*> events;  ///< each also counted by the eventfd `fd`
  std::uint32_t users = 0;
};

/// A completion, and what polling it gives back to the queue pair.
struct Entry {
  ibv_wc wc{};
  std::uint32_t receives = 0;  ///< places in the receive queue
  std::uint64_t retires = 0;   ///< requests up to this number have left the send queue
};

struct Cq : ibv_cq {
  std::deque<Entry> entries;
  enum class Armed { kNo, kSolicited, kAny } armed = Armed::kNo;
  bool overrun = false;
  std::uint32_t users = 0;
  std::uint32_t reported = 0;        ///< completion events handed out
  std::uint32_t async_reported = 0;  ///< asynchronous ones
  // A null queue's: one thread, no lock, no allocation.
  struct Signalled {
    Qp* qp;
    std::uint64_t wr_id, number;  ///< number 0: something arrived
    std::uint32_t immediate = 0;
  };
  std::vector<Signalled> ring;
  std::uint64_t polled = 0, signalled = 0;
};

struct Ah : ibv_ah {
  ibv_ah_attr attributes{};
  Device* to = nullptr;
};

/// A work request on a send queue, until its completion is written.
struct Message {
  std::uint64_t number = 0;  ///< 1 for the queue pair's first
  std::uint64_t wr_id = 0;
  ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE;
  bool signalled = false;
  bool solicited = false;
  bool inlined = false;
  std::vector<std::byte> inline_data;
  std::vector<ibv_sge> parts;
  std::uint64_t length = 0;
  std::uint64_t remote = 0;
  std::uint32_t rkey = 0;
  std::uint32_t immediate = 0;  ///< network order
  // Where to: RC from the queue pair, SRD from the request.
  ibv_ah_attr address{};
  std::uint32_t target_qp = 0;
  std::uint32_t qkey = 0;
  // On its way.
  std::uint32_t psn = 0;
  std::uint32_t packets = 1;
  bool launched = false;  ///< the path was up when it was sent: part of it may land although it is cut now
  bool executed = false;  ///< at the receiver, once; `status` says how that went
  std::uint32_t refused = 0;  ///< for want of a receive
  Time arrives{}, acknowledged{};
  Time gives_up = Time::max();
  ibv_wc_status status = IBV_WC_SUCCESS;
  std::uint32_t vendor = 0;
};

inline bool writes(const Message& message) {
  return message.opcode == IBV_WR_RDMA_WRITE || message.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}
inline bool needs_receive(const Message& message) {
  return message.opcode != IBV_WR_RDMA_WRITE;
}

struct Receive {
  std::uint64_t wr_id = 0;
  std::vector<ibv_sge> parts;
};

struct Qp : ibv_qp_ex {
  Device* device = nullptr;
  ibv_qp_attr attributes{};
  ibv_qp_cap cap{};
  bool signal_all = false;
  std::uint32_t reported = 0;  ///< asynchronous events handed out
  std::uint64_t posted = 0, retired = 0;
  std::deque<std::shared_ptr<Message>> sends;
  std::deque<Receive> receives;
  std::uint32_t receives_held = 0;  ///< posted and not polled
  std::uint32_t next_psn = 0;       ///< of the next message sent
  std::uint32_t expected_psn = 0;   ///< of the next message received
  bool retrying = false;            ///< a later progress is on the timeline
  // SRD only.
  bool srd = false;
  std::uint16_t efa_flags = 0;
  std::vector<std::shared_ptr<Message>> building;  ///< between wr_start and wr_complete
  int building_error = 0;
  // A null queue's: one thread, no lock.
  std::uint64_t null_posted = 0, null_retired = 0;
  struct NullWrite {
    std::uint64_t wr_id;
    std::uint32_t immediate, target_qp;
    Device* to;
  };
  std::vector<NullWrite> null_building;  ///< SRD, between wr_start and wr_complete
};

struct Device : ibv_device {
  Fabric::State* fabric = nullptr;
  DeviceSettings settings;
  bool dead = false;
  std::set<Context*> contexts;
  std::map<std::uint32_t, Mr*> keys;  ///< lkey = rkey
  std::map<std::uint32_t, Qp*> queues;
  std::multiset<Device*> known;  ///< one for every address handle to that device
  std::set<Device*> heard;       ///< devices that answered this one
  std::uint64_t pinned_bytes = 0;
  std::uint64_t received = 0;
  std::uint64_t queue_pairs = 0;  ///< made so far
  std::uint64_t held_bytes = 0;   ///< registrations of so much wait; 0: none
  int registration_error = 0;
  std::uint32_t registration_failures = 0;
};

struct Host {
  std::string name;
  std::size_t slot = 0;  ///< which get_device_list() is its
  std::vector<Device*> devices;
};

struct Fabric::State {
  explicit State(std::uint64_t seed) : random(seed), timeline(lock) {}

  std::mutex lock;
  std::condition_variable changed;  ///< what is held may go on
  std::mt19937_64 random;
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<std::unique_ptr<Host>> hosts;
  std::map<std::pair<const Device*, const Device*>, Path> paths;
  Path default_path;
  std::vector<std::string> complaints;
  std::uint32_t next_key = 0x1001, next_qp = 0x11, next_handle = 1;
  Timeline timeline;  ///< last: its thread ends first

  const Path& path(const Device* from, const Device* to) const {
    const auto found = paths.find({from, to});
    return found == paths.end() ? default_path : found->second;
  }
  Device& device(const std::string& name);
  /// When what is sent now arrives.
  Time travel(const Device* from, const Device* to);
};

inline Context* of(ibv_context* context) {
  return static_cast<Context*>(verbs_get_ctx(context));
}
inline Pd* of(ibv_pd* pd) {
  return static_cast<Pd*>(pd);
}
inline Mr* of(ibv_mr* mr) {
  return static_cast<Mr*>(mr);
}
inline Channel* of(ibv_comp_channel* channel) {
  return static_cast<Channel*>(channel);
}
inline Cq* of(ibv_cq* cq) {
  return static_cast<Cq*>(cq);
}
inline Ah* of(ibv_ah* ah) {
  return static_cast<Ah*>(ah);
}
inline Qp* of(ibv_qp* qp) {
  return static_cast<Qp*>(reinterpret_cast<ibv_qp_ex*>(qp));
}
inline Qp& of_request(ibv_qp_ex* qp) {
  return *static_cast<Qp*>(qp);
}

inline ibv_qp* base_of(Qp* qp) {
  return &qp->qp_base;
}

template <typename Object>
Device& device_of(Object* object) {
  return *of(object->context)->device;
}

/// Null with errno, as most calls that make something answer.
inline std::nullptr_t fail(int error) {
  errno = error;
  return nullptr;
}

// ---- files of this folder, to each other; all with the lock held

/// calls.cc: an object was made or destroyed; for the search for leaks.
std::string name_of(const char* kind, std::uint32_t handle);
void signal(int event_fd);
void raise(Device& device, const ibv_async_event& event);
void raise_qp(Qp& qp, ibv_event_type type);
bool of_queue_pair(const ibv_async_event& event);
/// Of an object that goes: what nobody fetched.
void forget_async_events(Context& context, const std::function<bool(const ibv_async_event&)>& which);

/// memory.cc: where [address, +length) lies, if the key, its protection domain and rights allow it.
std::byte* reach(Device& device, std::uint32_t key, const ibv_pd* pd, std::uint64_t address,
                 std::uint64_t length, unsigned rights);
void fill_memory_calls(transport::rdma::VerbsLibrary& verbs);

/// completion.cc
void complete(Cq& cq, const Entry& entry, bool solicited);
int poll_cq(ibv_cq* cq, int count, ibv_wc* out);
int req_notify_cq(ibv_cq* cq, int solicited_only);
void forget_completions(Qp& qp);
void fill_completion_calls(transport::rdma::VerbsLibrary& verbs);

/// queue_pair.cc
Qp* make_queue(ibv_pd* pd, const ibv_qp_init_attr& init, bool srd);
void fill_queue_calls(transport::rdma::VerbsLibrary& verbs);
/// To the error state: everything posted is flushed.
void break_queue(Qp& qp);
void complete_send(Qp& qp, const Message& message, ibv_wc_status status, std::uint32_t vendor);
void complete_receive(Qp& qp, const Receive& receive, ibv_wc wc, bool solicited);

/// post.cc
int post_send(ibv_qp* qp, ibv_send_wr* requests, ibv_send_wr** bad);
int post_recv(ibv_qp* qp, ibv_recv_wr* requests, ibv_recv_wr** bad);

/// wire.cc: what RC and SRD share.
struct Place {
  Device* device = nullptr;
  std::uint8_t port = 0;
};
/// Who has this address, as seen from that port; no device when nobody has.
Place destination(const Device& from, std::uint8_t port, const ibv_ah_attr& address);
/// Both ports are up and the path is.
bool carries(const Device& from, std::uint8_t port, const Place& to);
/// What a message that consumes a receive says there, but for whose receive it is.
ibv_wc inbound(const Qp& from, const Message& message);
/// Reads the message's own memory; false = a local protection error.
bool gather(Qp& qp, const Message& message, std::vector<std::byte>& out);
/// Into remote memory. Eight aligned bytes go as one store with release order, as a NIC's do.
void store(std::byte* to, const std::byte* from, std::uint64_t bytes);
bool scatter(Qp& qp, const Receive& receive, const std::vector<std::byte>& data);

/// rc.cc
void send_rc(Qp& qp, std::shared_ptr<Message> message);
void progress_rc(Qp& qp);

/// srd.cc
void send_srd(Qp& qp, std::shared_ptr<Message> message);
/// srd_requests.cc
void fill_efa_calls(transport::rdma::EfaLibrary& efa);

/// null_queue.cc
int null_post_send(ibv_qp* qp, ibv_send_wr* requests, ibv_send_wr** bad);
int null_poll_cq(ibv_cq* cq, int count, ibv_wc* out);
/// The calls behind ibv_wr_*, of writes with immediate data.
void fill_null_requests(Qp& qp);

}  // namespace mkernel::test::nic
