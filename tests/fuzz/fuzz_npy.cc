// Files of arrays that somebody else wrote: read_npy() answers with an array whose bytes are those of its
// shape and of the file, or names the file and what is wrong with it.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tools/mkrun/npy.h"

namespace {

using namespace mkernel;

void require(bool condition) {
  if (!condition) std::abort();
}

std::size_t bytes_of(mkrun::ElementType type) {
  switch (type) {
    case mkrun::ElementType::kF16: return 2;
    case mkrun::ElementType::kI64: return 8;
    default: return 4;
  }
}

/// One file in memory, its content replaced from input to input.
struct File {
  File() : fd(::memfd_create("fuzz.npy", 0)), path("/proc/self/fd/" + std::to_string(fd)) {
    require(fd >= 0);
  }
  void hold(const std::uint8_t* data, std::size_t size) const {
    require(::ftruncate(fd, 0) == 0);
    require(::pwrite(fd, data, size, 0) == static_cast<ssize_t>(size));
  }
  const int fd;
  const std::string path;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const File file;
  file.hold(data, size);
  const auto array = mkrun::read_npy(file.path);
  if (!array.ok()) {
    require(array.status().text().find(file.path) != std::string::npos);
    return 0;
  }
  std::int64_t elements = 1;
  for (const std::int64_t extent : array->shape) {
    require(extent >= 0);
    elements *= extent;
  }
  require(elements == array->elements());
  require(array->data.size() == static_cast<std::size_t>(elements) * bytes_of(array->type));
  // The data is the end of the file.
  require(array->data.size() <= size);
  require(array->data.empty() ||
          std::memcmp(array->data.data(), data + size - array->data.size(), array->data.size()) == 0);
  return 0;
}
