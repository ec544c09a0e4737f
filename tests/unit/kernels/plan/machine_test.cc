#include "kernels/plan/machine.h"

#include <doctest/doctest.h>

#include <string_view>
#include <utility>

#include "kernels/ops/ag_gemm/plan.h"
#include "kernels/plan/sm90_tile.h"
#include "kernels/plan/topology.h"

namespace mkernel::kernels {
namespace {

TEST_CASE("a machine is found by what CUDA calls the device, and has the device's multiprocessors") {
  for (const auto& [device, name] : {std::pair{"NVIDIA H200", "H200"},
                                     {"NVIDIA H200 MIG 3g.71gb", "H200"},
                                     {"NVIDIA H200 NVL", "H200 NVL"},
                                     {"NVIDIA H100 80GB HBM3", "H100"},
                                     {"NVIDIA H100 PCIe", "H100 PCIe"},
                                     {"NVIDIA H100 NVL", "H100 NVL"},
                                     {"NVIDIA GH200 480GB", "GH200"},
                                     {"NVIDIA GH200 144G HBM3e", "GH200"},
                                     {"NVIDIA H800", "H800"},
                                     {"NVIDIA H20", "H20"},
                                     {"NVIDIA H20-3e", "H20"}}) {
    const Machine machine = machine_of_device(device, 60, 1e9);
    const bool found = machine.name == name;
    const std::string asked = device;  // clang 14 lets no lambda capture a structured binding
    CHECK_MESSAGE(found, asked);
    CHECK(machine.sms == 60);
    CHECK(machine.clock > 1.5e9);  // that of the data sheet
    CHECK(machine.measured == (std::string_view(name) == "H200"));
  }
}

TEST_CASE("a device of another name has its own clock and multiprocessors, and nothing that was measured") {
  for (const char* device : {"NVIDIA GB200", "NVIDIA H800 PCIe", "NVIDIA H2000", "NVIDIA XH200",
                             "NVIDIA PCIe", "NVIDIA H20 NVL", "NVIDIA Graphics Device", ""}) {
    CAPTURE(device);
    const Machine machine = machine_of_device(device, 148, 1.965e9);
    CHECK(machine.name == "unknown");
    CHECK(machine.sms == 148);
    CHECK(machine.clock == 1.965e9);
    CHECK_FALSE(machine.measured);
    // Ranks whose plans differ must find out.
    CHECK(text_of(machine) == "unknown sms=148 mhz=1965");
  }
  CHECK(machine_of_device("NVIDIA GB200", 148, 0).clock > 0);
  CHECK(text_of(kH200) == "H200 sms=132");
}

TEST_CASE("links of slower machines are those of their data sheets") {
  CHECK(kH800.links_bulk == doctest::Approx(kH100.links_bulk * 8 / 18).epsilon(0.01));
  CHECK(kH100Pcie.links_bulk < kH100Nvl.links_bulk);
  CHECK(kH100Nvl.links_bulk < kH200Nvl.links_bulk);
  CHECK(kH200Nvl.links_bulk == kH200.links_bulk);
}

TEST_CASE("a machine that there is not is refused by field, value and what there is") {
  CHECK(machine_named("H20").value().sms == 78);
  CHECK(machine_named("H100 PCIe").value().sms == 114);
  const Status refused = machine_named("h200").status();
  CHECK(refused.code() == StatusCode::kInvalidArgument);
  CHECK(refused.text() ==
        "machine = \"h200\", must be one of H200, H100, H20, H800, GH200, H100 PCIe, "
        "H100 NVL, H200 NVL");
}

TEST_CASE("links that are paced are those that plans reckon with, and a rate below 0 is refused by name") {
  const Machine paced = with_paced_links(kH200, 88.5, "ag_gemm").value();
  CHECK(paced.paced_links == 88.5e9);
  CHECK(paced.links_bulk == 88.5e9);
  CHECK(paced.links_store == 88.5e9);
  CHECK(with_paced_links(kH200, 0, "ag_gemm").value().paced_links == 0);
  CHECK(with_paced_links(kH200, 0, "ag_gemm").value().links_bulk == kH200.links_bulk);
  const Status refused = with_paced_links(kH200, -1, "ag_gemm").status();
  CHECK(refused.code() == StatusCode::kInvalidArgument);
  CHECK(refused.text() == "ag_gemm: link_gbytes = -1.000000, must be at least 0");
}

TEST_CASE("every rate of a machine decides what is estimated with it") {
  const GemmShape shape{4096, 1024, 4096};
  const auto seconds = [&](const Machine& machine, const Topology& topology) {
    return estimated_seconds(shape, AgGemmPlan::make(shape, topology, 0, machine).value());
  };
  const Topology node(1, 4), nodes(2, 2);
  CHECK(seconds(kH20, node) > 2 * seconds(kH200, node));  // a quarter of the tensor cores' rate
  for (double Machine::*rate :
       {&Machine::clock, &Machine::tensor_operations, &Machine::push_bytes, &Machine::links_bulk}) {
    Machine slow = kH200;
    slow.*rate /= 4;
    CHECK(seconds(slow, node) > 1.1 * seconds(kH200, node));
  }
  for (double Machine::*rate : {&Machine::nic, &Machine::prepare_bytes}) {
    Machine slow = kH200;
    slow.*rate /= 8;
    CHECK(seconds(slow, nodes) > 1.5 * seconds(kH200, nodes));
  }
  for (double Machine::*latency : {&Machine::launch, &Machine::last_stores, &Machine::push_latency}) {
    Machine late = kH200;
    late.*latency += 20e-6;
    CHECK(seconds(late, node) > seconds(kH200, node) + 15e-6);
  }
}

}  // namespace
}  // namespace mkernel::kernels
