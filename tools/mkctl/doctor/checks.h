// The judgements of `mkctl doctor`: each a pure function of the facts.
#pragma once

#include <string>
#include <vector>

#include "tools/mkctl/doctor/facts.h"

namespace mkernel::mkctl::doctor {

enum class Severity { kInfo, kWarning, kError };

/// "info", "warning", "error".
const char* name_of(Severity severity);

struct Finding {
  Severity severity = Severity::kInfo;
  std::string what;
  std::string why;   ///< it matters
  std::string todo;  ///< what to do
};

using Findings = std::vector<Finding>;

/// Each returns what is wrong or could not be looked at, nothing where all is well. An error keeps the daemon
/// from doing its work as it is configured; a warning costs speed or hides a fault; an info is what could not
/// be checked.
Findings check_daemon(const Facts& facts);   ///< reached, and healthy
Findings check_daemons(const Facts& facts);  ///< one on this node
Findings check_version(const Facts& facts);  ///< of mkctl, daemon and peers
Findings check_memlock(const Facts& facts);
Findings check_open_files(const Facts& facts);
Findings check_user_namespace(const Facts& facts);  ///< every user of jobs can be told apart
Findings check_user_limits(const Facts& facts);     ///< one user cannot take all fds and mappings
Findings check_devices(const Facts& facts);    ///< RDMA devices: there, permitted, ports up, with an address
Findings check_gids(const Facts& facts);       ///< one type on all ports
Findings check_mtu(const Facts& facts);        ///< one on all ports, and not a small one
Findings check_other_end(const Facts& facts);  ///< addresses and MTU of another node fit
Findings check_rails(const Facts& facts);      ///< number, kind and ports of each peer's rails fit
Findings check_gpu_rdma(const Facts& facts);   ///< dma-buf or nvidia-peermem
Findings check_acs(const Facts& facts);
Findings check_huge_pages(const Facts& facts);
Findings check_clock(const Facts& facts);           ///< synchronised, and that of each peer the same
Findings check_security_group(const Facts& facts);  ///< of EFA
Findings check_payload(const Facts& facts);         ///< what RDMA asks of the network: always said

struct Check {
  const char* name;
  Findings (*run)(const Facts&);
};

/// All of them, in the order in which they are shown.
const std::vector<Check>& checks();

}  // namespace mkernel::mkctl::doctor
