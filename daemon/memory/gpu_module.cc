#include "daemon/memory/gpu_module.h"

#include <dlfcn.h>

#include <filesystem>
#include <string_view>
#include <system_error>

namespace mkernel::memory {
namespace {

namespace fs = std::filesystem;

Status refusal(const std::string& what) {
  return {StatusCode::kFailedPrecondition, what};
}

/// The first file that is there, loaded. A file that is there and cannot be loaded is an error, not a reason
/// to look on.
Result<void*> load(const std::vector<std::string>& paths) {
  std::string tried;
  for (const std::string& path : paths) {
    tried.append(tried.empty() ? "" : ", ").append(path);
    std::error_code error;
    if (!fs::exists(path, error)) continue;
    void* const module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (module != nullptr) return module;
    return refusal("the GPU module cannot be loaded: " + std::string(::dlerror()));
  }
  return refusal("the GPU module was not found (tried " + tried +
                 "): it is built and installed with the daemon where there is a CUDA toolkit");
}

}  // namespace

std::vector<std::string> gpu_module_paths() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error).parent_path();
  std::vector<std::string> paths;
  for (const char* folder : {".", "../" MKERNEL_LIBDIR, "../lib"}) {
    const std::string path = (program / folder / kGpuModuleName).lexically_normal();
    if (paths.empty() || paths.back() != path) paths.push_back(path);
  }
  return paths;
}

Result<std::unique_ptr<CopyEngines>> open_copy_engines(const std::vector<std::string>& paths) {
  const auto module = load(paths);
  if (!module.ok()) return module.status();
  const auto version = reinterpret_cast<GpuModuleVersion*>(::dlsym(module.value(), kGpuModuleVersionSymbol));
  const auto open = reinterpret_cast<GpuModuleOpen*>(::dlsym(module.value(), kGpuModuleOpenSymbol));
  if (version == nullptr || open == nullptr || std::string_view(version()) != MKERNEL_VERSION) {
    return refusal("the GPU module is of version " +
                   std::string(version == nullptr || open == nullptr ? "unknown" : version()) +
                   ", this daemon of " MKERNEL_VERSION ": install both from one build");
  }
  Status why;
  std::unique_ptr<CopyEngines> engines(open(&why));
  if (engines == nullptr) return why;
  return engines;
}

}  // namespace mkernel::memory
