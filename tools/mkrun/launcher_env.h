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

/// The first launcher whose rank and size are both set: torchrun, Open MPI, PMI, srun (last, because its
/// variables are also there for other launchers inside an allocation). Error: kInvalidArgument naming the
/// variable and its value.
Result<Launcher> detect_launcher(const Environment& environment);

/// The same from the environment of this process.
Result<Launcher> detect_launcher();

}  // namespace mkernel::mkrun
