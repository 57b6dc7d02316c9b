#include "launcher/other_program.h"

#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <string_view>

#include "launcher/plan/program.h"

namespace ddprun::cli {
namespace {

struct Other {
  Part part;
  const char* name;
  const char* has;
  const char* is_for;
};

constexpr Other kOthers[] = {{Part::kSystemLibraries, "ddprun-dynamic", "the system's libraries",
                              "for several nodes, names of hosts and the number of GPUs"},
                             {Part::kTls, "ddprun-tls", "TLS", "that has TLS"}};

const char* executed_as() {
  const auto* const file = reinterpret_cast<const char*>(::getauxval(AT_EXECFN));
  return file == nullptr ? "" : file;
}

}  // namespace

const char* called_as(char** argv) {
  // Those that ddprun becomes are told by it: what AT_EXECFN said is lost by exec.
  if (has(Part::kSystemLibraries)) return argv[0] == nullptr ? "" : argv[0];
  // /proc/self/exe is where links lead, and argv[0] may have no path.
  return executed_as();
}

Result<void> become_program_with(Part part, char** argv) {
  if (has(part)) return {};
  const std::string_view called = executed_as();
  for (const Other& each : kOthers) {
    // This program lies under the name of one that has more, as a copy or a link: to go on would lead back to here, for
    // ever.
    if (has(each.part) || called.substr(called.rfind('/') + 1) != each.name) continue;
    return fail(ErrorCode::kPermissionDenied, std::string(called) + " is a ddprun without " +
                                                  each.has +
                                                  "; install all programs of one package");
  }
  const Other& other = *std::ranges::find(kOthers, part, &Other::part);
  const std::string program = own_folder() + "/" + other.name;
  char* const first = argv[0];
  argv[0] = const_cast<char*>(called_as(argv));
  ::execv(program.c_str(), argv);
  const int why = errno;
  argv[0] = first;
  Error error = error_from_errno(why, program);
  error.code = why == ENOENT ? ErrorCode::kNotFound : ErrorCode::kPermissionDenied;
  error.message += "; it is the part of ddprun " + std::string(other.is_for) +
                   ", and comes with it: install both";
  return fail(std::move(error));
}

}  // namespace ddprun::cli
