// What ddprun and ddprun-dynamic have in place of TLS.
#include <memory>

#include "rendezvous/http/tls_context.h"

namespace ddprun::rdzv {

// For those who can do without: a job goes on when nobody can be told of its progress.
Result<std::shared_ptr<TlsContext>> make_tls_context(const TlsFiles&) {
  return fail(ErrorCode::kUnavailable,
              "TLS is in ddprun-tls, which does not lie beside this ddprun or cannot be executed");
}

}  // namespace ddprun::rdzv
