// Loads the GPU module: a shared object of its own, so that a daemon whose configuration does not ask for GPU
// memory starts on machines without a driver and links nothing of CUDA.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "daemon/memory/copy_engines.h"

namespace mkernel::memory {

/// What the module is called, without folder.
inline constexpr const char* kGpuModuleName = "libmkernel_fabric_gpu.so";

/// What the module defines; C names so that dlsym finds them.
inline constexpr const char* kGpuModuleVersionSymbol = "mkernel_gpu_module_version";
inline constexpr const char* kGpuModuleOpenSymbol = "mkernel_gpu_module_open";
using GpuModuleVersion = const char*();           ///< MKERNEL_VERSION it was built with; must be the daemon's
using GpuModuleOpen = CopyEngines*(Status* why);  ///< a new object, or null and why

/// Where the module may lie: beside the running program, and in the library folder next to the program's.
std::vector<std::string> gpu_module_paths();

/// Engines for one thread; the module stays loaded from the first call on. `paths` are tried in order.
/// Errors, all kFailedPrecondition: no module (what was tried, and what to do), one of another version, no
/// driver or one that is too old.
Result<std::unique_ptr<CopyEngines>> open_copy_engines(const std::vector<std::string>& paths);

}  // namespace mkernel::memory
