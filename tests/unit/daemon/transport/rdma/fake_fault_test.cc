// What goes wrong on the fake's fabric: paths, ports, devices, queues, registrations, and what is left
// behind.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <thread>

#include "tests/unit/daemon/transport/rdma/rc_pair.h"

namespace mkernel::test::nic {
namespace {

using namespace std::chrono_literals;

/// The next asynchronous event, acknowledged; -1: none.
int next_event(const End& end) {
  ::fcntl(end.context->async_fd, F_SETFL, O_NONBLOCK);
  ibv_async_event event{};
  if (end.verbs.get_async_event(end.context, &event) != 0) return -1;
  end.verbs.ack_async_event(&event);
  return event.event_type;
}

TEST_CASE("a path that is down for less than the retries last costs nothing but time") {
  RcPair pair;
  pair.connect(to_rts(16));  // a second and more
  pair.a.memory[0] = 5;
  pair.fabric.set_paths("nic_a", "nic_b", {.down = true});
  REQUIRE(pair.a.write(pair.b, 1, 0, 8, IBV_SEND_SIGNALED) == 0);
  CHECK(pair.a.nothing());
  pair.fabric.set_paths("nic_a", "nic_b", {});
  const auto done = pair.a.poll(1);
  REQUIRE(done.size() == 1);
  CHECK(done[0].status == IBV_WC_SUCCESS);
  CHECK(pair.b.memory[0] == 5);
  CHECK(pair.fabric.received("nic_b") == 1);
}

TEST_CASE("a path that stays down breaks the sender only: the receiver learns nothing") {
  RcPair pair;
  pair.connect();
  pair.a.memory[0] = 5;
  bool landed = false;
  SUBCASE("data cannot get there") {
    pair.fabric.set_path("nic_a", "nic_b", {.down = true});
  }
  SUBCASE("acknowledgements cannot come back") {
    pair.fabric.set_path("nic_b", "nic_a", {.down = true});
    landed = true;
  }
  REQUIRE(pair.a.write(pair.b, 1, 0, 8, 0) == 0);
  REQUIRE(pair.a.write(pair.b, 2, 1, 8, 0) == 0);
  const auto done = pair.a.poll(2);
  REQUIRE(done.size() == 2);
  CHECK(done[0].wr_id == 1);
  CHECK(done[0].status == IBV_WC_RETRY_EXC_ERR);
  CHECK(done[1].status == IBV_WC_WR_FLUSH_ERR);
  CHECK(pair.b.memory[0] == (landed ? 5 : 0));
  CHECK(pair.b.state() == IBV_QPS_RTS);
  CHECK(pair.b.nothing());
}

TEST_CASE("timeout 0 is for ever") {
  RcPair pair;
  pair.connect(to_rts(0));
  pair.fabric.every_path({.down = true});
  REQUIRE(pair.a.write(pair.b, 1, 0, 8, IBV_SEND_SIGNALED) == 0);
  const auto limit = std::chrono::steady_clock::now() + 50ms;  // many times what the other tests need
  while (std::chrono::steady_clock::now() < limit) REQUIRE(pair.a.nothing());
  pair.fabric.every_path({});
  CHECK(pair.a.poll(1).size() == 1);
}

// The sender of a failed write cannot know what the receiver has: any prefix of the posted writes, and a part
// of the next one.
TEST_CASE("cut in mid-flight: writes landed or not, whole or in part, whatever the sender is told") {
  RcPair pair(7);
  std::uint32_t landed_and_failed = 0, torn = 0, lost = 0;
  for (int round = 0; round < 3000 && (landed_and_failed == 0 || torn == 0 || lost == 0); ++round) {
    pair.reconnect();
    pair.fabric.every_path({.latency = 150us, .jitter = 300us});
    std::fill(pair.b.memory.begin(), pair.b.memory.end(), 0);
    std::fill(pair.a.memory.begin(), pair.a.memory.end(), 1);
    const std::uint64_t before = pair.fabric.received("nic_b");
    for (std::uint64_t i = 0; i < 4; ++i) {
      REQUIRE(pair.a.write(pair.b, i, i * 1024, 8192, IBV_SEND_SIGNALED) == 0);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(150 + 10 * (round % 60)));  // the fault's time
    pair.fabric.every_path({.down = true});
    const auto done = pair.a.poll(4);
    REQUIRE(done.size() == 4);
    std::uint64_t acknowledged = 0;
    while (acknowledged < 4 && done[acknowledged].status == IBV_WC_SUCCESS) ++acknowledged;
    const std::uint64_t landed = pair.fabric.received("nic_b") - before;
    REQUIRE(landed >= acknowledged);
    for (std::uint64_t i = 0; i < landed; ++i) REQUIRE(pair.b.memory[i * 1024 + 1023] == 1);
    landed_and_failed += landed > acknowledged ? 1 : 0;
    if (landed == 4) continue;
    lost += pair.b.memory[landed * 1024] == 0 ? 1 : 0;
    torn += pair.b.memory[landed * 1024] == 1 ? 1 : 0;
    CHECK(pair.b.memory[landed * 1024 + 1023] == 0);
  }
  CHECK(landed_and_failed > 0);
  CHECK(torn > 0);
  CHECK(lost > 0);
}

TEST_CASE("after the receiver's queue pair was fenced nothing of the old path lands any more") {
  RcPair pair;
  pair.connect();
  pair.fabric.every_path({.latency = kLongWay});
  pair.a.memory[0] = 5;
  REQUIRE(pair.a.write(pair.b, 1, 0, 8, 0) == 0);
  SUBCASE("to the error state") {
    ibv_qp_attr error{};
    error.qp_state = IBV_QPS_ERR;
    REQUIRE(pair.b.verbs.modify_qp(pair.b.qp, &error, IBV_QP_STATE) == 0);
  }
  SUBCASE("destroyed") {
    pair.b.destroy_qp();
  }
  const auto done = pair.a.poll(1);
  REQUIRE(done.size() == 1);
  CHECK(done[0].status == IBV_WC_RETRY_EXC_ERR);
  CHECK(pair.b.memory[0] == 0);
}

TEST_CASE("a port goes down and comes back: events at its own host, packets lost in between") {
  RcPair pair;
  pair.connect();
  pair.fabric.set_port("nic_b", 1, IBV_PORT_DOWN);
  CHECK(next_event(pair.b) == IBV_EVENT_PORT_ERR);
  CHECK(next_event(pair.a) == -1);
  ibv_port_attr port{};
  CHECK(pair.b.verbs.query_port(pair.b.context, 1, &port) == 0);
  CHECK(port.state == IBV_PORT_DOWN);
  REQUIRE(pair.a.write(pair.b, 1, 0, 8, 0) == 0);
  CHECK(pair.a.poll(1).size() == 1);
  pair.fabric.set_port("nic_b", 1, IBV_PORT_ACTIVE);
  CHECK(next_event(pair.b) == IBV_EVENT_PORT_ACTIVE);
  pair.reconnect();
  REQUIRE(pair.a.write(pair.b, 1, 0, 8, IBV_SEND_SIGNALED) == 0);
  const auto done = pair.a.poll(1);
  REQUIRE(done.size() == 1);
  CHECK(done[0].status == IBV_WC_SUCCESS);
}

TEST_CASE("a GID that moves: an event, and the old address reaches nobody") {
  RcPair pair;
  pair.connect();
  pair.fabric.set_gids("nic_b", 1, {{ipv4_gid(10, 9, 9, 9), IBV_GID_TYPE_ROCE_V2}});
  CHECK(next_event(pair.b) == IBV_EVENT_GID_CHANGE);
  ibv_gid_entry entry{};
  CHECK(pair.b.verbs.query_gid_ex(pair.b.context, 1, 0, &entry) == 0);
  CHECK(entry.gid.raw[15] == 9);
  CHECK(entry.gid_type == IBV_GID_TYPE_ROCE_V2);
  CHECK(pair.b.verbs.query_gid_ex(pair.b.context, 1, 1, &entry) == ENODATA);
  REQUIRE(pair.a.write(pair.b, 1, 0, 8, 0) == 0);
  const auto done = pair.a.poll(1);
  REQUIRE(done.size() == 1);
  CHECK(done[0].status == IBV_WC_RETRY_EXC_ERR);
}

TEST_CASE("a device that dies says so once, completes nothing and lets itself be taken down") {
  RcPair pair;
  pair.connect();
  pair.fabric.every_path({.latency = kLongWay});
  REQUIRE(pair.a.write(pair.b, 1, 0, 8, IBV_SEND_SIGNALED) == 0);
  pair.fabric.fail_device("nic_a");
  CHECK(next_event(pair.a) == IBV_EVENT_DEVICE_FATAL);
  CHECK(pair.a.write(pair.b, 2, 0, 8, 0) == EIO);
  ibv_port_attr port{};
  CHECK(pair.a.verbs.query_port(pair.a.context, 1, &port) == EIO);
  CHECK(pair.a.verbs.alloc_pd(pair.a.context) == nullptr);
  CHECK(pair.a.nothing());
}

TEST_CASE("a completion queue that overruns takes its queue pairs with it") {
  RcPair pair(1, 2);
  pair.connect();
  for (int i = 0; i < 3; ++i) REQUIRE(pair.a.write(pair.b, 1, 0, 8, IBV_SEND_SIGNALED) == 0);
  CHECK(next_event(pair.a) == IBV_EVENT_CQ_ERR);
  CHECK(next_event(pair.a) == IBV_EVENT_QP_FATAL);
  CHECK(pair.a.state() == IBV_QPS_ERR);
  CHECK(pair.a.poll(2).size() == 2);
  CHECK(pair.a.nothing());
}

TEST_CASE("registrations fail for the reasons that machines have") {
  Fabric fabric;
  fabric.add_device("one", {.name = "nic_a", .memlock_bytes = 1 << 16, .dma_buf = false});
  End end;
  end.open(fabric.verbs("one"));
  CHECK(fabric.registered("nic_a") == 1 << 16);
  std::uint64_t more = 0;
  const auto reg = [&] {
    errno = 0;
    return end.verbs.reg_mr(end.pd, &more, sizeof(more), 0, IBV_ACCESS_LOCAL_WRITE);
  };
  CHECK(reg() == nullptr);
  CHECK(errno == ENOMEM);
  CHECK(end.verbs.reg_dmabuf_mr(end.pd, 0, 8, 0, -1, IBV_ACCESS_LOCAL_WRITE) == nullptr);
  CHECK(errno == EOPNOTSUPP);
  CHECK(end.verbs.dereg_mr(end.mr) == 0);
  CHECK(fabric.registered("nic_a") == 0);
  fabric.fail_registrations("nic_a", EINVAL, 1);
  CHECK(reg() == nullptr);
  CHECK(errno == EINVAL);
  void* const nowhere = ::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ::munmap(nowhere, 4096);
  CHECK(end.verbs.reg_mr(end.pd, nowhere, 4096, 0, 0) == nullptr);
  CHECK(errno == EFAULT);
  CHECK(end.verbs.reg_mr(end.pd, &more, 8, 0, IBV_ACCESS_REMOTE_WRITE) == nullptr);
  CHECK(errno == EINVAL);
  end.mr = reg();
  CHECK(end.mr != nullptr);
  end.close();
  CHECK(fabric.complaints().empty());
}

TEST_CASE("what is in use cannot be destroyed, and what is left behind is named") {
  Fabric fabric;
  fabric.add_device("one", {.name = "nic_a"});
  End end;
  end.open(fabric.verbs("one"));
  end.create();
  CHECK(end.verbs.destroy_cq(end.cq) == EBUSY);
  CHECK(end.verbs.destroy_comp_channel(end.channel) == EBUSY);
  CHECK(end.verbs.dealloc_pd(end.pd) == EBUSY);
  CHECK(fabric.complaints().size() == 1 + 1 + 5);  // freed in use; open; pd, channel, cq, mr, qp
  end.close();
  CHECK(fabric.complaints().size() == 1);
}

TEST_CASE("a device that may not be opened says why") {
  Fabric fabric;
  fabric.add_device("one", {.name = "nic_a", .open_error = EACCES});
  const auto verbs = fabric.verbs("one");
  ibv_device** const devices = verbs.get_device_list(nullptr);
  REQUIRE(devices != nullptr);
  CHECK(verbs.open_device(devices[0]) == nullptr);
  CHECK(errno == EACCES);
  verbs.free_device_list(devices);
}

TEST_CASE("each host lists its own devices") {
  Fabric fabric;
  fabric.add_device("one", {.name = "nic_a"});
  fabric.add_device("one", {.name = "nic_b"});
  fabric.add_device("two", {.name = "nic_c"});
  const auto names = [&](const char* host) {
    const auto verbs = fabric.verbs(host);
    int count = 0;
    ibv_device** const devices = verbs.get_device_list(&count);
    std::string all;
    for (int i = 0; i < count; ++i) all.append(verbs.get_device_name(devices[i])).append(" ");
    CHECK(devices[count] == nullptr);
    verbs.free_device_list(devices);
    return all;
  };
  CHECK(names("one") == "nic_a nic_b ");
  CHECK(names("two") == "nic_c ");
}

TEST_CASE("InfiniBand goes by LID, and a packet across routers needs hops") {
  Fabric fabric;
  PortSettings port;
  SUBCASE("InfiniBand, without GRH") {
    port.link_layer = IBV_LINK_LAYER_INFINIBAND;
  }
  SUBCASE("RoCE with too few hops") {}
  const bool infiniband = port.link_layer == IBV_LINK_LAYER_INFINIBAND;
  fabric.add_device("one", {.name = "nic_a", .ports = {port}});
  fabric.add_device("two", {.name = "nic_b", .ports = {port}});
  End a, b;
  a.open(fabric.verbs("one"));
  b.open(fabric.verbs("two"));
  a.create();
  b.create();
  for (End* const end : {&a, &b}) {
    const End& peer = end == &a ? b : a;
    ibv_port_attr theirs{};
    REQUIRE(peer.verbs.query_port(peer.context, 1, &theirs) == 0);
    auto init = to_init();
    auto rtr = to_rtr(peer, end == &a ? 2 : 1);
    auto rts = to_rts();
    rtr.values.ah_attr.is_global = infiniband ? 0 : 1;
    rtr.values.ah_attr.dlid = theirs.lid;
    CHECK((theirs.lid != 0) == infiniband);
    REQUIRE(end->verbs.modify_qp(end->qp, &init.values, init.mask) == 0);
    if (!infiniband) {
      rtr.values.ah_attr.grh.hop_limit = 1;
      CHECK(end->verbs.modify_qp(end->qp, &rtr.values, rtr.mask) == ETIMEDOUT);
      continue;
    }
    REQUIRE(end->verbs.modify_qp(end->qp, &rtr.values, rtr.mask) == 0);
    REQUIRE(end->verbs.modify_qp(end->qp, &rts.values, rts.mask) == 0);
  }
  if (infiniband) {
    REQUIRE(a.write(b, 1, 0, 8, IBV_SEND_SIGNALED) == 0);
    const auto done = a.poll(1);
    REQUIRE(done.size() == 1);
    CHECK(done[0].status == IBV_WC_SUCCESS);
  }
  a.close();
  b.close();
}

TEST_CASE("two threads write to each other, each polls its own end") {
  RcPair pair;
  pair.connect();
  pair.fabric.every_path({.latency = 5us, .jitter = 20us});
  constexpr std::uint64_t kWrites = 2000;
  const auto drive = [](End& own, const End& peer) {
    std::uint64_t posted = 0, done = 0;
    const auto limit = std::chrono::steady_clock::now() + 20s;
    while (done < kWrites && std::chrono::steady_clock::now() < limit) {
      if (posted < kWrites && posted - done < 8) {
        own.memory[0] = ++posted;
        ibv_sge part{own.address(), 8, own.mr->lkey};
        ibv_send_wr request{};
        request.sg_list = &part;
        request.num_sge = 1;
        request.opcode = IBV_WR_RDMA_WRITE;
        request.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
        request.wr.rdma.remote_addr = peer.address() + 64;
        request.wr.rdma.rkey = peer.mr->rkey;
        ibv_send_wr* bad = nullptr;
        if (ibv_post_send(own.qp, &request, &bad) != 0) return;
      }
      ibv_wc wc{};
      while (ibv_poll_cq(own.cq, 1, &wc) == 1) {
        if (wc.status != IBV_WC_SUCCESS) return;
        ++done;
      }
    }
  };
  std::thread other([&] { drive(pair.b, pair.a); });
  drive(pair.a, pair.b);
  other.join();
  const auto seen = [](End& end) {
    return std::atomic_ref<std::uint64_t>(end.memory[8]).load(std::memory_order_acquire);
  };
  CHECK(seen(pair.a) == kWrites);
  CHECK(seen(pair.b) == kWrites);
}

TEST_CASE("null queues keep the depth of the send queue and complete in order") {
  Fabric fabric;
  fabric.add_device("one", {.name = "nic_a", .null_queues = true});
  End a;
  a.open(fabric.verbs("one"));
  a.create();
  for (int i = 0; i < 16; ++i) {
    REQUIRE(a.write(a, static_cast<std::uint64_t>(i), 0, 8, i % 8 == 7 ? IBV_SEND_SIGNALED : 0) == 0);
  }
  CHECK(a.write(a, 16, 0, 8, 0) == ENOMEM);
  const auto done = a.poll(2);
  REQUIRE(done.size() == 2);
  CHECK(done[0].wr_id == 7);
  CHECK(done[1].wr_id == 15);
  CHECK(a.write(a, 16, 0, 8, 0) == 0);
  a.close();
}

}  // namespace
}  // namespace mkernel::test::nic
