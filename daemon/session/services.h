// What every session works with. Owned by the session server; outlives the sessions.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/base/line_limit.h"
#include "daemon/base/owner_workers.h"
#include "daemon/config/config.h"
#include "daemon/dataplane/proxy.h"
#include "daemon/memory/open_region.h"
#include "daemon/session/account.h"
#include "daemon/session/control_door.h"
#include "daemon/session/group_coordinator.h"
#include "daemon/session/undertaker.h"

namespace mkernel::session {

class Session;

/// Control thread only.
struct Services {
  boost::asio::io_context& io;
  std::string node_name;
  std::uint64_t boot_id = 0;
  std::uint32_t log2_slots = 12;
  config::Limits limits;
  std::vector<dataplane::Proxy*> proxies;  ///< by rail
  Accounts accounts;
  /// Closes what clients have sent, and frees their regions.
  std::unique_ptr<Undertaker> undertaker = std::make_unique<Undertaker>(io, accounts);
  /// Opens regions, which takes time with their size: a thread for each user who registers some.
  std::unique_ptr<base::OwnerWorkers> opener = std::make_unique<base::OwnerWorkers>("mk-regions");
  /// For its jobs, which may end later than the sessions.
  std::shared_ptr<ControlDoor> door = std::make_shared<ControlDoor>(io);
  /// Lines of the log that clients cause, by uid: each line at a level that is written by default asks here.
  /// Far below what journald takes of a service (10,000 in 30 s).
  std::unique_ptr<base::LineLimit> lines =
      std::make_unique<base::LineLimit>(base::LineLimit::Rates{.each = 20, .all = 100});
  /// By uid. Of jobs of the opener too, which may end later than the sessions.
  std::shared_ptr<ipc::WriteHolds> holds = std::make_shared<ipc::WriteHolds>();
  GroupCoordinator* coordinator = nullptr;
  std::uint64_t last_region_id = 0;
  unsigned gpu_major = memory::kNvidiaMajor;

  /// The rails near the GPU at this PCI address (abi::Hello), bit r: rail r; 0 where there is none.
  std::function<std::uint32_t(std::uint64_t pci_address)> rails_near;
  /// Sessions that have said hello and have not yet let go of everything.
  std::function<std::size_t()> session_count;
  /// A living session of this daemon, or nullptr.
  std::function<Session*(dataplane::SessionId)> find_session;
  /// The user of a living session of this daemon.
  std::function<std::optional<std::uint32_t>(dataplane::SessionId)> uid_of;
  /// Called once when a session has let go of everything; the session is destroyed afterwards, not inside.
  std::function<void(dataplane::SessionId)> session_done;
  /// A group's channels are closed on every proxy.
  std::function<void()> group_closed;

  std::uint32_t rails() const { return static_cast<std::uint32_t>(proxies.size()); }
};

}  // namespace mkernel::session
