#include "daemon/rpc/tls_files.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <utility>

#include "daemon/base/read_file.h"

namespace mkernel::rpc {
namespace {

using Memory = std::unique_ptr<BIO, int (*)(BIO*)>;
using Certificate = std::unique_ptr<X509, void (*)(X509*)>;
using Key = std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)>;

/// gRPC reads the files by itself; this is what it would find, with an error that names the file.
Result<std::string> read(const std::string& path) {
  auto text = base::read_file(path);
  return text.ok() ? std::move(text) : Result<std::string>(text.status().with_context("TLS file"));
}

Memory memory_of(const std::string& text) {
  return {BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), &BIO_free};
}

Result<Certificate> read_certificate(const std::string& path) {
  const auto text = read(path);
  if (!text.ok()) return text.status();
  Certificate certificate(PEM_read_bio_X509(memory_of(text.value()).get(), nullptr, nullptr, nullptr),
                          &X509_free);
  if (certificate != nullptr) return certificate;
  return Status(StatusCode::kInvalidArgument, "TLS file " + path + " holds no PEM certificate");
}

/// What gRPC would only say by refusing every connection.
Status check(const TlsFiles& files) {
  const auto certificate = read_certificate(files.cert);
  if (!certificate.ok()) return certificate.status();
  MK_RETURN_IF_ERROR(read_certificate(files.ca).status());
  const auto text = read(files.key);
  if (!text.ok()) return text.status();
  // Without a question for a passphrase: a daemon has nobody to ask.
  const auto no_passphrase = [](char*, int, int, void*) { return 0; };
  const Key key(PEM_read_bio_PrivateKey(memory_of(text.value()).get(), nullptr, no_passphrase, nullptr),
                &EVP_PKEY_free);
  if (key == nullptr) {
    return {StatusCode::kInvalidArgument, "TLS file " + files.key + " holds no PEM key without a passphrase"};
  }
  if (X509_check_private_key(certificate.value().get(), key.get()) == 1) return {};
  return {StatusCode::kInvalidArgument,
          "TLS key " + files.key + " does not belong to certificate " + files.cert};
}

}  // namespace

Result<Credentials> make_credentials(const TlsFiles& files) {
  if (!files.enabled())
    return Credentials{grpc::InsecureServerCredentials(), grpc::InsecureChannelCredentials()};
  MK_RETURN_IF_ERROR(check(files));
  const auto provider = std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
      files.key, files.cert, files.ca, static_cast<unsigned>(files.refresh.count()));
  grpc::experimental::TlsServerCredentialsOptions server(provider);
  server.watch_root_certs();
  server.watch_identity_key_cert_pairs();
  server.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  grpc::experimental::TlsChannelCredentialsOptions client;
  client.set_certificate_provider(provider);
  client.watch_root_certs();
  client.watch_identity_key_cert_pairs();
  return Credentials{grpc::experimental::TlsServerCredentials(server),
                     grpc::experimental::TlsCredentials(client)};
}

std::vector<std::string> certified_names(const grpc::AuthContext& context) {
  std::vector<std::string> names;
  for (const char* property : {GRPC_X509_CN_PROPERTY_NAME, GRPC_X509_SAN_PROPERTY_NAME}) {
    for (const grpc::string_ref& name : context.FindPropertyValues(property)) {
      names.emplace_back(name.data(), name.size());
    }
  }
  return names;
}

}  // namespace mkernel::rpc
