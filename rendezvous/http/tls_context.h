// TLS for the HTTP client (TLS 1.2 or newer, and the server must prove its name). The implementation is in rendezvous/tls:
// five megabytes of OpenSSL, which a program that calls no make_tls_context() does not get.
#pragma once

#include <memory>

#include "rendezvous/common/result.h"
#include "rendezvous/http/http_client.h"
#include "rendezvous/http/tls_files.h"

namespace ddprun::rdzv {

// An Error says which file is wrong, and how.
Result<std::shared_ptr<TlsContext>> make_tls_context(const TlsFiles& files);

}  // namespace ddprun::rdzv
