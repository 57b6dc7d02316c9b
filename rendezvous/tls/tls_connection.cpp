#include "rendezvous/tls/tls_connection.h"

#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <boost/asio/ssl/error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <string>

#include "rendezvous/http/connection_of.h"

namespace ddprun::rdzv {
namespace {

namespace asio = boost::asio;
using TlsStream = asio::ssl::stream<asio::ip::tcp::socket>;

class TlsConnection final : public ConnectionOf<TlsStream> {
 public:
  using ConnectionOf<TlsStream>::ConnectionOf;

 protected:
  void secure() override {
    under_way(" (the TLS handshake is not done)");
    if (!expect_name()) {
      return end(Error{ErrorCode::kInvalidArgument,
                       who() + ": the name '" + name() + "' cannot be checked",
                       {}});
    }
    transport().async_handshake(asio::ssl::stream_base::client, then([this] { opened(); }));
  }

  Error explain(error_code ec) override {
    const bool is_cut_off = ec == asio::error::eof || ec == asio::ssl::error::stream_truncated;
    if (is_cut_off && !is_open()) {
      return {ErrorCode::kClosed,
              who() + " closed the connection instead of a TLS handshake; does it use TLS?",
              {}};
    }
    if (ec == asio::ssl::error::stream_truncated) ec = asio::error::eof;
    if (ec.category() != asio::error::get_ssl_category()) return ConnectionOf::explain(ec);

    const long verdict = SSL_get_verify_result(transport().native_handle());
    if (verdict != X509_V_OK) {
      const bool is_name =
          verdict == X509_V_ERR_HOSTNAME_MISMATCH || verdict == X509_V_ERR_IP_ADDRESS_MISMATCH;
      return {ErrorCode::kPermissionDenied,
              "the certificate of " + who() + " is not trusted: " +
                  (is_name ? "it is not for '" + name() + "'"
                           : std::string(X509_verify_cert_error_string(verdict))),
              {}};
    }
    if (ERR_GET_REASON(static_cast<unsigned long>(ec.value())) == SSL_R_WRONG_VERSION_NUMBER) {
      return {
          ErrorCode::kProtocol, who() + " does not speak TLS; check the port and the protocol", {}};
    }
    return {ErrorCode::kPermissionDenied, who() + " ends the TLS connection: " + ec.message(), {}};
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

}  // namespace

std::shared_ptr<HttpConnection> make_tls_connection(asio::io_context& io,
                                                    const HttpOptions& options,
                                                    asio::ssl::context& context) {
  return std::make_shared<TlsConnection>(io, options, context);
}

}  // namespace ddprun::rdzv
