#include "rendezvous/http/tls_context.h"

#include <openssl/ssl.h>
#include <openssl/x509err.h>

#include <boost/asio/ssl/context.hpp>
#include <cerrno>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "rendezvous/common/result.h"
#include "rendezvous/tls/tls_connection.h"

namespace ddprun::rdzv {
namespace {

namespace ssl = boost::asio::ssl;
using boost::system::error_code;

class OpenSslContext final : public TlsContext {
 public:
  ssl::context& context() { return context_; }

  std::shared_ptr<HttpConnection> connection(boost::asio::io_context& io,
                                             const HttpOptions& options) override {
    return make_tls_connection(io, options, context_);
  }

 private:
  ssl::context context_{ssl::context::tls_client};
};

// OpenSSL's message for a missing file is only "system lib".
Result<void> check_readable(const std::string& what, const std::string& file) {
  errno = 0;
  std::ifstream stream(file);
  if (stream && stream.peek() != std::ifstream::traits_type::eof()) return {};
  return fail(error_from_errno(errno == 0 ? EINVAL : errno, "the " + what + " " + file));
}

template <typename Load>
Result<void> load(const std::string& what, const std::string& file, Load&& load_it) {
  if (auto readable = check_readable(what, file); !readable) return readable;
  error_code ec;
  load_it(ec);
  if (!ec) return {};
  return fail(ErrorCode::kInvalidArgument,
              "the " + what + " " + file + " is not a good PEM file: " + ec.message());
}

}  // namespace

Result<std::shared_ptr<TlsContext>> make_tls_context(const TlsFiles& files) {
  if (files.certificate.empty() != files.key.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                files.key.empty()
                    ? "the certificate " + files.certificate + " needs the file with its key"
                    : "the key " + files.key + " needs the file with its certificate");
  }
  auto tls = std::make_shared<OpenSslContext>();
  ssl::context& context = tls->context();
  SSL_CTX_set_min_proto_version(context.native_handle(), TLS1_2_VERSION);
  error_code ec;
  context.set_verify_mode(ssl::verify_peer, ec);
  if (files.ca.empty()) {
    context.set_default_verify_paths(ec);
  } else if (auto loaded = load("CA file", files.ca,
                                [&](error_code& e) { context.load_verify_file(files.ca, e); });
             !loaded) {
    return fail(std::move(loaded.error()));
  }
  if (files.certificate.empty()) return tls;
  bool is_of_another = false;
  auto loaded = load("certificate", files.certificate, [&](error_code& e) {
    context.use_certificate_chain_file(files.certificate, e);
  });
  if (loaded) {
    loaded = load("key", files.key, [&](error_code& e) {
      context.use_private_key_file(files.key, ssl::context::pem, e);
      is_of_another =
          ERR_GET_REASON(static_cast<unsigned long>(e.value())) == X509_R_KEY_VALUES_MISMATCH;
    });
  }
  if (is_of_another) {
    return fail(ErrorCode::kInvalidArgument,
                "the key " + files.key + " is not that of the certificate " + files.certificate);
  }
  if (!loaded) return fail(std::move(loaded.error()));
  return tls;
}

}  // namespace ddprun::rdzv
