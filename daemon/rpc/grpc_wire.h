// The PeerWire over gRPC.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <memory>
#include <string>

#include "daemon/cluster/peer_wire.h"
#include "daemon/rpc/tls_files.h"

namespace mkernel::rpc {

/// `io` runs the control thread and outlives the wire. A dial that finds nobody fails after `dial_timeout`.
/// The destructor lets streams that were closed finish for at most half a second, cuts the others and returns
/// when gRPC has let go of everything. The files of `tls` are read, and a name in `listen` is looked up, on
/// another thread: for the start, which waits. Errors: those of make_credentials(), kDeadlineExceeded.
Result<std::unique_ptr<cluster::PeerWire>> make_grpc_wire(boost::asio::io_context& io, const TlsFiles& tls,
                                                          std::chrono::milliseconds dial_timeout,
                                                          const std::string& listen);

}  // namespace mkernel::rpc
