#include "rendezvous/http/tls_context.h"

#include <openssl/ssl.h>
#include <openssl/x509err.h>
#include <openssl/x509v3.h>

#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <cerrno>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "rendezvous/common/result.h"
#include "rendezvous/http/connection_of.h"
#include "rendezvous/tls/ca_file.h"

namespace ddprun::rdzv {
namespace {

namespace asio = boost::asio;
namespace ssl = asio::ssl;
using boost::system::error_code;
using TlsStream = ssl::stream<asio::ip::tcp::socket>;

class TlsConnection final : public ConnectionOf<TlsStream> {
 public:
  using ConnectionOf<TlsStream>::ConnectionOf;

 protected:
  void secure() override {
    under_way(" (the TLS handshake is not done)");
    if (!expect_name()) {
      return end(Error{ErrorCode::kInvalidArgument,
                       who() + ": the name '" + name() + "' cannot be checked"});
    }
    transport().async_handshake(ssl::stream_base::client, then([this] { opened(); }));
  }

  Error explain(error_code ec) override {
    const bool is_cut_off = ec == asio::error::eof || ec == ssl::error::stream_truncated;
    if (is_cut_off && !is_open()) {
      return {ErrorCode::kClosed,
              who() + " closed the connection instead of a TLS handshake; does it use TLS?"};
    }
    if (ec == ssl::error::stream_truncated) ec = asio::error::eof;
    if (ec.category() != asio::error::get_ssl_category()) return ConnectionOf::explain(ec);

    const long verdict = SSL_get_verify_result(transport().native_handle());
    if (verdict != X509_V_OK) {
      const bool is_name =
          verdict == X509_V_ERR_HOSTNAME_MISMATCH || verdict == X509_V_ERR_IP_ADDRESS_MISMATCH;
      return {ErrorCode::kPermissionDenied,
              "the certificate of " + who() + " is not trusted: " +
                  (is_name ? "it is not for '" + name() + "'"
                           : std::string(X509_verify_cert_error_string(verdict)))};
    }
    if (ERR_GET_REASON(static_cast<unsigned long>(ec.value())) == SSL_R_WRONG_VERSION_NUMBER) {
      return {ErrorCode::kProtocol, who() + " does not speak TLS; check the port and the protocol"};
    }
    return {ErrorCode::kPermissionDenied, who() + " ends the TLS connection: " + ec.message()};
  }

 private:
  bool expect_name() {
    X509_VERIFY_PARAM* expected = SSL_get0_param(transport().native_handle());
    error_code ec;
    asio::ip::make_address(name(), ec);
    if (!ec) return X509_VERIFY_PARAM_set1_ip_asc(expected, name().c_str()) == 1;
    X509_VERIFY_PARAM_set_hostflags(expected, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    if (X509_VERIFY_PARAM_set1_host(expected, name().c_str(), 0) != 1) return false;
    // The same as SSL_set_tlsext_host_name, without its cast.
    std::string sni = name();
    return SSL_ctrl(transport().native_handle(), SSL_CTRL_SET_TLSEXT_HOSTNAME,
                    TLSEXT_NAMETYPE_host_name, sni.data()) == 1;
  }
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
  const auto shared = std::make_shared<ssl::context>(ssl::context::tls_client);
  ssl::context& context = *shared;
  auto tls =
      std::make_shared<TlsContext>([shared](asio::io_context& io, const HttpOptions& options) {
        return std::make_shared<TlsConnection>(io, options, *shared);
      });
  SSL_CTX_set_min_proto_version(context.native_handle(), TLS1_2_VERSION);
  error_code ec;
  context.set_verify_mode(ssl::verify_peer, ec);
  const std::string ca = files.ca.empty() ? system_ca_file() : files.ca;
  if (ca.empty()) {
    context.set_default_verify_paths(ec);
  } else if (auto loaded =
                 load("CA file", ca, [&](error_code& e) { context.load_verify_file(ca, e); });
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
