// What a machine can do, as plans assume it. The one place for such numbers: rates that were measured, or
// that a data sheet gives.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/plan/sm90_tile.h"
#include "proto/abi/status.h"

namespace mkernel::kernels {

/// A GPU and its links, or a host whose threads play the CTAs. Plain data: a caller may change any of it. All
/// ranks of a group plan with the same.
struct Machine {
  std::string_view name;      ///< static text
  bool measured = false;      ///< false: the rates are those of a data sheet, or assumed to be the H200's
  std::int32_t sms = 0;       ///< multiprocessors that a kernel may use
  std::int32_t gpc_sms = 18;  ///< multiprocessors of a GPC, whose equal requests reach L2 as one
  std::int32_t most_ranks = kMaxKernelRanks;  ///< of a group
  std::int32_t most_nodes = kMaxKernelNodes;
  std::int32_t most_node_ranks = kMaxNodeRanks;
  std::int32_t row_elements = 8;  ///< rows of an operand hold a multiple of this: TMA moves whole 16 bytes
  std::int32_t cta_multiple = 2;  ///< CTAs that communicate are a multiple of this: clusters come in pairs

  // One multiprocessor.
  double clock = 0;                  ///< cycles a second under load
  double tensor_operations = 0;      ///< a cycle, 16-bit operands, dense
  double tensor_share = 0.95;        ///< of these that a main loop reaches
  double l2_bytes = 48;              ///< a cycle, while all multiprocessors ask
  double product_operations = 6e12;  ///< a second, over the whole of a large product
  /// Cycles of a score of attention beside its two products. From cuDNN's rates on an H200 with 64 and 128
  /// columns a head; the body of this project has not been measured.
  double softmax_cycles = 0.055;

  // The memory of the whole GPU.
  double memory_bytes = 4.3e12;  ///< a second, read by kernels
  /// Of an operand that a product under way takes from memory again, bytes a second of its time: rasters of
  /// 128 x 256 tiles in low bands and in high ones, 1024 to 2048 rows (H100, tests/perf/notes.md).
  double reread_bytes = 17e12;
  double l2_keeps = 45e6;  ///< bytes of such an operand: 42 MB stayed in the L2 of an H100, 235 MB did not
  double memory_latency = 1.2e-6;  ///< seconds from a load to its bytes, while all multiprocessors load
  double cluster_exchange =
      1.1e-6;  ///< seconds in which two CTAs of a cluster give each other half of their sums

  // One CTA that communicates, bytes a second.
  double push_bytes = 46e9;      ///< stored at other ranks of the node
  double load_bytes = 52e9;      ///< taken up from memory
  double load_seconds = 110e-9;  ///< that each such load costs beside
  double prepare_bytes = 20e9;   ///< taken up for the wire, where chunks wait for each other's puts
  double sum_bytes = 24e9;       ///< summed and pushed on, all sources read and all stores counted

  // Links and wire, bytes a second that one GPU sends.
  double links_bulk = 345e9;   ///< bulk copies over NVLink
  double links_store = 354e9;  ///< tensor stores over NVLink
  double nic = 50e9;           ///< to other nodes: a 400 Gb/s NIC per GPU
  /// Bytes a second to which kernels hold what they send to others of the node, and seconds that what was
  /// sent so takes besides (with_paced_links()); 0: nothing is held.
  double paced_links = 0, paced_latency = 0.7e-6;

  // Seconds.
  double launch = 3e-6;        ///< from the launch to the first load
  double last_stores = 3e-6;   ///< from the last sum to the end of the launch
  double push_latency = 3e-6;  ///< from a push to the waiter that sees it
  double rank_skew = 0.02;  ///< part of a product by which ranks may begin apart: their GPUs' speeds differ
  double wire_latency = 15e-6;  ///< from a chunk that may be put to one that has arrived

  /// The same machine with so many multiprocessors.
  constexpr Machine with_sms(std::int32_t count) const {
    Machine other = *this;
    other.sms = count;
    return other;
  }
};

/// Everything measured (tests/perf/results/h200*.json).
inline constexpr Machine kH200{
    .name = "H200", .measured = true, .sms = 132, .clock = 1.755e9, .tensor_operations = 4096};
/// Data sheet of the H100 SXM5: the tensor cores and links of an H200. Of the rate of the memory, 3.35 TB/s,
/// as large a part as on an H200.
inline constexpr Machine kH100{
    .name = "H100", .sms = 132, .clock = 1.755e9, .tensor_operations = 4096, .memory_bytes = 3.0e12};
/// Data sheet of the H800 SXM5: an H100 whose links carry 400 of its 900 GB/s.
inline constexpr Machine kH800{.name = "H800",
                               .sms = 132,
                               .clock = 1.755e9,
                               .tensor_operations = 4096,
                               .memory_bytes = 3.0e12,
                               .links_bulk = 153e9,
                               .links_store = 157e9};
/// Data sheet of the GH200: an H100 with memory of 4 TB/s.
inline constexpr Machine kGh200{
    .name = "GH200", .sms = 132, .clock = 1.755e9, .tensor_operations = 4096, .memory_bytes = 3.6e12};
/// Data sheet of the H100 PCIe: 756 TFLOP/s on 114 multiprocessors, memory with 2 TB/s, PCIe with 64 GB/s a
/// direction. Of pairs with a bridge it is not known here that they have one.
inline constexpr Machine kH100Pcie{.name = "H100 PCIe",
                                   .sms = 114,
                                   .clock = 1.62e9,
                                   .tensor_operations = 4096,
                                   .product_operations = 4.6e12,
                                   .memory_bytes = 1.8e12,
                                   .links_bulk = 49e9,
                                   .links_store = 50e9};
/// Data sheet of the H100 NVL: 835 TFLOP/s, memory with 3.9 TB/s, a bridge between two with 600 GB/s.
inline constexpr Machine kH100Nvl{.name = "H100 NVL",
                                  .sms = 132,
                                  .clock = 1.54e9,
                                  .tensor_operations = 4096,
                                  .product_operations = 5.1e12,
                                  .memory_bytes = 3.5e12,
                                  .links_bulk = 230e9,
                                  .links_store = 236e9};
/// Data sheet of the H200 NVL: 835 TFLOP/s, the memory of an H200, bridges between two or four with 900 GB/s.
inline constexpr Machine kH200Nvl{
    .name = "H200 NVL", .sms = 132, .clock = 1.54e9, .tensor_operations = 4096, .product_operations = 5.1e12};
/// Data sheet of the H20: 148 TFLOP/s on 78 multiprocessors, memory with 4 TB/s, the links of an H200.
inline constexpr Machine kH20{.name = "H20",
                              .sms = 78,
                              .clock = 1.83e9,
                              .tensor_operations = 1024,
                              .product_operations = 1.7e12,
                              .memory_bytes = 3.6e12};

/// A device whose name is not known here: its own clock and multiprocessors, the rest assumed to be an
/// H100's.
inline constexpr Machine kUnknownMachine{
    .name = "unknown", .sms = 132, .clock = 1.755e9, .tensor_operations = 4096, .memory_bytes = 3.0e12};

/// The cpu executor: threads play the CTAs, one rank's may be as many as it likes. The rates only order the
/// bands of tiles.
inline constexpr Machine kHostMachine{.name = "host",
                                      .sms = 16,
                                      .most_nodes = kMaxKernelRanks,
                                      .most_node_ranks = kMaxKernelRanks,
                                      .row_elements = 1,
                                      .cta_multiple = 1,
                                      .clock = 3e9,
                                      .tensor_operations = 64};

/// Seconds in which `ctas` push `bytes` to `stores` places, `links` of them behind NVLink.
double push_seconds(const Machine& machine, double bytes, std::int32_t stores, std::int32_t links,
                    std::int32_t ctas);

/// `machine` whose links carry `gbytes` x 10^9 bytes a second, and kernels wait as if they did: for ranks
/// that share a GPU, whose memory is faster than links. 0: `machine` as it is. `who` begins the error:
/// kInvalidArgument below 0.
Result<Machine> with_paced_links(const Machine& machine, double gbytes, const std::string& who);

/// The machine of this name ("H200", "H100 PCIe"; case matters). kInvalidArgument names the field `machine`,
/// the value and what there is.
Result<Machine> machine_named(std::string_view name);

/// The machine of a device that CUDA calls `device_name` ("NVIDIA H200"), with `sms` multiprocessors: the one
/// whose name consists of words of `device_name`, and which is built as it says: PCIe, NVL, or neither. A
/// device of another name is a kUnknownMachine with this `clock`, in cycles a second.
Machine machine_of_device(std::string_view device_name, std::int32_t sms, double clock);

/// "H200 sms=132", for the signature of an operation: ranks with other plans would wait for each other. Of an
/// unknown machine with its clock.
std::string text_of(const Machine& machine);

}  // namespace mkernel::kernels
