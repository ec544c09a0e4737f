#include "tools/mkctl/user_name.h"

#include <pwd.h>

#include <vector>

namespace mkernel::mkctl {

std::string user_name(uid_t uid) {
  std::vector<char> storage(16384);
  passwd entry{};
  passwd* found = nullptr;
  ::getpwuid_r(uid, &entry, storage.data(), storage.size(), &found);
  return found != nullptr ? std::string(found->pw_name) : std::to_string(uid);
}

}  // namespace mkernel::mkctl
