#include "daemon/rpc/control_rows.h"

#include <algorithm>
#include <chrono>

#include "daemon/base/hex.h"

namespace mkernel::rpc {
namespace {

void fill_gid(const topology::Gid& from, v1::Gid& to) {
  to.set_index(from.index);
  to.set_address(from.text());
  to.set_type(topology::name_of(from.type));
  to.set_interface(from.interface);
}

void fill_device(const topology::RdmaDevice& device, const topology::RdmaPort& port, v1::Device& to) {
  to.set_device(device.name);
  to.set_port(port.number);
  to.set_state(port.state);
  to.set_physical_state(port.physical_state);
  to.set_link_layer(topology::name_of(port.link_layer));
  to.set_gbps(port.gbps);
  if (const topology::Gid* gid = topology::choose_gid(port, topology::AddressFamily::kIpv4)) {
    to.set_gid(gid->text());
    to.set_gid_index(gid->index);
    to.set_gid_type(topology::name_of(gid->type));
    to.set_interface(gid->interface);
  }
  to.set_mtu(port.mtu);
  to.set_dma_buf(device.dma_buf);
  to.set_driver(device.driver);
  to.set_firmware(device.firmware);
  to.set_numa_node(device.numa_node);
  to.set_pci_address(device.pci_address);
  to.set_not_usable(topology::not_usable(device, port));
  for (const topology::Gid& gid : port.gids) fill_gid(gid, *to.add_gids());
}

}  // namespace

void fill(const session::SessionSnapshot& from, v1::Session& to) {
  to.set_id(from.id);
  to.set_client_name(from.client_name);
  to.set_pid(from.pid);
  to.set_uid(from.uid);
  to.set_device(from.device);
  to.set_weight(from.weight);
  to.set_active(from.active);
  to.set_age_seconds(from.age_seconds);
  to.set_groups(from.groups);
  to.set_regions(from.regions);
  to.set_pinned_bytes(from.pinned_bytes);
  to.set_gpu_bytes(from.gpu_bytes);
  to.set_requests_total(from.counters.requests_total);
  to.set_bytes_total(from.counters.bytes_total);
  to.set_completed_total(from.counters.completed_total);
  to.set_arrivals_total(from.counters.arrivals_total);
  to.set_arrived_bytes_total(from.counters.arrived_bytes_total);
  to.set_errors_total(from.counters.errors_total);
  to.set_stalls_total(from.counters.stalls_total);
  to.set_stall_nanoseconds_total(from.counters.stall_nanoseconds_total);
  to.set_ring_depth(from.counters.ring_depth);
  to.set_launches_total(from.launches_total);
  to.set_fallbacks_total(from.fallbacks_total);
  to.set_idle_seconds(from.idle_seconds);
  if (from.sent_per_second) to.set_bytes_per_second(*from.sent_per_second);
  if (from.arrived_per_second) to.set_arrived_bytes_per_second(*from.arrived_per_second);
}

void fill(const session::UserSnapshot& from, v1::User& to) {
  to.set_uid(from.uid);
  to.set_connections(from.connections);
  to.set_sessions(from.sessions);
  to.set_groups(from.groups);
  to.set_regions(from.regions);
  to.set_pinned_bytes(from.pinned_bytes);
  to.set_gpu_bytes(from.gpu_bytes);
  to.set_fds(from.fds);
  to.set_channels(from.channels);
  to.set_daemon_bytes(from.daemon_bytes);
  to.set_weight(from.limits.weight);
  to.set_waiting(from.waiting);
  to.set_refusals_total(from.refusals_total);
  to.set_requests_total(from.counters.requests_total);
  to.set_bytes_total(from.counters.bytes_total);
  to.set_max_connections(from.limits.max_connections);
  to.set_max_sessions(from.limits.max_sessions);
  to.set_max_regions(from.limits.max_regions);
  to.set_max_pinned_bytes(from.limits.pinned_limit());
  to.set_max_gpu_bytes(from.limits.max_gpu_bytes);
  to.set_max_fds(from.limits.max_fds);
  to.set_max_channels(from.limits.max_channels);
  to.set_max_daemon_bytes(from.limits.daemon_limit());
  to.set_max_joins_each_second(from.limits.joins_per_second);
  to.set_max_bytes_each_second(from.limits.bytes_per_second);
  to.set_max_requests_each_second(from.limits.requests_per_second);
}

void fill(const cluster::PeerSnapshot& from, v1::PeerRow& to) {
  to.set_address(from.address);
  to.set_node(from.node);
  to.set_boot_id(from.boot_id == 0 ? "" : base::hex(from.boot_id));
  to.set_version(from.version);
  to.set_state(from.state);
  to.set_silent_seconds(from.silent_seconds);
  to.set_configured(from.configured);
  to.set_sent_total(from.sent_total);
  to.set_received_total(from.received_total);
  to.set_unacknowledged(from.unacknowledged);
  to.set_reason(from.reason);
  std::uint64_t lost = 0;
  for (const cluster::RailSnapshot& rail : from.rails) {
    v1::PeerRail& row = *to.add_rails();
    row.set_rail(rail.rail);
    row.set_paths_lost_total(rail.paths_lost_total);
    row.set_down(rail.down);
    row.set_path(rail.path);
    row.set_last_loss(rail.last_loss);
    row.set_connected(rail.connected);
    row.set_waiting_seconds(rail.waiting_seconds);
    lost += rail.paths_lost_total;
  }
  to.set_paths_lost_total(lost);
  to.set_transport(from.transport);
  to.mutable_ports()->Add(from.ports.begin(), from.ports.end());
  if (from.clock) {
    to.set_clock_offset_ms(static_cast<double>(from.clock->offset_ns) / 1e6);
    to.set_round_trip_ms(static_cast<double>(from.clock->round_trip_ns) / 1e6);
  }
}

void fill(const session::GroupSnapshot& from, v1::Group& to) {
  to.set_session(from.session);
  to.set_handle(from.handle);
  to.set_name(from.name);
  to.set_owner(from.owner);
  to.set_state(from.state);
  to.set_rank(from.rank);
  to.set_world_size(from.world_size);
  to.set_nodes(from.nodes);
  to.set_lanes(from.lanes);
  to.set_rails(from.rails);
  to.set_instance(from.instance == 0 ? "" : base::hex(from.instance));
  to.set_failure(from.failure);
}

void fill(const session::RegionSnapshot& from, v1::Region& to) {
  to.set_session(from.session);
  to.set_group(from.group);
  to.set_index(from.index);
  to.set_kind(from.kind);
  to.set_bytes(from.bytes);
  to.set_shared(from.shared);
  to.set_device(from.device);
  to.set_dma_buf(from.dma_buf);
}

void fill(const session::ChannelSnapshot& from, v1::Channel& to) {
  to.set_session(from.session);
  to.set_group(from.group);
  to.set_rank(from.rank);
  to.set_peer_rank(from.peer_rank);
  to.set_peer_node(from.peer_node);
  to.set_lane(from.lane);
  to.set_puts_total(from.puts_total);
  to.set_bytes_total(from.bytes_total);
  to.set_completed_total(from.completed_total);
  to.set_arrivals_total(from.arrivals_total);
  to.set_arrived_bytes_total(from.arrived_bytes_total);
}

void fill_ports(const std::vector<topology::RdmaDevice>& devices, v1::DevicesReply& reply) {
  for (const topology::RdmaDevice& device : devices) {
    for (const topology::RdmaPort& port : device.ports) fill_device(device, port, *reply.add_devices());
  }
}

void fill(const base::SliceTimes& from, v1::ThreadSlices& to) {
  using Milliseconds = std::chrono::duration<double, std::milli>;
  to.set_longest_ms(Milliseconds(from.longest).count());
  to.set_over_limit(from.over_limit);
  to.set_longest_wall_ms(Milliseconds(from.longest_wall).count());
  to.set_wall_over_limit(from.wall_over_limit);
  if (!from.knows_sleep) return;
  to.set_longest_asleep_ms(Milliseconds(from.longest_asleep).count());
  to.set_asleep_over_limit(from.asleep_over_limit);
}

void fill_worst(v1::Status& status) {
  for (const v1::ThreadSlices& row : status.slices()) {
    status.set_longest_slice_ms(std::max(status.longest_slice_ms(), row.longest_ms()));
    status.set_slices_over_limit(status.slices_over_limit() + row.over_limit());
    status.set_longest_wall_ms(std::max(status.longest_wall_ms(), row.longest_wall_ms()));
    status.set_walls_over_limit(status.walls_over_limit() + row.wall_over_limit());
    if (!row.has_longest_asleep_ms()) continue;
    status.set_longest_asleep_ms(std::max(status.longest_asleep_ms(), row.longest_asleep_ms()));
    status.set_asleep_over_limit(status.asleep_over_limit() + row.asleep_over_limit());
  }
}

void fill(const DaemonSnapshot& from, v1::Daemon& to) {
  to.set_node(from.node);
  to.set_boot_id(base::hex(from.boot_id));
  to.set_pid(from.pid);
  to.set_version(MKERNEL_VERSION);
}

void fill(const transport::LinkShape& from, v1::Link& to) {
  to.set_bandwidth_gbytes(from.bandwidth_gbytes);
  to.set_latency_us(static_cast<std::uint64_t>(from.latency.count()));
  to.set_drop(from.drop);
  to.set_duplicate(from.duplicate);
  to.set_reorder(from.reorder);
  to.set_down(from.down);
  for (std::uint32_t rail = 0; rail < 64; ++rail) {
    if (((from.rails_down >> rail) & 1) != 0) to.add_rails_down(rail);
  }
}

}  // namespace mkernel::rpc
