// Opening an EFA: what is missing is named.
#include "daemon/transport/efa/device.h"

#include <doctest/doctest.h>

#include <cerrno>

#include "tests/support/fake_nic/fabric.h"

namespace mkernel::transport::efa {
namespace {

using test::nic::DeviceSettings;
using test::nic::EfaSettings;
using test::nic::Fabric;

EfaOptions options_for(Fabric& fabric, const DeviceSettings& settings) {
  fabric.add_device("host", settings);
  EfaOptions options;
  options.verbs = fabric.verbs("host");
  options.efa = fabric.efa();
  return options;
}

void check_refused(const EfaOptions& options, StatusCode code, const std::string& what) {
  const auto made = make_efa(options);
  REQUIRE(!made.ok());
  INFO(made.status().to_string());
  CHECK(made.status().code() == code);
  CHECK(made.status().text().find(what) != std::string::npos);
}

TEST_CASE("a device that cannot what puts need is refused by name") {
  for (const auto& [missing, name] :
       {std::pair{rdma::kEfaRdmaWrite, "no RDMA write"}, std::pair{rdma::kEfaRnrRetry, "no RNR retry"}}) {
    Fabric fabric;
    EfaSettings efa;
    efa.capabilities &= ~std::uint32_t{missing};
    check_refused(options_for(fabric, {.name = "rdmap0s6", .efa = efa}), StatusCode::kUnimplemented,
                  std::string("rdmap0s6 or its software offers ") + name);
    CHECK(fabric.complaints().empty());
  }
}

TEST_CASE("no device, another kind of device, one that may not be opened") {
  Fabric fabric;
  auto options = options_for(fabric, {.name = "mlx5_0"});
  check_refused(options, StatusCode::kNotFound, "no EFA device is there; there are: mlx5_0");
  options.devices = {"mlx5_0"};
  check_refused(options, StatusCode::kInvalidArgument, "mlx5_0 is not an EFA device");
  options.devices = {"rdmap9"};
  check_refused(options, StatusCode::kNotFound, "EFA device rdmap9 is there; there are: mlx5_0");
  Fabric closed;
  check_refused(options_for(closed, {.name = "rdmap0s6", .open_error = EACCES, .efa = EfaSettings{}}),
                StatusCode::kPermissionDenied, "rdmap0s6: opening it");
  CHECK(fabric.complaints().empty());
}

TEST_CASE("every device is opened, also one whose port is down; one that cannot be used refuses them all") {
  Fabric fabric;
  auto options = options_for(fabric, {.name = "rdmap0", .efa = EfaSettings{.max_rdma_bytes = 1U << 20}});
  fabric.add_device("host", {.name = "rdmap1", .ports = {{.state = IBV_PORT_DOWN}}, .efa = EfaSettings{}});
  fabric.add_device("host", {.name = "rdmap2", .dma_buf = false, .efa = EfaSettings{}});
  options.devices = {"rdmap1", "rdmap0"};
  options.gpu_memory = true;
  const auto made = make_efa(options);
  REQUIRE_MESSAGE(made.ok(), made.status().text());
  CHECK(made.value()->local_endpoint() == "rdmap1, rdmap0");
  CHECK(made.value()->capabilities().max_put_bytes == 1U << 20);  // whichever carries it
  options.devices.push_back("rdmap2");
  check_refused(options, StatusCode::kFailedPrecondition, "rdmap2 takes no dma-bufs");
}

TEST_CASE("options that make no sense are refused") {
  Fabric fabric;
  auto options = options_for(fabric, {.efa = EfaSettings{}});
  options.window = 32768;
  check_refused(options, StatusCode::kInvalidArgument, "window must be 1 to 32767");
  options.window = 1;
  options.credit = 0;
  check_refused(options, StatusCode::kInvalidArgument, "credit must be");
  options.credit = 1;
  options.devices.resize(65, "rdmap0s6");
  check_refused(options, StatusCode::kInvalidArgument, "more than 64 devices");
}

TEST_CASE("the send queue is as deep as the device says, asked in the newer way where there is one") {
  Fabric fabric;
  auto options = options_for(fabric, {.max_send_wr = 500, .efa = EfaSettings{}});
  options.max_inline = 0;
  const auto depth = [&] { return Device::open(options, "").value()->abilities().send_queue; };
  CHECK(depth() == 500);
  options.efa.max_sq_depth = [](ibv_context*, rdma::EfaSqDepth* shape, std::uint32_t) {
    return shape->max_rdma_sge == 1 ? 77 : -EINVAL;
  };
  CHECK(depth() == 77);
  options.efa.max_sq_depth = nullptr;  // before rdma-core 63
  CHECK(depth() == 500);
  options.send_queue = 64;
  CHECK(depth() == 64);
}

TEST_CASE(
    "payloads go inside requests where the device says that they can, and the queue is as deep as that "
    "leaves it") {
  Fabric fabric;
  auto options = options_for(fabric, {.max_send_wr = 500, .efa = EfaSettings{.inline_bytes = 24}});
  const auto abilities = [&] { return Device::open(options, "").value()->abilities(); };
  CHECK(abilities().inline_bytes == 24);
  CHECK(abilities().send_queue == 250);
  options.max_inline = 16;
  CHECK(abilities().inline_bytes == 16);
  options.efa.max_sq_depth = [](ibv_context*, rdma::EfaSqDepth* shape, std::uint32_t) {
    return shape->flags == 0 ? 77 : -EOPNOTSUPP;  // knows no writes with the payload inside
  };
  CHECK(abilities().inline_bytes == 0);
  CHECK(abilities().send_queue == 77);
  options.efa.max_sq_depth = nullptr;  // nobody says so
  CHECK(abilities().inline_bytes == 0);
}

TEST_CASE("GPU memory that was asked for and that the device cannot reach is refused by name") {
  Fabric fabric;
  auto options = options_for(fabric, {.name = "rdmap0s6", .dma_buf = false, .efa = EfaSettings{}});
  CHECK(!make_efa(options).value()->capabilities().gpu_memory);
  options.gpu_memory = true;
  check_refused(options, StatusCode::kFailedPrecondition, "rdmap0s6 takes no dma-bufs");
  Fabric able;
  options = options_for(able, {.efa = EfaSettings{}});
  options.gpu_memory = true;
  CHECK(make_efa(options).value()->capabilities().gpu_memory);
}

}  // namespace
}  // namespace mkernel::transport::efa
