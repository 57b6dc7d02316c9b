// ddpctl: wiring only. A program of its own, so that no start of ddprun loads what only ddpctl needs:
// CLI11, which constructs at every start, and the standard streams.
#include <cstdio>
#include <exception>

#include "launcher/ctl/ddpctl.h"
#include "rendezvous/common/exit_codes.h"
#include "rendezvous/net/exception_error.h"

int main(int argc, char** argv) {
  try {
    return ddprun::cli::run_ddpctl(argc, argv);
  } catch (const std::exception& exception) {
    const auto error = ddprun::rdzv::error_from_exception(exception);
    std::fprintf(stderr, "ddpctl: %s\n", error.message.c_str());
    return ddprun::kExitCannotRun;
  }
}
