#include "daemon/base/sha256.h"

#include <openssl/evp.h>

namespace mkernel::base {

Result<std::string> sha256(std::string_view bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), digest, &length, EVP_sha256(), nullptr) != 1) {
    return Status(StatusCode::kInternal, "SHA-256 is refused by libcrypto");
  }
  return std::string(reinterpret_cast<const char*>(digest), length);
}

}  // namespace mkernel::base
