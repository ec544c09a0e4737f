// The daemon and its process; what they are called.
#include "tools/mkctl/doctor/checks.h"

namespace mkernel::mkctl::doctor {

const char* name_of(Severity severity) {
  switch (severity) {
    case Severity::kInfo: return "info";
    case Severity::kWarning: return "warning";
    case Severity::kError: break;
  }
  return "error";
}

const std::vector<Check>& checks() {
  static const std::vector<Check> all = {
      {"daemon", check_daemon},
      {"daemons", check_daemons},
      {"version", check_version},
      {"memlock", check_memlock},
      {"open_files", check_open_files},
      {"user_namespace", check_user_namespace},
      {"user_limits", check_user_limits},
      {"devices", check_devices},
      {"gids", check_gids},
      {"mtu", check_mtu},
      {"other_end", check_other_end},
      {"rails", check_rails},
      {"gpu_rdma", check_gpu_rdma},
      {"acs", check_acs},
      {"huge_pages", check_huge_pages},
      {"clock", check_clock},
      {"security_group", check_security_group},
      {"payload", check_payload},
  };
  return all;
}

Findings check_daemon(const Facts& facts) {
  const Daemon& daemon = facts.daemon;
  if (!daemon.reached())
    return {
        {Severity::kError, daemon.unreachable,
         "without it no job of this node gets to the network, and only what this user sees is checked below",
         "systemctl status mkerneld, journalctl -u mkerneld; --socket or MKERNEL_CONTROL name another "
         "socket"}};
  Findings findings;
  for (const std::string& reason : daemon.reasons)
    findings.push_back({Severity::kError, "the daemon on " + daemon.node + " is not healthy: " + reason,
                        "groups with ranks behind it cannot form, or fail",
                        "mkctl peers shows every peer; look at the same place on the other node"});
  return findings;
}

Findings check_daemons(const Facts& facts) {
  if (facts.daemons.size() < 2) return {};
  std::string list;
  for (const std::string& daemon : facts.daemons) list += (list.empty() ? "" : "; ") + daemon;
  const std::string answered = facts.daemon.reached()
                                   ? "pid " + std::to_string(facts.daemon.pid) + " answered here"
                                   : "none answered here";
  return {{Severity::kWarning,
           std::to_string(facts.daemons.size()) + " daemons run on this node (" + list + "), " + answered,
           "they take NICs, ports and CPUs from each other, and a tool may have reached the wrong one",
           "stop those that are left over; where several are wanted, name the socket with --socket"}};
}

Findings check_version(const Facts& facts) {
  if (!facts.daemon.reached()) return {};
  Findings findings;
  const auto differs = [&](const std::string& who, const std::string& version) {
    findings.push_back(
        {Severity::kWarning, who + " is version " + version + ", this daemon " + facts.daemon.version,
         "versions may differ for the time of an upgrade; longer, nobody has tested them together",
         "install the same version everywhere and restart the daemons"});
  };
  if (facts.mkctl_version != facts.daemon.version) differs("mkctl", facts.mkctl_version);
  for (const Peer& peer : facts.peers)
    if (!peer.version.empty() && peer.version != facts.daemon.version)
      differs("peer " + peer.name, peer.version);
  return findings;
}

Findings check_memlock(const Facts& facts) {
  if (!facts.daemon.rdma() && facts.ports.empty()) return {};  // nothing is locked for other transports
  if (!facts.limits) {
    const std::string whose = facts.daemon.reached() ? " (pid " + std::to_string(facts.daemon.pid) + ")" : "";
    return {{Severity::kInfo, "how much memory the daemon" + whose + " may lock is not seen",
             "registered memory is locked memory",
             "start the daemon; run mkctl doctor in its container, or as its user"}};
  }
  if (facts.limits->locked_bytes == kUnlimited || facts.limits->may_lock_anyway) return {};
  return {{facts.daemon.rdma() ? Severity::kError : Severity::kWarning,
           "the daemon may lock " + std::to_string(facts.limits->locked_bytes >> 10) + " KiB of memory",
           "memory that a NIC reads or writes is locked; registering more fails with ENOMEM",
           "LimitMEMLOCK=infinity in the unit (a service does not get /etc/security/limits.conf), "
           "--ulimit memlock=-1 for a container, then restart the daemon"}};
}

Findings check_open_files(const Facts& facts) {
  constexpr std::uint64_t kEnough = 4096;
  if (!facts.limits || facts.limits->open_files >= kEnough) return {};
  return {{Severity::kWarning, "the daemon may open " + std::to_string(facts.limits->open_files) + " files",
           "sessions, regions and peers hold file descriptors; jobs are refused when they run out",
           "LimitNOFILE=1048576 in the unit, then restart the daemon"}};
}

Findings check_user_namespace(const Facts& facts) {
  if (!facts.ids) return {};
  Findings findings;
  const auto find = [&](Severity severity, const base::IdMap& map, const std::string& which,
                        const std::string& why) {
    if (map.complete()) return;
    findings.push_back({severity,
                        "the daemon runs in a user namespace that maps " + std::to_string(map.mapped()) +
                            " " + which + " ids of " + std::to_string(base::IdMap::kIds),
                        "the daemon sees all others as " + std::to_string(map.overflow()) +
                            " and cannot tell them apart: " + why,
                        "run the daemon in the user namespace of the host (PrivateUsers=no, hostUsers: true, "
                        "--userns=host), or map the users and groups of all jobs into its own"});
  };
  find(Severity::kWarning, facts.ids->users, "user", "jobs of users that are not mapped are refused");
  find(Severity::kInfo, facts.ids->groups, "group",
       "tables of [users] for groups that are not mapped have no effect");
  return findings;
}

Findings check_user_limits(const Facts& facts) {
  if (!facts.budget) return {};
  Findings findings;
  const auto compare = [&](const std::string& key, std::uint64_t allowed, const std::string& what,
                           std::uint64_t there, const std::string& todo) {
    if (allowed <= there) return;
    findings.push_back({Severity::kWarning,
                        "users.default." + key + " = " + std::to_string(allowed) + " is above the " +
                            std::to_string(there) + " " + what + " that all sessions have together",
                        "one user can take all of them, and the others are refused", todo});
  };
  compare("max_fds", facts.budget->user_fds, "fds", facts.budget->fds,
          "LimitNOFILE=1048576 in the unit, or a smaller limit in the configuration");
  compare("max_regions", facts.budget->user_regions, "mappings", facts.budget->mappings,
          "a larger vm.max_map_count (sysctl), or a smaller limit in the configuration");
  return findings;
}

}  // namespace mkernel::mkctl::doctor
