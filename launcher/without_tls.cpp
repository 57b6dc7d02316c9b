// What ddprun has in place of TLS: the way to ddprun-tls.
#include <sys/auxv.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>
#include <string_view>

#include "launcher/plan/program.h"
#include "launcher/tls_program.h"
#include "rendezvous/http/tls_context.h"

namespace ddprun::cli {
namespace {

constexpr const char* kName = "ddprun-tls";

}  // namespace

const char* called_as(char**) {
  // /proc/self/exe is where links lead, and argv[0] may have no path.
  const auto* const file = reinterpret_cast<const char*>(::getauxval(AT_EXECFN));
  return file == nullptr ? "" : file;
}

Result<void> become_tls_program(char** argv) {
  const std::string_view called = called_as(argv);
  // Executed by that name it is no ddprun-tls, but a copy of ddprun or a link to one: to go on would
  // be to come back here, for ever.
  if (called.substr(called.rfind('/') + 1) == kName) {
    return fail(
        ErrorCode::kPermissionDenied,
        std::string(called) + " is a ddprun without TLS; install both programs of one package");
  }
  const std::string program = own_folder() + "/" + kName;
  char* const first = argv[0];
  // For called_as() there: what AT_EXECFN said is lost by exec.
  argv[0] = const_cast<char*>(called_as(argv));
  ::execv(program.c_str(), argv);
  const int why = errno;
  argv[0] = first;
  Error error = error_from_errno(why, program);
  error.code = why == ENOENT ? ErrorCode::kNotFound : ErrorCode::kPermissionDenied;
  error.message += "; it is the part of ddprun that has TLS, and comes with it: install both";
  return fail(std::move(error));
}

}  // namespace ddprun::cli

namespace ddprun::rdzv {

// For those who can do without: a job goes on when nobody can be told of its progress.
Result<std::shared_ptr<TlsContext>> make_tls_context(const TlsFiles&) {
  return fail(ErrorCode::kUnavailable,
              "TLS is in ddprun-tls, which does not lie beside this ddprun or cannot be executed");
}

}  // namespace ddprun::rdzv
