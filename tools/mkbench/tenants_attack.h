// What `mkbench tenants` sets upon a bystander: clients that do what a client can do, as fast as they can.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "proto/abi/status.h"

namespace mkernel::bench {

struct AttackOptions {
  std::string daemon, peer_daemon;     ///< session sockets of the two nodes
  std::vector<std::string> listeners;  ///< "host:port" that silent connections are made to as well
  std::uint64_t bytes = 1ULL << 30;    ///< of the put that is left, of the memory of a client that is killed
  std::uint32_t ranks = 128;           ///< of the groups that come and go
  std::uint32_t connections = 3500;    ///< silent ones
};

/// One thread (an attack has its own beside it).
class Attack {
 public:
  virtual ~Attack() = default;
  /// One round of it, at most a few seconds. Errors: what it was refused with; the next round tries again.
  virtual Status round() = 0;
};

struct AttackKind {
  const char* name;
  const char* what;
  std::unique_ptr<Attack> (*make)(const AttackOptions&);
};

/// All of them, in the order in which they are run.
const std::vector<AttackKind>& attack_kinds();
/// Null for a name that is none.
const AttackKind* attack_of(const std::string& name);

// Those of tenants_attack_memory.cc.
std::unique_ptr<Attack> make_leave_put(const AttackOptions& options);
std::unique_ptr<Attack> make_kill(const AttackOptions& options);
std::unique_ptr<Attack> make_regions(const AttackOptions& options);
// Those of tenants_attack_objects.cc.
std::unique_ptr<Attack> make_linger_packet(const AttackOptions& options);
std::unique_ptr<Attack> make_linger_regions(const AttackOptions& options);
std::unique_ptr<Attack> make_unread(const AttackOptions& options);
std::unique_ptr<Attack> make_holes(const AttackOptions& options);
std::unique_ptr<Attack> make_locked(const AttackOptions& options);
std::unique_ptr<Attack> make_busy_group(const AttackOptions& options);

}  // namespace mkernel::bench
