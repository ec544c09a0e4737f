// Snapshots of the daemon as messages of the control service.
#pragma once

#include <vector>

#include "daemon/rpc/control_service.h"
#include "mkernel/v1/control.pb.h"

namespace mkernel::rpc {

void fill(const session::SessionSnapshot& from, v1::Session& to);
void fill(const session::UserSnapshot& from, v1::User& to);
void fill(const cluster::PeerSnapshot& from, v1::PeerRow& to);
void fill(const session::GroupSnapshot& from, v1::Group& to);
void fill(const session::RegionSnapshot& from, v1::Region& to);
void fill(const session::ChannelSnapshot& from, v1::Channel& to);
void fill(const DaemonSnapshot& from, v1::Daemon& to);
void fill(const transport::LinkShape& from, v1::Link& to);
/// All but the thread's name.
void fill(const base::SliceTimes& from, v1::ThreadSlices& to);
/// The longest slices and counts of all threads, from their rows.
void fill_worst(v1::Status& status);
/// A row per port.
void fill_ports(const std::vector<topology::RdmaDevice>& devices, v1::DevicesReply& reply);

template <typename Snapshots, typename Rows>
void fill_all(const Snapshots& from, Rows* to) {
  for (const auto& snapshot : from) fill(snapshot, *to->Add());
}

}  // namespace mkernel::rpc
