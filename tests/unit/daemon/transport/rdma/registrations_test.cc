// Regions as a device sees them.
#include "daemon/transport/rdma/registrations.h"

#include <doctest/doctest.h>
#include <poll.h>

#include <chrono>
#include <memory>
#include <thread>

#include "tests/support/fake_nic/fabric.h"

namespace mkernel::transport::rdma {
namespace {

constexpr std::uint64_t kPage = 4096;

/// A protection domain on a device that takes `settings`.
struct Nic {
  explicit Nic(test::nic::DeviceSettings settings = {}) {
    fabric.add_device("host", settings);
    verbs = fabric.verbs("host");
    int count = 0;
    ibv_device** const list = verbs.get_device_list(&count);
    REQUIRE(count == 1);
    context = own(verbs.open_device(list[0]), verbs.close_device);
    verbs.free_device_list(list);
    pd = own(verbs.alloc_pd(context.get()), verbs.dealloc_pd);
  }
  Registrations with_chunks(std::uint64_t bytes, Registrar* registrar = nullptr) const {
    return Registrations({&verbs, pd, "mlx5_0", bytes, registrar});
  }

  void fabric_hold(std::uint64_t bytes) const { fabric.hold_registrations("mlx5_0", bytes); }

  mutable test::nic::Fabric fabric;
  VerbsLibrary verbs;
  Object<ibv_context> context;
  std::shared_ptr<ibv_pd> pd;
};

memory::Region host_region(std::uint64_t bytes) {
  memory::Region region;
  region.kind = abi::RegionKind::kHostMemory;
  region.bytes = bytes;
  region.fd = ipc::create_shared_memory("region", bytes).value();
  region.mapping = ipc::Mapping::map(region.fd.get(), 0, bytes).value();
  return region;
}

/// GPU memory whose dma-buf, a memfd here, begins `before` bytes ahead of it.
memory::Region gpu_region(std::uint64_t bytes, std::uint64_t before,
                          abi::RegionKind kind = abi::RegionKind::kIpc) {
  memory::Region region;
  region.kind = kind;
  region.bytes = bytes;
  region.dma_buf_offset = before;
  region.dma_buf = ipc::create_shared_memory("dma-buf", (before + bytes + kPage - 1) / kPage * kPage).value();
  return region;
}

TEST_CASE("a region is registered in pieces, each reached by its own address") {
  const Nic nic;
  auto registrations = nic.with_chunks(2 * kPage);
  const auto region = host_region(5 * kPage);
  const auto made = registrations.source(region);
  REQUIRE(made.ok());
  REQUIRE(made.value()->chunks.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(made.value()->chunks[i].address == reinterpret_cast<std::uintptr_t>(region.host(2 * kPage * i)));
  }
  CHECK(made.value()->chunks[0].lkey != made.value()->chunks[1].lkey);
  CHECK(nic.fabric.registered("mlx5_0") == 5 * kPage);
  registrations.forget(region);
  CHECK(nic.fabric.registered("mlx5_0") == 0);
}

TEST_CASE("a target goes with its last user, words with theirs") {
  const Nic nic;
  auto registrations = nic.with_chunks(kPage);
  const auto region = host_region(kPage);
  REQUIRE(registrations.target(region).ok());
  REQUIRE(registrations.target(region).ok());
  std::vector<std::uint64_t> words(8);
  const auto bytes = std::as_writable_bytes(std::span(words));
  const auto rkey = registrations.words(bytes);
  REQUIRE(rkey.ok());
  CHECK(registrations.words(bytes).value() == rkey.value());
  registrations.release(region);
  registrations.release_words(bytes);
  CHECK(nic.fabric.registered("mlx5_0") == kPage + 64);
  registrations.release(region);
  CHECK(registrations.granted(region) == nullptr);
  registrations.release_words(bytes);
  CHECK(nic.fabric.registered("mlx5_0") == 0);
}

TEST_CASE("GPU memory goes by its dma-buf, from the page it begins in") {
  const Nic nic;
  auto registrations = nic.with_chunks(2 * kPage);
  const auto region = gpu_region(3 * kPage, kPage + 512);
  const auto made = registrations.target(region);
  REQUIRE_MESSAGE(made.ok(), made.status().text());
  REQUIRE(made.value()->chunks.size() == 2);
  // The address of a byte is its place in the dma-buf.
  CHECK(made.value()->chunks[0].address == kPage + 512);
  CHECK(made.value()->chunks[1].address == 3 * kPage + 512);

  const auto symmetric = gpu_region(kPage, 0, abi::RegionKind::kVmm);
  const auto whole = registrations.target(symmetric);
  REQUIRE_MESSAGE(whole.ok(), whole.status().text());
  REQUIRE(whole.value()->chunks.size() == 1);
  CHECK(whole.value()->chunks[0].address == 0);
}

TEST_CASE("what cannot be registered is refused with the reason") {
  const auto contains = [](const Status& status, const std::string& part) {
    return status.text().find(part) != std::string::npos;
  };
  SUBCASE("no dma-buf") {
    const Nic nic;
    auto registrations = nic.with_chunks(kPage);
    auto region = gpu_region(kPage, 0);
    region.dma_buf.reset();
    region.no_dma_buf = "the driver is the closed flavour";
    const Status refused = registrations.source(region).status();
    CHECK(refused.code() == StatusCode::kFailedPrecondition);
    CHECK_MESSAGE(contains(refused, "mlx5_0: GPU memory without a dma-buf"), refused.text());
    CHECK(contains(refused, "the closed flavour"));
  }
  SUBCASE("a device that takes none") {
    const Nic nic({.dma_buf = false});
    auto registrations = nic.with_chunks(kPage);
    const Status refused = registrations.source(gpu_region(kPage, 0)).status();
    CHECK_MESSAGE(contains(refused, "GPU memory by dma-buf: Operation not supported"), refused.text());
  }
  SUBCASE("too little memory may be locked") {
    const Nic nic({.memlock_bytes = 3 * kPage});
    auto registrations = nic.with_chunks(2 * kPage);
    const Status refused = registrations.source(host_region(4 * kPage)).status();
    CHECK(refused.code() == StatusCode::kResourceExhausted);
    CHECK_MESSAGE(contains(refused, "registering 8192 bytes of host memory"), refused.text());
    CHECK(nic.fabric.registered("mlx5_0") == 0);  // the first piece went again
  }
}

/// Until the registrar has called something.
void await(Registrar& registrar) {
  while (registrar.run() == 0) std::this_thread::yield();
}

bool readable(int fd) {
  pollfd wanted{fd, POLLIN, 0};
  return ::poll(&wanted, 1, 0) > 0;
}

// Its fd once stayed readable from the first registration on: a proxy thread that slept on it never slept
// again.
TEST_CASE("the registrar's fd is readable for what is to be called, and quiet when that has been called") {
  const auto registrar = Registrar::make().value();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  const auto in_time = [&] { return std::chrono::steady_clock::now() < deadline; };
  CHECK_FALSE(readable(registrar->event_fd()));
  for (int round = 0; round < 1000 && in_time(); ++round) {
    int called = 0;
    registrar->post([] {}, [&] { ++called; });
    if (round % 2 == 0) {  // else the work may be called before the fd is written to
      while (!readable(registrar->event_fd()) && in_time()) std::this_thread::yield();
    }
    while (called == 0 && in_time()) registrar->run();
    while (readable(registrar->event_fd()) && in_time()) CHECK(registrar->run() == 0);
    REQUIRE(called == 1);
  }
  CHECK(in_time());
}

TEST_CASE("a large region is registered on another thread, and given back there") {
  const Nic nic;
  const auto registrar = Registrar::make().value();
  auto registrations = nic.with_chunks(kAtOnceBytes, registrar.get());
  const auto region = std::make_shared<memory::Region>(host_region(2 * kAtOnceBytes));
  nic.fabric_hold(kAtOnceBytes);
  CHECK(registrations.source(*region).value() == nullptr);
  CHECK(registrations.target(*region).value() == nullptr);
  CHECK(registrations.granted(*region) == nullptr);
  CHECK(nic.fabric.registered("mlx5_0") == 0);
  const auto small = std::make_shared<memory::Region>(host_region(kPage));
  CHECK(registrations.source(*small).value() != nullptr);  // at once
  nic.fabric_hold(0);
  await(*registrar);
  REQUIRE(registrations.source(*region).value() != nullptr);
  CHECK(registrations.source(*region).value()->chunks.size() == 2);
  while (registrations.target(*region).value() == nullptr) await(*registrar);
  CHECK(nic.fabric.registered("mlx5_0") == 4 * kAtOnceBytes + kPage);

  registrations.release(*region);
  CHECK(registrations.granted(*region) == nullptr);
  CHECK(registrations.leaving(*region));
  CHECK(registrations.any_leaving());
  while (registrations.leaving(*region)) await(*registrar);
  CHECK(nic.fabric.registered("mlx5_0") == 2 * kAtOnceBytes + kPage);
  registrations.forget(*region);
  registrations.forget(*small);
  await(*registrar);
  CHECK(nic.fabric.registered("mlx5_0") == 0);
  CHECK(region.use_count() == 1);
}

TEST_CASE("keys that somebody may still use go before the call returns, however large the region is") {
  const Nic nic;
  const auto registrar = Registrar::make().value();
  auto registrations = nic.with_chunks(kAtOnceBytes, registrar.get());
  const auto region = std::make_shared<memory::Region>(host_region(2 * kAtOnceBytes));
  for (const bool by_forgetting : {false, true}) {
    while (registrations.target(*region).value() == nullptr) await(*registrar);
    if (by_forgetting) {
      registrations.forget(*region);
    } else {
      registrations.release_now(*region);
    }
    CHECK(nic.fabric.registered("mlx5_0") == 0);
    CHECK_FALSE(registrations.leaving(*region));
  }
}

TEST_CASE("what the other thread has still to give back is gone when the registrations are") {
  const Nic nic;
  const auto registrar = Registrar::make().value();
  const auto region = std::make_shared<memory::Region>(host_region(2 * kAtOnceBytes));
  const auto other = std::make_shared<memory::Region>(host_region(2 * kAtOnceBytes));
  {
    auto registrations = nic.with_chunks(kAtOnceBytes, registrar.get());
    while (registrations.target(*region).value() == nullptr) await(*registrar);
    nic.fabric_hold(kAtOnceBytes);
    CHECK(registrations.source(*other).value() == nullptr);  // the thread is busy with it
    registrations.release(*region);
    CHECK(registrations.leaving(*region));
    CHECK(nic.fabric.registered("mlx5_0") == 2 * kAtOnceBytes);
  }
  CHECK(nic.fabric.registered("mlx5_0") == 0);
  nic.fabric_hold(0);
}

TEST_CASE("a region that goes while it is being registered lives for as long as that takes") {
  const Nic nic;
  const auto registrar = Registrar::make().value();
  std::weak_ptr<memory::Region> watched;
  {
    auto registrations = nic.with_chunks(kAtOnceBytes, registrar.get());
    auto region = std::make_shared<memory::Region>(host_region(2 * kAtOnceBytes));
    watched = region;
    nic.fabric_hold(kAtOnceBytes);
    CHECK(registrations.source(*region).value() == nullptr);
    registrations.forget(*region);
  }
  nic.fabric_hold(0);
  while (!watched.expired()) {
    registrar->run();
    std::this_thread::yield();
  }
  CHECK(nic.fabric.registered("mlx5_0") == 0);
}

TEST_CASE("a registration that fails on the other thread is told once, with its reason") {
  const Nic nic({.memlock_bytes = kPage});
  const auto registrar = Registrar::make().value();
  auto registrations = nic.with_chunks(kAtOnceBytes, registrar.get());
  const auto region = std::make_shared<memory::Region>(host_region(2 * kAtOnceBytes));
  for (int i = 0; i < 2; ++i) {
    REQUIRE(registrations.source(*region).ok());
    await(*registrar);
    const Status refused = registrations.source(*region).status();
    CHECK(refused.code() == StatusCode::kResourceExhausted);
    CHECK(refused.text().find("mlx5_0: registering 1048576 bytes of host memory") == 0);
  }
}

TEST_CASE("a registrar that has stopped does everything at once") {
  const Nic nic;
  const auto registrar = Registrar::make().value();
  auto registrations = nic.with_chunks(kAtOnceBytes, registrar.get());
  const auto region = std::make_shared<memory::Region>(host_region(2 * kAtOnceBytes));
  registrar->stop();
  CHECK(registrations.source(*region).value() != nullptr);
  registrations.forget(*region);
  CHECK(nic.fabric.registered("mlx5_0") == 0);
}

}  // namespace
}  // namespace mkernel::transport::rdma
