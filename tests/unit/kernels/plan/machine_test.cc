#include "kernels/plan/machine.h"

#include <doctest/doctest.h>

#include "kernels/ops/ag_gemm/plan.h"
#include "kernels/plan/sm90_tile.h"
#include "kernels/plan/topology.h"

namespace mkernel::kernels {
namespace {

TEST_CASE("a machine is found by what CUDA calls the device, and has the device's multiprocessors") {
  CHECK(machine_of_device("NVIDIA H200", 132).name == "H200");
  CHECK(machine_of_device("NVIDIA H200 NVL", 132).name == "H200");
  CHECK(machine_of_device("NVIDIA H100 80GB HBM3", 132).name == "H100");
  CHECK(machine_of_device("NVIDIA H20", 78).name == "H20");
  CHECK(machine_of_device("NVIDIA H800", 114).name == "H100");  // not known
  CHECK(machine_of_device("NVIDIA H800", 114).sms == 114);
  CHECK(machine_of_device("NVIDIA H200", 132).measured);
  CHECK_FALSE(machine_of_device("NVIDIA H20", 78).measured);
}

TEST_CASE("a machine that there is not is refused by field, value and what there is") {
  CHECK(machine_named("H20").value().sms == 78);
  const Status refused = machine_named("h200").status();
  CHECK(refused.code() == StatusCode::kInvalidArgument);
  CHECK(refused.text() == "machine = \"h200\", must be one of H200, H100, H20");
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
