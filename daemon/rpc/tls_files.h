// Certificates of the peer links, and gRPC's credentials from them.
#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "proto/abi/status.h"

namespace mkernel::rpc {

/// PEM files: all three or none (plain text).
struct TlsFiles {
  std::string cert, key, ca;
  std::string
      server_name;  ///< in certificates, when peers are dialled by address (DNS); empty: the dialled host
  std::chrono::seconds refresh{10};  ///< how often the files are looked at for changes
  bool enabled() const { return !cert.empty(); }
};

struct Credentials {
  std::shared_ptr<grpc::ServerCredentials> server;
  std::shared_ptr<grpc::ChannelCredentials> client;
};

/// Plain text, or TLS with certificates on both sides. Files that change are read again within `refresh`, for
/// the connections that are made from then on; a thread of gRPC's looks at them as long as the credentials
/// live. While what has changed cannot be used, what was read before stays in force. Errors: those of
/// base::read_file(), and kInvalidArgument naming a file that is no certificate or key, or a key of another
/// certificate. Takes as long as the server of the files wants.
Result<Credentials> make_credentials(const TlsFiles& files);

/// The common name and the alternative names of the certificate that the other side showed; none without one.
std::vector<std::string> certified_names(const grpc::AuthContext& context);

}  // namespace mkernel::rpc
