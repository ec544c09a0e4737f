// What the launcher of a job tells a rank through the environment. The one file of mkrun that reads it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "proto/abi/status.h"

namespace mkernel::mkrun {

struct Launcher {
  std::string name;  ///< "torchrun", "Open MPI", "MPICH or Intel MPI", "srun"; empty under a plain shell
  std::uint32_t rank = 0;
  std::uint32_t world_size = 0;
  std::optional<std::uint32_t> local_rank;  ///< among the ranks of its node, when the launcher says
  std::string job;  ///< something that only the ranks of this job share; empty when there is none
};

/// Value of a variable, or null.
using Environment = std::function<const char*(const char* name)>;

/// That of this process.
Environment process_environment();

/// What the command line says. It wins: the environment is not asked for it.
struct GivenRank {
  std::optional<std::uint32_t> rank, world_size;
};

/// The first launcher whose rank and size are both set: torchrun, Open MPI, PMI, srun (last, because its
/// variables are also there for other launchers inside an allocation). An empty variable is one that is not
/// set. Error: kInvalidArgument naming the variable and its value.
Result<Launcher> detect_launcher(const Environment& environment, const GivenRank& given = {});

/// The name of a group that has none: of the operation and the launcher's job. A name that is too long or has
/// characters that no group may have is cut, and a hash of all of it tells it apart; every rank makes the
/// same.
std::string group_name_of(const std::string& op, const std::string& job);

}  // namespace mkernel::mkrun
