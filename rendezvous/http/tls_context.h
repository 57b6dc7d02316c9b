// TLS for the HTTP client (TLS 1.2 or newer, and the server must prove its name). Programs can do
// without OpenSSL, because the only implementation, in rendezvous/tls, links five megabytes of it: a
// program with the target property DDPRUN_WITHOUT_TLS defines make_tls_context() itself
// (launcher/without_tls.cpp).
#pragma once

#include <memory>

#include "rendezvous/common/result.h"
#include "rendezvous/http/http_client.h"
#include "rendezvous/http/tls_files.h"

namespace ddprun::rdzv {

// An Error says which file is wrong, and how.
Result<std::shared_ptr<TlsContext>> make_tls_context(const TlsFiles& files);

}  // namespace ddprun::rdzv
